//! Chat templates: a conversation written as the model was trained to read it.
//!
//! The template language is Jinja as transformers sets it up; [`minijinja`] runs it. A template
//! comes with the model, so it is limited in steps and depth.

use std::error::Error as _;
use std::iter;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context, filters};
use pointsman_executor::prompt::{ChatMessage, PromptError};
use pointsman_executor::tools::Tool;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::date::strftime;
use super::python_json::to_json;

/// `chat_template` of `tokenizer_config.json`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TemplateSource {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedTemplate {
    name: String,
    template: String,
}

impl TemplateSource {
    /// Returns the template for plain conversations, and the one for those with tools, if that is another.
    pub(super) fn sources(self) -> (Option<String>, Option<String>) {
        match self {
            TemplateSource::One(template) => (Some(template), None),
            TemplateSource::Named(list) => {
                let of_name = |name: &str| {
                    let found = list.iter().find(|named| named.name == name);
                    found.map(|named| named.template.clone())
                };
                (of_name("default"), of_name("tool_use"))
            }
        }
    }
}

/// Special tokens by their names in templates.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct SpecialTokens {
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token: Option<TokenText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eos_token: Option<TokenText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad_token: Option<TokenText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unk_token: Option<TokenText>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(from = "TokenForm")]
struct TokenText(String);

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenForm {
    Plain(String),
    Described { content: String },
}

impl From<TokenForm> for TokenText {
    fn from(form: TokenForm) -> Self {
        match form {
            TokenForm::Plain(text) | TokenForm::Described { content: text } => Self(text),
        }
    }
}

impl SpecialTokens {
    /// Returns the text of the beginning-of-sequence token.
    pub(super) fn bos(&self) -> Option<&str> {
        self.bos_token.as_ref().map(|token| token.0.as_str())
    }

    /// Returns the text of the end-of-sequence token.
    pub(super) fn eos(&self) -> Option<&str> {
        self.eos_token.as_ref().map(|token| token.0.as_str())
    }
}

/// A compiled template.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    /// A map of special tokens.
    special: Value,
    source: String,
}

/// An error that a template raises by `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

const NAME: &str = "chat";
/// Most instructions of a template; a conversation of a thousand messages takes some ten thousand.
const FUEL: u64 = 4_000_000;
const RECURSION_MAX: usize = 100;

impl ChatTemplate {
    pub(super) fn compile(source: String, special: &SpecialTokens) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_filter("items", items);
        environment.add_function("raise_exception", |why: String| -> Result<Value, Error> {
            let error = Error::new(ErrorKind::InvalidOperation, why.clone());
            Err(error.with_source(Raised(why)))
        });
        environment.add_template_owned(NAME, without_generation(&source))?;
        Ok(Self {
            environment,
            special: Value::from(Serde(special)),
            source,
        })
    }

    /// The template as it is written.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Returns true if the template asks for tools.
    pub(super) fn has_tools(&self) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(false).contains("tools"))
    }

    pub(super) fn with_clock(mut self, now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let written = move |format: &str| -> Result<String, Error> {
            strftime(format, now()).map_err(|letter| {
                let why = format!("strftime_now knows no %{letter}");
                Error::new(ErrorKind::InvalidOperation, why)
            })
        };
        self.environment.add_function("strftime_now", written);
        self
    }

    /// Renders `messages` as text, up to where the model's answer begins, with the tools that it may call. A
    /// message without a text is told as none; a template that fails then is told an empty text, as Qwen 3's is. Tools
    /// are told as they are written; a template that fails on them is told of empty descriptions and parameters where
    /// they have none, as that of Hermes 3 is.
    pub(super) fn render(
        &self,
        messages: &[ChatMessage],
        tools: &[Tool],
    ) -> Result<String, PromptError> {
        let rendered = self.render_with_texts(messages, tools);
        if rendered.is_err() && !tools.is_empty() {
            return self.render_with_texts(messages, &in_full(tools));
        }
        rendered
    }

    fn render_with_texts(
        &self,
        messages: &[ChatMessage],
        tools: &[Tool],
    ) -> Result<String, PromptError> {
        let rendered = self.render_as_they_are(messages, tools);
        if rendered.is_err() && messages.iter().any(|message| message.content.is_none()) {
            return self.render_as_they_are(&with_texts(messages), tools);
        }
        rendered
    }

    fn render_as_they_are(
        &self,
        messages: &[ChatMessage],
        tools: &[Tool],
    ) -> Result<String, PromptError> {
        let definitions: Vec<_> = tools.iter().map(|tool| json(&tool.definition)).collect();
        let told: Vec<_> = messages.iter().map(told).collect();
        let context = context! {
            messages => told,
            add_generation_prompt => true,
            // Templates tell none from not defined, and from an empty list.
            tools => (!definitions.is_empty()).then_some(definitions),
            documents => (),
            ..self.special.clone()
        };
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(context));
        rendered.map_err(|error| match raised(&error) {
            Some(why) => PromptError::Refused(why),
            None => PromptError::Template(Box::new(error)),
        })
    }
}

/// A template whose blocks around what an assistant said, which transformers has for training, are those of a condition
/// that always holds.
fn without_generation(source: &str) -> String {
    let mut blocks = source.split("{%");
    let mut written = blocks.next().unwrap_or_default().to_owned();
    for block in blocks {
        let (inside, after) = block.split_at(block.find("%}").unwrap_or(block.len()));
        let plain = match inside.trim_matches(|c: char| c.is_whitespace() || "-+".contains(c)) {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.to_owned(),
        };
        written.extend(["{%", &plain, after]);
    }
    written
}

/// Messages that all have a text, if only an empty one.
fn with_texts(messages: &[ChatMessage]) -> Vec<ChatMessage> {
    let messages = messages.iter().cloned().map(|message| ChatMessage {
        content: Some(message.content.unwrap_or_default()),
        ..message
    });
    messages.collect()
}

/// Tools whose functions all have a description, and parameters with properties, if only empty ones.
fn in_full(tools: &[Tool]) -> Vec<Tool> {
    let tools = tools.iter().cloned().map(|tool| Tool {
        definition: definition_in_full(&tool.definition).unwrap_or(tool.definition),
        ..tool
    });
    tools.collect()
}

/// A tool's definition with what its function leaves out; absent: it has no function.
fn definition_in_full(definition: &str) -> Option<String> {
    let mut definition: Json = serde_json::from_str(definition).ok()?;
    let function = definition.get_mut("function")?.as_object_mut()?;
    fill(function, "description", serde_json::json!(""));
    let parameters = fill(
        function,
        "parameters",
        serde_json::json!({"type": "object"}),
    );
    if let Some(parameters) = parameters.as_object_mut() {
        fill(parameters, "properties", serde_json::json!({}));
    }
    Some(definition.to_string())
}

/// Gives a key this value, if it has none, and returns its value.
fn fill<'o>(object: &'o mut Map<String, Json>, key: &str, value: Json) -> &'o mut Json {
    let given = object.entry(key).or_insert(Json::Null);
    if given.is_null() {
        *given = value;
    }
    given
}

/// The pairs of a map; of what is not defined none, as in Python's Jinja.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(iter::empty::<Value>().collect());
    }
    filters::items(value)
}

/// A message as templates are told it: the arguments of its calls are values.
fn told(message: &ChatMessage) -> Value {
    let calls = message.tool_calls.iter().map(|call| {
        let function = context! {
            name => &call.function.name,
            arguments => json(&call.function.arguments),
        };
        context! { function, ..Value::from(Serde(call)) }
    });
    match message.tool_calls.is_empty() {
        true => Value::from(Serde(message)),
        false => context! {
            tool_calls => calls.collect::<Vec<_>>(),
            ..Value::from(Serde(message))
        },
    }
}

/// A value that is written in JSON, with keys in their order; a text that is no JSON is itself.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// Returns the words of `raise_exception`, if that caused the error.
fn raised(error: &Error) -> Option<String> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(Raised(why)) = error.downcast_ref() {
            return Some(why.clone());
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, messages: &[(&str, &str)]) -> Result<String, PromptError> {
        let special = r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"}"#;
        let special = serde_json::from_str(special).unwrap();
        let template = ChatTemplate::compile(template.to_owned(), &special).unwrap();
        let messages = messages
            .iter()
            .map(|(role, text)| ChatMessage::new(*role, *text));
        let messages: Vec<ChatMessage> = messages.collect();
        template.with_clock(|| 1_735_689_599).render(&messages, &[])
    }

    #[track_caller]
    fn check(template: &str, expected: &str) {
        let messages = [("system", "Be brief."), ("user", "Say \"<3 & it's\".")];
        assert_eq!(render(template, &messages).unwrap(), expected);
    }

    #[test]
    fn blocks_take_their_line_with_them() {
        check(
            "{{ bos_token }}\n{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\nend\n",
            "<s>\nsystem\nuser\nend",
        );
    }

    #[test]
    fn knows_what_transformers_defines_and_what_it_does_not() {
        check(
            "{{ eos_token }} {{ pad_token is defined }} {{ tools is none }} {{ documents is none }}",
            "</s> False True True",
        );
        check(
            "{{ custom_option is defined }} {{ add_generation_prompt }}",
            "False True",
        );
    }

    #[test]
    fn what_is_marked_for_training_is_written_as_it_is() {
        let message = "{% generation %}{{ m.role }}{%- endgeneration -%} !{% endfor %}";
        check(
            &format!("{{% for m in messages %}}{message}"),
            "system!user!",
        );
    }

    #[test]
    fn python_methods_and_json_are_there() {
        check(
            "{{ messages[0]['content'].upper().strip('.') }}",
            "BE BRIEF",
        );
        check(
            r"{{ messages[1].content | tojson }}",
            r#""Say \"<3 & it's\".""#,
        );
        check(
            "{{ {'a': [1, 2], 'b': none} | tojson }}",
            r#"{"a": [1, 2], "b": null}"#,
        );
    }

    #[test]
    fn what_is_not_defined_has_no_items() {
        check("{% for k, v in nothing|items %}x{% endfor %}", "");
        check(
            "{% for k, v in {'a': 1}|items %}{{ k }}={{ v }}{% endfor %}",
            "a=1",
        );
    }

    /// Renders a template that is told of the function `roll`.
    fn render_tool(template: &str, function: &str) -> Result<String, PromptError> {
        let template = ChatTemplate::compile(template.to_owned(), &SpecialTokens::default());
        let tool = Tool {
            name: "roll".to_owned(),
            definition: format!(r#"{{"type": "function", "function": {function}}}"#),
            parameters: "{}".to_owned(),
        };
        template.unwrap().render(&[], &[tool])
    }

    #[test]
    fn a_template_that_fails_on_what_a_function_leaves_out_is_told_that_it_is_empty() {
        let (name_only, hermes) = (
            r#"{"name": "roll"}"#,
            "{%- for tool in tools %}{%- set tool = tool.function %}{{- tool.name }}(\
             {%- for name, field in tool.parameters.properties|items %}{{- name }}{%- endfor %})\
             {{- ' - ' + tool.description }}\
             {%- if tool.parameters.properties | length == 0 %}; no parameters{%- endif %}{%- endfor %}",
        );
        for (template, function, expected) in [
            (hermes, name_only, "roll() - ; no parameters"),
            (
                hermes,
                r#"{"name": "roll", "description": "Rolls.", "parameters": {"type": "object"}}"#,
                "roll() - Rolls.; no parameters",
            ),
            (
                hermes,
                r#"{"name": "roll", "description": null, "parameters": {}}"#,
                "roll() - ; no parameters",
            ),
            ("{{ tools[0].function.description + '' }}", name_only, ""),
            // It does not fail, and is told what the client wrote.
            ("{{ tools[0].function | tojson }}", name_only, name_only),
        ] {
            let rendered = render_tool(template, function).unwrap();
            assert_eq!(rendered, expected, "{function}");
        }
        let failed = render_tool("{{ tools[0].function.colour + '' }}", name_only).unwrap_err();
        let PromptError::Template(cause) = &failed else {
            panic!("{failed:?}");
        };
        let cause = cause.to_string();
        assert!(
            cause.starts_with("invalid operation: tried to use +"),
            "{cause}"
        );
        assert_eq!(cause.lines().count(), 1, "{cause}");
    }

    #[test]
    fn the_date_is_what_the_host_says() {
        check("{{ strftime_now('%d %b %Y') }}", "31 Dec 2024");
        let without = ChatTemplate::compile(
            "{{ strftime_now is defined }}".to_owned(),
            &SpecialTokens::default(),
        );
        assert_eq!(without.unwrap().render(&[], &[]).unwrap(), "False");
    }

    #[test]
    fn what_a_template_raises_is_handed_on_word_by_word() {
        let text = "{% macro check() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ check() }}";
        let refused = render(text, &[]).unwrap_err();
        assert!(matches!(refused, PromptError::Refused(why) if why == "roles must alternate"));
        let failed = render("{{ strftime_now('%Q') }}", &[]).unwrap_err();
        assert!(matches!(failed, PromptError::Template(_)), "{failed:?}");
    }

    #[test]
    fn a_template_that_runs_on_is_stopped() {
        let long = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        let deep = "{% macro deeper() %}{{ deeper() }}{% endmacro %}{{ deeper() }}";
        for template in [long, deep] {
            let stopped = render(template, &[]).unwrap_err();
            assert!(matches!(stopped, PromptError::Template(_)), "{stopped:?}");
        }
    }
}
