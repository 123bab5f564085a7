//! The form of an answer as a mask over the tokens that may come next.
//!
//! A form is compiled once and kept: HTTP, which compiles it to see whether it can be kept to, leaves it to
//! the step loop, which would otherwise stand still meanwhile. Its bounds are those of [`llguidance`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use pointsman_executor::form::AnswerForm;
use serde_json::{Value, json};

use super::ModelText;
use super::calls::CallWriting;

/// Compiled forms that are kept, the latest ones.
const KEPT_MAX: usize = 32;

/// The forms of a model's answers.
pub(super) struct Forms {
    factory: ParserFactory,
    calls: CallWriting,
    kept: Mutex<VecDeque<(AnswerForm, Arc<Matcher>)>>,
}

/// A form that an answer has been kept to so far.
pub struct FormMatcher(Matcher);

/// The reason why an answer cannot be kept to a form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormError(pub String);

impl Forms {
    pub(super) fn new(text: &ModelText) -> Result<Self, FormError> {
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie(text)));
        let factory = ParserFactory::new_simple(&environment);
        let mut factory = factory.map_err(refused)?;
        factory.quiet();
        // Errors are for the client: the state of the parser is not.
        factory.limits_mut().verbose_errors = false;
        Ok(Self {
            factory,
            calls: text.calls.clone(),
            kept: Mutex::default(),
        })
    }

    /// Begins an answer of this form, after the tokens of it that there are already.
    pub(super) fn begin(
        &self,
        form: &AnswerForm,
        generated: &[u32],
    ) -> Result<FormMatcher, FormError> {
        let compiled = self.compiled(form)?;
        let mut matcher = FormMatcher(compiled.deep_clone());
        for token in generated {
            matcher.accept(*token)?;
        }
        Ok(matcher)
    }

    /// Compiles a form, unless it is kept.
    pub(super) fn compiled(&self, form: &AnswerForm) -> Result<Arc<Matcher>, FormError> {
        if let Some(found) = self.kept(form) {
            return Ok(found);
        }
        let parser = self.factory.create_parser(self.grammar(form)?);
        let matcher = Matcher::new(parser);
        if let Some(why) = matcher.get_error() {
            let told = match matches!(form, AnswerForm::Calls(_)) {
                true => of_schema(&why).to_owned(),
                false => why,
            };
            return Err(FormError(told));
        }
        let matcher = Arc::new(matcher);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT_MAX - 1);
        kept.push_front((form.clone(), Arc::clone(&matcher)));
        Ok(matcher)
    }

    fn grammar(&self, form: &AnswerForm) -> Result<TopLevelGrammar, FormError> {
        Ok(match form {
            AnswerForm::JsonObject => {
                TopLevelGrammar::from_json_schema(schema(r#"{"type": "object"}"#)?)
            }
            AnswerForm::JsonSchema(text) => TopLevelGrammar::from_json_schema(schema(text)?),
            AnswerForm::Regex(regex) => TopLevelGrammar::from_regex(regex),
            AnswerForm::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            AnswerForm::Calls(calls) => TopLevelGrammar::from_lark(self.calls.grammar(calls)?),
            AnswerForm::Choice(texts) => {
                // A text is written in Lark as in JSON.
                let texts = texts.iter().map(|text| json!(text).to_string());
                let texts: Vec<String> = texts.collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
        })
    }

    fn kept(&self, form: &AnswerForm) -> Option<Arc<Matcher>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().find(|(known, _)| known == form);
        found.map(|(_, matcher)| Arc::clone(matcher))
    }
}

impl FormMatcher {
    /// Returns a row of logits in which only tokens are possible that the form allows.
    ///
    /// # Errors
    /// If it takes too long to tell which.
    pub fn mask(&mut self, logits: &[f32]) -> Result<Vec<f32>, FormError> {
        let allowed = self.0.compute_mask_or_eos().map_err(refused)?;
        let mut masked = vec![f32::NEG_INFINITY; logits.len()];
        for (token, (masked, logit)) in (0..).zip(masked.iter_mut().zip(logits)) {
            if allowed.is_allowed(token) {
                *masked = *logit;
            }
        }
        Ok(masked)
    }

    /// Notes a token of the answer.
    ///
    /// # Errors
    /// If the form does not allow it.
    pub fn accept(&mut self, token: u32) -> Result<(), FormError> {
        self.0.consume_token(token).map_err(refused)
    }

    /// Returns true if nothing may follow.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.is_stopped()
    }
}

impl fmt::Debug for FormMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormMatcher").finish_non_exhaustive()
    }
}

/// White space between the parts of a JSON text: a space, or the next line with its indentation. With any
/// white space, a model that repeats itself would fill an answer with it.
const JSON_SPACE: &str = r"\x20|\x0D?\x0A[\x20\x09]{0,32}";

/// A schema whose white space is [`JSON_SPACE`].
fn schema(text: &str) -> Result<Value, FormError> {
    schema_with(
        text,
        json!({"whitespace_pattern": JSON_SPACE, "coerce_one_of": true}),
    )
}

/// A schema with options of its compiler.
pub(super) fn schema_with(text: &str, options: Value) -> Result<Value, FormError> {
    let parsed = serde_json::from_str(text);
    let mut schema: Value =
        parsed.map_err(|error| FormError(format!("the schema is no JSON: {error}")))?;
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert(options);
    }
    Ok(schema)
}

/// The reason why a schema within the grammar of calls is refused, without the place in that, which no client wrote.
fn of_schema(why: &str) -> &str {
    let line = why.lines().next().unwrap_or_default();
    let cause = line.split_once("JSON schema: ");
    cause.map_or(line, |(_, cause)| cause)
}

fn refused(error: impl fmt::Display) -> FormError {
    FormError(format!("{error:#}"))
}

/// All tokens by their bytes. What is for the model only is marked: no form means it by its text.
fn trie(text: &ModelText) -> TokTrie {
    use pointsman_executor::text::Detokenizer as _;
    let size = u32::try_from(text.vocab_size()).expect("ids have 32 bits");
    let bytes = |id| {
        let bytes = text.token_bytes(id);
        if text.is_special(id) && !bytes.is_empty() {
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat();
        }
        bytes
    };
    let words: Vec<Vec<u8>> = (0..size).map(bytes).collect();
    let eos: Vec<u32> = text.eos().iter().copied().filter(|id| *id < size).collect();
    let first = eos.first().copied();
    let info = TokRxInfo::new(size, first.unwrap_or(llguidance::toktrie::INVALID_TOKEN));
    let trie = TokTrie::from(&info, &words);
    if eos.len() > 1 {
        return trie.with_eos_tokens(&eos);
    }
    trie
}
