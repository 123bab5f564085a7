//! The way in which a model writes calls of tools, and the grammar of its calls.
//!
//! Models are told of tools by their chat templates, which show how calls are to be written. The way is
//! recognised by the marks that a template has. A template may refuse a message with several calls, as that of Llama 3.1
//! does: then an answer with several could not be gone on from.

use pointsman_executor::prompt::{ChatMessage, PromptError};
use pointsman_executor::tools::{
    CALL_MARKS, CallForm, CallSyntax, CalledFunction, NoTools, OtherwiseText, Tool, ToolCall,
    ToolKind, UnkeptRules,
};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::chat::ChatTemplate;
use super::form::{FormError, schema_with};

/// The way in which a model writes calls of tools.
#[derive(Clone, Debug)]
pub(super) struct CallWriting {
    pub(super) syntax: Result<CallSyntax, NoTools>,
    /// False if the template refuses messages with several calls.
    pub(super) takes_several: bool,
    /// Marks that are special tokens, with their ids.
    marks: Vec<(&'static str, u32)>,
    /// The ids of these.
    pub(super) tokens: Vec<u32>,
}

impl CallWriting {
    /// The writing of a model whose template for tools is this; absent: it has none.
    pub(super) fn of(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        let syntax = match template {
            None => Err(NoTools::NotInTemplate),
            Some(template) => syntax_of(template.source()).ok_or(NoTools::UnknownSyntax),
        };
        let added = tokenizer.get_added_tokens_decoder();
        let special = |mark: &'static str| {
            let id = tokenizer.token_to_id(mark)?;
            added.get(&id)?.special.then_some((mark, id))
        };
        let marks: Vec<_> = CALL_MARKS.into_iter().filter_map(special).collect();
        Self {
            syntax,
            takes_several: !template.is_some_and(refuses_several),
            tokens: marks.iter().map(|(_, id)| *id).collect(),
            marks,
        }
    }

    /// The grammar of calls, in Lark.
    pub(super) fn grammar(&self, form: &CallForm) -> Result<String, FormError> {
        let syntax = self.syntax.map_err(|why| FormError(why.to_string()))?;
        let mut rules = vec![self.start(syntax, form)];
        let names: Vec<String> = (0..form.tools.len()).map(|n| format!("call_{n}")).collect();
        rules.push(format!("call: {}", names.join(" | ")));
        for (n, tool) in form.tools.iter().enumerate() {
            let call = self.call(syntax, &tool.name, &format!("arguments_{n}"));
            rules.push(format!("call_{n}: {call}"));
            let arguments = schema_with(&tool.parameters, as_trained(tool.unkept))?;
            rules.push(format!("arguments_{n}: %json {arguments}"));
        }
        Ok(rules.join("\n"))
    }

    /// The rules of an answer of calls, or of what may be in their place.
    fn start(&self, syntax: CallSyntax, form: &CallForm) -> String {
        let more = form.most.saturating_sub(1);
        let then = |between: &str| match more {
            0 => String::new(),
            _ => format!(" ({} call){{0,{more}}}", text(between)),
        };
        let (begin, rest) = match syntax {
            CallSyntax::Tags => (self.mark("<tool_call>"), {
                let call = format!("{} {} call_end", text("\n"), self.mark("<tool_call>"));
                let more = match more {
                    0 => String::new(),
                    _ => format!(" ({call}){{0,{more}}}"),
                };
                format!(
                    "call_end{more}\ncall_end: call {}",
                    self.mark("</tool_call>")
                )
            }),
            CallSyntax::MarkedList => {
                let list = format!("{} call{} {}", text("["), then(", "), text("]"));
                (self.mark("[TOOL_CALLS]"), list)
            }
            CallSyntax::MarkedName => {
                let more = match more {
                    0 => String::new(),
                    _ => format!(" ({} call){{0,{more}}}", self.mark("[TOOL_CALLS]")),
                };
                (self.mark("[TOOL_CALLS]"), format!("call{more}"))
            }
            CallSyntax::Bare => (String::new(), format!("call{}", then("; "))),
        };
        match form.otherwise {
            OtherwiseText::None => format!("start: {begin} {rest}"),
            OtherwiseText::Any => self.after_text(syntax, &rest),
        }
    }

    /// The rules of a text that calls may follow, which begin with the mark that no text has.
    fn after_text(&self, syntax: CallSyntax, calls: &str) -> String {
        let mark = match syntax {
            CallSyntax::Tags => "<tool_call>",
            CallSyntax::MarkedList | CallSyntax::MarkedName => "[TOOL_CALLS]",
            // What comes first tells.
            CallSyntax::Bare => {
                let (space, mark) = (r"[ \t\r\n\f]*", r"<\|python_tag\|>");
                return format!(
                    "start: ANY | {calls}\n\
                     ANY: /(?s:{space}([^ \\t\\r\\n\\f{{].*)?)/ & ~/(?s:{space}{mark}.*)/"
                );
            }
        };
        if self.id_of(mark).is_some() {
            let begin = self.mark(mark);
            return format!("start: ANY | ANY {begin} {calls}\nANY: /(?s:.*)/");
        }
        let (escaped, quoted) = (mark.replace('[', r"\[").replace(']', r"\]"), text(mark));
        format!(
            "start: ANY | marked {calls}\n\
             marked[suffix={quoted}]: /(?s:.*)/\n\
             ANY: /(?s:.*)/ & ~/(?s:.*){escaped}(?s:.*)/"
        )
    }

    /// The expression of one call of the function `name`, whose arguments are the rule `arguments`.
    fn call(&self, syntax: CallSyntax, name: &str, arguments: &str) -> String {
        let named = json!(name);
        let object = |key: &str| {
            let begin = format!(r#"{{"name": {named}, "{key}": "#);
            format!("{} {arguments} {}", text(&begin), text("}"))
        };
        match syntax {
            CallSyntax::Tags => {
                let line = text("\n");
                format!("{line} {} {line}", object("arguments"))
            }
            CallSyntax::MarkedList => object("arguments"),
            CallSyntax::MarkedName => {
                format!("{} {} {arguments}", text(name), self.mark("[ARGS]"))
            }
            CallSyntax::Bare => object("parameters"),
        }
    }

    /// The expression of a mark: a special token, or its text.
    fn mark(&self, mark: &str) -> String {
        match self.id_of(mark) {
            Some(id) => format!("<[{id}]>"),
            None => text(mark),
        }
    }

    fn id_of(&self, mark: &str) -> Option<u32> {
        let mut marks = self.marks.iter();
        marks.find(|(known, _)| *known == mark).map(|(_, id)| *id)
    }
}

/// True if a template refuses a conversation in which a message has two calls, and not for another reason.
fn refuses_several(template: &ChatTemplate) -> bool {
    let refuses = |calls: usize| {
        let rendered = template.render(&with_calls(calls), &[roll()]);
        matches!(rendered, Err(PromptError::Refused(_)))
    };
    refuses(2) && !refuses(1)
}

/// A conversation in which a message has so many calls of [`roll`], with their results.
fn with_calls(calls: usize) -> Vec<ChatMessage> {
    // As Mistral's templates want ids.
    let ids = (0..calls).map(|call| format!("call{call:05}"));
    let ids: Vec<String> = ids.collect();
    let tool_calls = ids.iter().map(|id| ToolCall {
        id: id.clone(),
        kind: ToolKind::Function,
        function: CalledFunction {
            name: TOOL.to_owned(),
            arguments: "{}".to_owned(),
        },
    });
    let calling = ChatMessage {
        content: None,
        tool_calls: tool_calls.collect(),
        ..ChatMessage::new("assistant", "")
    };
    let results = ids.iter().map(|id| ChatMessage {
        tool_call_id: Some(id.clone()),
        ..ChatMessage::new("tool", "4")
    });
    let before = [ChatMessage::new("user", "Roll twice."), calling];
    before.into_iter().chain(results).collect()
}

/// The name of [`roll`].
const TOOL: &str = "roll";

/// A tool without arguments.
fn roll() -> Tool {
    let parameters = json!({"type": "object", "properties": {}});
    let function = json!({"name": TOOL, "description": "Rolls dice.", "parameters": parameters});
    Tool {
        name: TOOL.to_owned(),
        definition: json!({"type": "function", "function": function}).to_string(),
        parameters: parameters.to_string(),
    }
}

/// The options of arguments: the white space of Python's JSON, with which models are trained, and the fate of some rules.
fn as_trained(unkept: UnkeptRules) -> Value {
    json!({
        "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false, "coerce_one_of": true,
        "lenient": unkept == UnkeptRules::LeaveOut,
    })
}

/// A text in Lark, which writes it as JSON does.
fn text(text: &str) -> String {
    json!(text).to_string()
}

/// The way in which the model of a template writes calls; absent: it is not known.
fn syntax_of(template: &str) -> Option<CallSyntax> {
    let has = |mark: &str| template.contains(mark);
    // Others write names so, some of them within the marks of these: Qwen 3 Coder, Functionary.
    if has("<function=") {
        return None;
    }
    if has("[TOOL_CALLS]") {
        let syntax = match has("[ARGS]") {
            true => CallSyntax::MarkedName,
            false => CallSyntax::MarkedList,
        };
        return Some(syntax);
    }
    if has("<tool_call>") {
        return Some(CallSyntax::Tags);
    }
    let is_bare = has("<|python_tag|>") || has("ipython") && has("parameters");
    is_bare.then_some(CallSyntax::Bare)
}

#[cfg(test)]
mod tests;
