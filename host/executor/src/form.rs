//! The form that an answer is to have, whatever the model would say: also known as structured outputs.

use crate::tools::CallForm;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// A JSON object.
    JsonObject,
    /// A JSON text that a schema describes. The schema as it was written: the order of its properties is
    /// that of the answer's.
    JsonSchema(String),
    /// A text that a regular expression matches, as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a context-free language, by its grammar in Lark.
    Lark(String),
    /// Calls of tools, in the way in which the model writes them.
    Calls(CallForm),
}
