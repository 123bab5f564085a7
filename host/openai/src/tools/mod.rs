//! Tools that a client lets a model call: OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.
//!
//! A call that has to be made (`tool_choice`) is a form of the answer, to which the engine keeps it. What a
//! model writes is read back as calls by `parser`, in the way in which the model writes them.

mod object;
mod parser;

use std::sync::Arc;

use pointsman_executor::form::AnswerForm;
use pointsman_executor::prompt::PromptEncoder;
use pointsman_executor::tools::{
    CallForm, CallSyntax, CallableTool, OtherwiseText, Tool, UnkeptRules,
};
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::{Fields, Properties, mismatch, object, read};
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::RawValue;

use super::form::AskedForm;

pub(super) use parser::{AnswerPart, CallParser, Several};

/// The most tools of a request.
const TOOLS_MAX: usize = 128;
/// The most bytes of all tools together.
const TOOLS_BYTES_MAX: usize = 256 << 10;
/// The most calls of an answer that has to be a call.
const CALLS_MAX: u32 = 8;

/// The schema of the arguments of a function that has none.
const NO_ARGUMENTS: &str = r#"{"type": "object", "properties": {}, "additionalProperties": false}"#;
/// The schema of arguments that are as the model writes them.
const ANY_ARGUMENTS: &str = r#"{"type": "object"}"#;

/// The tools of a request, and what is to be done with them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AskedTools {
    tools: Vec<Tool>,
    /// Names of the tools whose arguments are to be kept to their schemas even where the model chooses.
    strict: Vec<String>,
    choice: ToolChoice,
    several: Several,
}

/// The client's choice among the tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ToolChoice {
    /// The model is told of no tools.
    None,
    /// The model may call any.
    #[default]
    Auto,
    /// The model has to call one.
    Required,
    /// The model has to call this one.
    Named(String),
}

/// The way in which calls are read out of answers.
#[derive(Clone, Debug)]
pub(super) struct CallReading {
    syntax: CallSyntax,
    /// Names of the tools.
    names: Arc<[String]>,
    several: Several,
}

// === Reading ===

/// Takes the tools of a request.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<AskedTools, ApiError> {
    let given = fields.take("tools");
    let listed: Vec<&RawValue> = match given {
        None => Vec::new(),
        Some(given) => {
            let wanted = format!("a list of up to {TOOLS_MAX} tools");
            let list = read::<Vec<&RawValue>>(given).filter(|list| list.len() <= TOOLS_MAX);
            list.ok_or_else(|| mismatch("tools".to_owned(), &wanted, given))?
        }
    };
    let bytes: usize = listed.iter().map(|tool| tool.get().len()).sum();
    if bytes > TOOLS_BYTES_MAX {
        let message = format!("`tools` has {bytes} bytes, and may have {TOOLS_BYTES_MAX}");
        return Err(ApiError::field("tools", message));
    }
    let mut asked = AskedTools::default();
    for (index, value) in listed.into_iter().enumerate() {
        asked.add(&format!("tools[{index}]"), value)?;
    }
    asked.choice = choice(fields, &asked.tools)?;
    let parallel = fields.take_as("parallel_tool_calls", "true or false", |_: &bool| true)?;
    asked.several = match parallel {
        Some(false) => Several::FirstOnly,
        Some(true) | None => Several::All,
    };
    Ok(asked)
}

/// Takes `tool_choice`.
fn choice(fields: &mut Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let Some(value) = fields.take("tool_choice") else {
        return Ok(ToolChoice::Auto);
    };
    let choice = match read::<String>(value).as_deref() {
        Some("none") => ToolChoice::None,
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => ToolChoice::Named(named(value)?),
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => {
            let message = "`tool_choice` wants a call, and there are no `tools`";
            Err(ApiError::field("tool_choice", message))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            let message = format!(
                "`tool_choice` names `{}`, which is not in `tools`",
                quoted(name)
            );
            Err(ApiError::field("tool_choice", message))
        }
        ToolChoice::None | ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => {
            Ok(choice)
        }
    }
}

/// The function that a choice names.
fn named(value: &RawValue) -> Result<String, ApiError> {
    let wanted = "`none`, `auto`, `required`, or an object that names a function";
    let wrong = || mismatch("tool_choice".to_owned(), wanted, value);
    let within = |name: &str| format!("tool_choice.{name}");
    let mut fields = Fields::of(value, within)?.ok_or_else(wrong)?;
    let kind = fields.take("type").and_then(read::<String>);
    let function = fields
        .take("function")
        .filter(|_| kind.as_deref() == Some("function"));
    let within = |name: &str| format!("tool_choice.function.{name}");
    let mut function = Fields::of(function.ok_or_else(wrong)?, within)?.ok_or_else(wrong)?;
    function
        .take_as("name", "a text", |_: &String| true)?
        .ok_or_else(wrong)
}

// === impl AskedTools ===

impl AskedTools {
    /// Adds the tool at a place of the list.
    fn add(&mut self, at: &str, value: &RawValue) -> Result<(), ApiError> {
        let wanted = "an object whose `type` is `function`, with a `function`";
        let wrong = |value| mismatch(at.to_owned(), wanted, value);
        let mut fields = Fields::of(value, str::to_owned)?.ok_or_else(|| wrong(value))?;
        let kind = fields.take("type").and_then(read::<String>);
        let function = fields.take("function");
        let function = function.filter(|_| kind.as_deref() == Some("function"));
        let given = function.ok_or_else(|| wrong(value))?;
        let mut function = Fields::of(given, str::to_owned)?.ok_or_else(|| wrong(given))?;
        let at = format!("{at}.function");
        let name = function_name(&at, &mut function)?;
        if self.tools.iter().any(|tool| tool.name == name) {
            let message = format!("`{at}.name`: there are two tools `{}`", quoted(&name));
            return Err(ApiError::field(format!("{at}.name"), message));
        }
        let _: Option<String> = optional(&at, "description", "a text", &mut function)?;
        let parameters = match function.take("parameters") {
            None => NO_ARGUMENTS.to_owned(),
            Some(schema) if schema.get().starts_with('{') => schema.get().to_owned(),
            Some(other) => {
                let param = format!("{at}.parameters");
                return Err(mismatch(param, "a JSON schema, an object", other));
            }
        };
        if optional(&at, "strict", "true or false", &mut function)? == Some(true) {
            self.strict.push(name.clone());
        }
        self.tools.push(Tool {
            name,
            definition: value.get().to_owned(),
            parameters,
        });
        Ok(())
    }

    /// The tools that the model is told of.
    pub(super) fn told(&self) -> &[Tool] {
        match self.choice {
            ToolChoice::None => &[],
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => &self.tools,
        }
    }

    /// The way in which calls are read out of the answers of a model; absent: it is told of no tools.
    ///
    /// # Errors
    /// If the model cannot be told of tools.
    pub(super) fn reading(
        &self,
        model: &dyn PromptEncoder,
    ) -> Result<Option<CallReading>, ApiError> {
        let told = self.told();
        if told.is_empty() {
            return Ok(None);
        }
        let syntax = model.call_syntax();
        let syntax = syntax.map_err(|why| ApiError::field("tools", format!("`tools`: {why}")))?;
        Ok(Some(CallReading {
            syntax,
            names: told.iter().map(|tool| tool.name.clone()).collect(),
            several: self.several,
        }))
    }

    /// The same for a model that is to make these calls.
    pub(super) fn called_by(self, model: &dyn PromptEncoder) -> Self {
        let several = match model.takes_several_calls() {
            true => self.several,
            false => Several::FirstOnly,
        };
        Self { several, ..self }
    }

    /// The form of an answer that has to be a call, or whose calls have to keep to schemas.
    ///
    /// # Errors
    /// If the client asks for another form, too: an answer that is kept to that would be no call.
    pub(super) fn form(&self, other: Option<&AskedForm>) -> Result<Option<AskedForm>, ApiError> {
        let (param, chosen, otherwise): (_, Vec<&Tool>, _) = match &self.choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto if self.strict.is_empty() => {
                let other = other.filter(|it| it.is_response_format() && !self.tools.is_empty());
                return other.map_or(Ok(None), |other| Err(other.refused_beside("tools")));
            }
            ToolChoice::Auto => ("tools", self.tools.iter().collect(), OtherwiseText::Any),
            ToolChoice::Required => {
                let all = self.tools.iter().collect();
                ("tool_choice", all, OtherwiseText::None)
            }
            ToolChoice::Named(name) => {
                let tools = self.tools.iter().filter(|tool| tool.name == *name);
                ("tool_choice", tools.collect(), OtherwiseText::None)
            }
        };
        if let Some(other) = other {
            return Err(other.refused_beside(param));
        }
        let is_kept = |tool: &Tool| otherwise == OtherwiseText::None || self.is_strict(tool);
        let callable = chosen.into_iter().map(|tool| CallableTool {
            name: tool.name.clone(),
            parameters: match is_kept(tool) {
                true => tool.parameters.clone(),
                false => ANY_ARGUMENTS.to_owned(),
            },
            unkept: match self.is_strict(tool) {
                true => UnkeptRules::Refuse,
                false => UnkeptRules::LeaveOut,
            },
        });
        let most = match (&self.choice, self.several) {
            (ToolChoice::Named(_), _) | (_, Several::FirstOnly) => 1,
            (ToolChoice::None | ToolChoice::Auto | ToolChoice::Required, Several::All) => CALLS_MAX,
        };
        let form = AnswerForm::Calls(CallForm {
            tools: callable.collect(),
            most,
            otherwise,
        });
        Ok(Some(AskedForm::new(param, form)))
    }

    /// Checks that the answers of a model can be kept to `form`, which is [`form`](Self::form) or another.
    pub(super) fn check(
        &self,
        form: &AskedForm,
        model: &dyn PromptEncoder,
    ) -> Result<(), ApiError> {
        let Err(refused) = form.check(model) else {
            return Ok(());
        };
        // The parameters of one function are to blame, where they are.
        let AnswerForm::Calls(calls) = &form.form else {
            return Err(refused);
        };
        for tool in &calls.tools {
            let index = self.tools.iter().position(|known| known.name == tool.name);
            let param = format!("tools[{}].function.parameters", index.unwrap_or_default());
            let alone = AnswerForm::Calls(CallForm {
                tools: vec![tool.clone()],
                most: calls.most,
                otherwise: calls.otherwise,
            });
            AskedForm::new(&param, alone).check(model)?;
        }
        Err(refused)
    }

    fn is_strict(&self, tool: &Tool) -> bool {
        self.strict.contains(&tool.name)
    }
}

/// The name of a function: letters, digits, `_` and `-`, as OpenAI has it, and dots.
fn function_name(at: &str, function: &mut Fields<'_>) -> Result<String, ApiError> {
    let param = format!("{at}.name");
    let given = function.take("name").unwrap_or(RawValue::NULL);
    let is_letter = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    let fits = |name: &String| (1..=64).contains(&name.len()) && name.chars().all(is_letter);
    let wanted = "a name of 1 to 64 letters, digits, `_`, `-` and `.`";
    read(given)
        .filter(fits)
        .ok_or_else(|| mismatch(param, wanted, given))
}

/// The field `name` of what is at `at`, if it is given.
fn optional<T: DeserializeOwned>(
    at: &str,
    name: &str,
    wanted: &str,
    fields: &mut Fields<'_>,
) -> Result<Option<T>, ApiError> {
    let Some(given) = fields.take(name) else {
        return Ok(None);
    };
    let value = read(given).ok_or_else(|| mismatch(format!("{at}.{name}"), wanted, given))?;
    Ok(Some(value))
}

// === impl CallReading ===

impl CallReading {
    /// A parser for one answer.
    pub(super) fn parser(&self) -> CallParser {
        CallParser::new(self.syntax, Arc::clone(&self.names), self.several)
    }
}

/// The schemas of the fields that [`take`] takes.
pub(super) fn properties() -> Properties {
    let function_kind = json!({"type": "string", "const": "function"});
    let name = json!({
        "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9_.-]+$",
    });
    let function = object(
        &["name"],
        vec![
            ("name", name.clone()),
            ("description", json!({"type": "string"})),
            (
                "parameters",
                json!({"type": "object", "description": "A JSON schema."}),
            ),
            (
                "strict",
                json!({
                    "type": "boolean",
                    "description": "Keeps the arguments to the schema also where the model chooses.",
                }),
            ),
        ],
    );
    let tool = object(
        &["type", "function"],
        vec![
            ("type", function_kind.clone()),
            ("function", function.to_value()),
        ],
    );
    let of_name = object(&["name"], vec![("name", name)]);
    let named = object(
        &["type", "function"],
        vec![("type", function_kind), ("function", of_name.to_value())],
    );
    let choices = json!({"type": "string", "enum": ["none", "auto", "required"]});
    vec![
        (
            "tools",
            json!({
                "description": "Functions that the model may call, if its chat template knows tools.",
                "type": "array", "items": tool, "maxItems": TOOLS_MAX,
            }),
        ),
        (
            "tool_choice",
            json!({
                "description": "Whether the model has to call a function.",
                "anyOf": [choices, named],
            }),
        ),
        (
            "parallel_tool_calls",
            json!({"type": "boolean", "description": "Whether an answer may have several calls."}),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn taken(body: Value) -> Result<AskedTools, String> {
        let body = body.to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        take(&mut fields).map_err(|error| error.to_string())
    }

    fn weather() -> Value {
        json!({"type": "function", "function": {
            "name": "weather", "parameters": {"type": "object"}, "strict": true,
        }})
    }

    #[test]
    fn a_choice_says_who_is_told_and_what_the_answer_has_to_be() {
        for (choice, told, most, otherwise) in [
            (json!("none"), 0, None, OtherwiseText::None),
            (json!("auto"), 1, Some(8), OtherwiseText::Any),
            (Value::Null, 1, Some(8), OtherwiseText::Any),
            (json!("required"), 1, Some(8), OtherwiseText::None),
            (
                json!({"type": "function", "function": {"name": "weather"}}),
                1,
                Some(1),
                OtherwiseText::None,
            ),
        ] {
            let asked = taken(json!({"tools": [weather()], "tool_choice": choice})).unwrap();
            assert_eq!(asked.told().len(), told, "{choice}");
            let form = asked.form(None).unwrap().map(|asked| asked.form);
            let expected = most.map(|most| {
                AnswerForm::Calls(CallForm {
                    tools: vec![CallableTool {
                        name: "weather".to_owned(),
                        parameters: r#"{"type":"object"}"#.to_owned(),
                        unkept: UnkeptRules::Refuse,
                    }],
                    most,
                    otherwise,
                })
            });
            assert_eq!(form, expected, "{choice}");
        }
        // By itself the model is kept to the schema of none but a strict function.
        let loose = json!({"type": "function", "function": {"name": "now"}});
        let asked =
            |choice: Value| taken(json!({"tools": [loose, weather()], "tool_choice": choice}));
        for (choice, parameters) in [("auto", ANY_ARGUMENTS), ("required", NO_ARGUMENTS)] {
            let form = asked(json!(choice)).unwrap().form(None).unwrap();
            let Some(AnswerForm::Calls(calls)) = form.map(|asked| asked.form) else {
                panic!("{choice} has no form");
            };
            let schemas: Vec<&str> = calls.tools.iter().map(|tool| &*tool.parameters).collect();
            assert_eq!(schemas, [parameters, r#"{"type":"object"}"#], "{choice}");
            let unkept = calls.tools.iter().map(|tool| tool.unkept);
            let expected = [UnkeptRules::LeaveOut, UnkeptRules::Refuse];
            assert!(unkept.eq(expected), "{choice}");
        }
        let only_loose = taken(json!({"tools": [loose]})).unwrap();
        assert_eq!(only_loose.form(None).unwrap().map(|asked| asked.form), None);
        let one = taken(json!({
            "tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false,
        }));
        let form = one.unwrap().form(None).unwrap().map(|asked| asked.form);
        assert!(matches!(
            form,
            Some(AnswerForm::Calls(CallForm { most: 1, .. }))
        ));
    }

    #[test]
    fn the_form_of_an_answer_leaves_no_place_for_calls() {
        let of = |param: &str| AskedForm::new(param, AnswerForm::JsonObject);
        let loose = json!({"type": "function", "function": {"name": "now"}});
        let refused = |body: Value, param: &str| {
            let form = taken(body).unwrap().form(Some(&of(param)));
            form.err().map(|error| error.to_string())
        };
        let two = "`tools` and `response_format` ask for two forms; give one".to_owned();
        let may_call = json!({"tools": [loose]});
        assert_eq!(refused(may_call.clone(), "response_format"), Some(two));
        for (body, param) in [
            (may_call, "guided_json"),
            (
                json!({"tools": [loose], "tool_choice": "none"}),
                "response_format",
            ),
            (json!({"tools": []}), "response_format"),
        ] {
            assert_eq!(refused(body.clone(), param), None, "{body}");
        }
    }

    #[test]
    fn what_is_no_tool_is_refused_where_it_goes_wrong() {
        let function = |fields: Value| json!({"tools": [{"type": "function", "function": fields}]});
        let of_choice = |choice: Value| json!({"tools": [weather()], "tool_choice": choice});
        let choices = "`tool_choice` has to be `none`, `auto`, `required`, or an object that names a function";
        for (body, why) in [
            (
                json!({"tools": {}}),
                "`tools` has to be a list of up to 128 tools, not an object".to_owned(),
            ),
            (
                json!({"tools": [{"type": "web_search"}]}),
                "`tools[0]` has to be an object whose `type` is `function`, with a `function`, not an object"
                    .to_owned(),
            ),
            (
                function(json!({"name": "so so"})),
                "`tools[0].function.name` has to be a name of 1 to 64 letters, digits, `_`, `-` and `.`, not \
                 the text `so so`"
                    .to_owned(),
            ),
            (
                function(json!({"name": "a", "parameters": []})),
                "`tools[0].function.parameters` has to be a JSON schema, an object, not an empty list"
                    .to_owned(),
            ),
            (
                function(json!({"name": "a", "description": 1})),
                "`tools[0].function.description` has to be a text, not 1".to_owned(),
            ),
            (
                function(json!({"name": "a", "strict": 1})),
                "`tools[0].function.strict` has to be true or false, not 1".to_owned(),
            ),
            (
                json!({"tools": [weather(), weather()]}),
                "`tools[1].function.name`: there are two tools `weather`".to_owned(),
            ),
            (of_choice(json!("any")), format!("{choices}, not the text `any`")),
            (of_choice(json!({"type": "function"})), format!("{choices}, not an object")),
            (
                of_choice(json!({"type": "function", "function": {"name": "other"}})),
                "`tool_choice` names `other`, which is not in `tools`".to_owned(),
            ),
            (
                json!({"tool_choice": "required"}),
                "`tool_choice` wants a call, and there are no `tools`".to_owned(),
            ),
        ] {
            assert_eq!(taken(body), Err(why));
        }
    }
}
