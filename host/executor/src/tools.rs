//! Tools that a model may call, and the ways in which models write calls.
//!
//! # Not here
//! The reading of calls out of an answer's text, and OpenAI's fields (the server); the grammar that keeps
//! an answer to calls (the engine).

use serde::Serialize;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The name by which the model calls it.
    pub name: String,
    /// The tool as chat templates are told it: an object with `type` and `function`, in JSON.
    pub definition: String,
    /// The schema of its arguments, in JSON.
    pub parameters: String,
}

/// The way in which a model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSyntax {
    /// A JSON object with `name` and `arguments`, between the tags `<tool_call>` and `</tool_call>`: Hermes
    /// and Qwen.
    Tags,
    /// The mark `[TOOL_CALLS]`, then a JSON list of such objects: Mistral's first models with tools.
    MarkedList,
    /// The mark `[TOOL_CALLS]`, a name, the mark `[ARGS]` and a JSON object: Mistral's later models.
    MarkedName,
    /// A JSON object with `name` and `parameters` as the whole answer, several set apart by `;`: Llama 3.
    Bare,
}

/// The texts that calls are written with beside JSON. Some of them are special tokens of some models.
pub const CALL_MARKS: [&str; 6] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
];

/// Calls as the form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// The tools that may be called; never none.
    pub tools: Vec<CallableTool>,
    /// Most calls; at least 1.
    pub most: u32,
    /// The text that may stand in their place.
    pub otherwise: OtherwiseText,
}

/// A tool in the form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallableTool {
    /// The tool's name.
    pub name: String,
    /// The JSON schema of its arguments, as text.
    pub parameters: String,
    /// The fate of the schema's rules that no answer can be kept to.
    pub unkept: UnkeptRules,
}

/// The fate of rules of a schema that no answer can be kept to: a key that is not built, or a format that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnkeptRules {
    /// The schema is refused.
    Refuse,
    /// Answers are kept to the other rules.
    LeaveOut,
}

/// The text that may stand in the place of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherwiseText {
    /// None: the answer is a call.
    None,
    /// Any, and calls may follow it.
    Any,
}

/// The reason why a model is told of no tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTools {
    /// Its chat template has no place for them.
    #[error("the model's chat template has no tools")]
    NotInTemplate,
    /// It writes calls in a way that is not known here.
    #[error(
        "the model writes calls of tools in a way that is not known here; those of Llama 3, Mistral, \
         Hermes and Qwen are"
    )]
    UnknownSyntax,
}

/// A call of a tool in a message of the conversation, as chat templates are told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// The id by which its result names it.
    pub id: String,
    /// The kind of tool.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function and its arguments.
    pub function: CalledFunction,
}

/// The kind of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A function of the client's.
    #[default]
    Function,
}

/// A function with the arguments of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CalledFunction {
    /// The function's name.
    pub name: String,
    /// The arguments: an object, in JSON. Templates are told the object.
    pub arguments: String,
}
