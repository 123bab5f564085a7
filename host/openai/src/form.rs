//! The form that a client wants its answer to have: OpenAI's `response_format`, and the fields by which vLLM
//! takes other forms.

use pointsman_executor::form::AnswerForm;
use pointsman_executor::prompt::PromptEncoder;
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, Properties, mismatch, object, read};
use serde_json::json;
use serde_json::value::RawValue;

use super::params::flag;

/// A form, and the field that asks for it.
#[derive(Debug, PartialEq)]
pub(super) struct AskedForm {
    param: String,
    pub(super) form: AnswerForm,
}

/// OpenAI's own field.
const RESPONSE_FORMAT: &str = "response_format";

/// The most bytes of a schema, an expression or a grammar, and of all texts to choose from.
const FORM_BYTES_MAX: usize = 64 << 10;

/// Reads a form from the value of a field; absent: the value asks for none.
type ReadForm = fn(&str, &RawValue) -> Result<Option<AnswerForm>, ApiError>;

/// The fields that ask for a form, each with its reader.
const FIELDS: [(&str, ReadForm); 6] = [
    (RESPONSE_FORMAT, response_format),
    ("structured_outputs", structured_outputs),
    ("guided_json", json_form),
    ("guided_regex", regex_form),
    ("guided_choice", choice_form),
    ("guided_grammar", grammar_form),
];

impl AskedForm {
    /// A form that the field `param` asks for.
    pub(super) fn new(param: &str, form: AnswerForm) -> Self {
        Self {
            param: param.to_owned(),
            form,
        }
    }

    /// True for a form of OpenAI's own field, which is meant for answers that are no calls. vLLM's fields say what the
    /// whole answer is.
    pub(super) fn is_response_format(&self) -> bool {
        self.param == RESPONSE_FORMAT
    }

    /// The refusal of a second form, which the field `param` asks for.
    pub(super) fn refused_beside(&self, param: &str) -> ApiError {
        let other = &self.param;
        let message = format!("`{param}` and `{other}` ask for two forms; give one");
        ApiError::field(param, message)
    }

    /// Checks that the answers of a model can be kept to the form.
    pub(super) fn check(&self, text: &dyn PromptEncoder) -> Result<(), ApiError> {
        text.check_form(&self.form).map_err(|why| {
            let message = format!(
                "`{}` is nothing that an answer can be kept to: {why}",
                self.param
            );
            ApiError::field(self.param.clone(), message)
        })
    }
}

/// The schemas of the fields that [`take`] takes.
pub(super) fn properties() -> Properties {
    let kind = |kind: &str| json!({"type": "string", "const": kind});
    let of_kind = |name: &str| object(&["type"], vec![("type", kind(name))]).to_value();
    let text = json!({"type": "string", "minLength": 1, "maxLength": FORM_BYTES_MAX});
    let schema = json!({"anyOf": [{"type": "object"}, text]});
    let texts = json!({"type": "array", "items": {"type": "string"}, "minItems": 1});
    let own_schema = object(
        &["schema"],
        vec![
            ("name", json!({"type": "string"})),
            ("description", json!({"type": "string"})),
            ("schema", json!({"type": "object"})),
            ("strict", json!({"type": "boolean"})),
        ],
    );
    let by_schema = object(
        &["type", "json_schema"],
        vec![
            ("type", kind("json_schema")),
            ("json_schema", own_schema.to_value()),
        ],
    );
    let kinds = [
        of_kind("text"),
        of_kind("json_object"),
        by_schema.to_value(),
    ];
    let one_of = object(
        &[],
        vec![
            ("json", schema.clone()),
            ("json_object", json!({"type": "boolean"})),
            ("regex", text.clone()),
            ("choice", texts.clone()),
            ("grammar", text.clone()),
        ],
    );
    vec![
        (RESPONSE_FORMAT, json!({"anyOf": kinds})),
        (
            "structured_outputs",
            described("One form of these, as vLLM takes it.", one_of.to_value()),
        ),
        ("guided_json", described("A JSON schema.", schema)),
        ("guided_regex", text.clone()),
        ("guided_choice", texts),
        ("guided_grammar", described("A grammar in Lark.", text)),
    ]
}

fn described(about: &str, mut schema: serde_json::Value) -> serde_json::Value {
    schema["description"] = json!(about);
    schema
}

/// Takes the form that a request asks for.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<AskedForm>, ApiError> {
    let mut asked: Option<AskedForm> = None;
    for (param, read) in FIELDS {
        let Some(value) = fields.take(param) else {
            continue;
        };
        let Some(form) = read(param, value)? else {
            continue;
        };
        if let Some(other) = asked {
            return Err(other.refused_beside(param));
        }
        let param = param.to_owned();
        asked = Some(AskedForm { param, form });
    }
    Ok(asked)
}

fn response_format(param: &str, value: &RawValue) -> Result<Option<AnswerForm>, ApiError> {
    let wanted = "an object whose `type` is `text`, `json_object` or `json_schema`";
    let wrong = || mismatch(param.to_owned(), wanted, value);
    let mut fields =
        Fields::of(value, |name| format!("response_format.{name}"))?.ok_or_else(wrong)?;
    let kind = fields.take("type").and_then(read::<String>);
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(AnswerForm::JsonObject)),
        Some("json_schema") => {
            let given = fields.take("json_schema").unwrap_or(RawValue::NULL);
            let named = |name: &str| format!("response_format.json_schema.{name}");
            let param = "response_format.json_schema";
            let mut fields = Fields::of(given, named)?
                .ok_or_else(|| mismatch(param.to_owned(), "an object with a `schema`", given))?;
            let schema = fields.take("schema").unwrap_or(RawValue::NULL);
            json_form(&format!("{param}.schema"), schema)
        }
        _ => Err(wrong()),
    }
}

fn structured_outputs(param: &str, value: &RawValue) -> Result<Option<AnswerForm>, ApiError> {
    let wanted = "an object with one of `json`, `json_object`, `regex`, `choice` and `grammar`";
    let wrong = || mismatch(param.to_owned(), wanted, value);
    let mut fields =
        Fields::of(value, |name| format!("structured_outputs.{name}"))?.ok_or_else(wrong)?;
    let readers: [(&str, ReadForm); 4] = [
        ("json", json_form),
        ("regex", regex_form),
        ("choice", choice_form),
        ("grammar", grammar_form),
    ];
    let mut forms = Vec::new();
    if flag(&mut fields, "json_object")? {
        forms.push(AnswerForm::JsonObject);
    }
    for (name, read) in readers {
        if let Some(value) = fields.take(name) {
            forms.extend(read(&format!("{param}.{name}"), value)?);
        }
    }
    match forms.len() {
        1 => Ok(forms.pop()),
        _ => Err(wrong()),
    }
}

/// A schema: as an object, or as the text of one.
fn json_form(param: &str, value: &RawValue) -> Result<Option<AnswerForm>, ApiError> {
    let wanted = "a JSON schema, an object";
    let schema = match value.get().starts_with('{') {
        true => Some(value.get().to_owned()),
        false => read::<String>(value),
    };
    let schema = schema.filter(|schema| schema.trim_ascii_start().starts_with('{'));
    let schema = schema.ok_or_else(|| mismatch(param.to_owned(), wanted, value))?;
    bounded(param, schema.len())?;
    Ok(Some(AnswerForm::JsonSchema(schema)))
}

fn regex_form(param: &str, value: &RawValue) -> Result<Option<AnswerForm>, ApiError> {
    let regex = text(param, "a regular expression", value)?;
    Ok(Some(AnswerForm::Regex(regex)))
}

fn grammar_form(param: &str, value: &RawValue) -> Result<Option<AnswerForm>, ApiError> {
    let grammar = text(param, "a grammar in Lark", value)?;
    Ok(Some(AnswerForm::Lark(grammar)))
}

fn choice_form(param: &str, value: &RawValue) -> Result<Option<AnswerForm>, ApiError> {
    let texts = read::<Vec<String>>(value).filter(|texts| !texts.is_empty());
    let texts =
        texts.ok_or_else(|| mismatch(param.to_owned(), "a list of at least one text", value))?;
    bounded(param, texts.iter().map(String::len).sum())?;
    Ok(Some(AnswerForm::Choice(texts)))
}

fn text(param: &str, wanted: &str, value: &RawValue) -> Result<String, ApiError> {
    let text = read::<String>(value).filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| mismatch(param.to_owned(), wanted, value))?;
    bounded(param, text.len())?;
    Ok(text)
}

fn bounded(param: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= FORM_BYTES_MAX {
        return Ok(());
    }
    let message = format!("`{param}` has {bytes} bytes, and may have {FORM_BYTES_MAX}");
    Err(ApiError::field(param, message))
}
