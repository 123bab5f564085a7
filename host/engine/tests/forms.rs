//! Answers kept to a form, whatever the logits say.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use fastrand::Rng;
use pointsman_engine::sample::{Sampler, Tokens};
use pointsman_engine::test_util::demo_text;
use pointsman_executor::form::AnswerForm;
use pointsman_executor::job::Sampling;
use pointsman_executor::prompt::PromptEncoder as _;
use pointsman_executor::text::Detokenizer as _;
use serde_json::{Value, json};

const TOKENS_MAX: usize = 600;

fn row(rng: &mut Rng) -> Vec<f32> {
    let logit = |_| rng.f32() * 12.0;
    (0..demo_text().vocab_size()).map(logit).collect()
}

/// Generates an answer by random logits, and returns its tokens: it has ended by itself.
fn answer(form: &AnswerForm, seed: u64) -> Vec<u32> {
    let (text, mut rng) = (demo_text(), Rng::with_seed(seed));
    let mut matcher = text.begin_form(form, &[]).unwrap();
    let mut generated = Vec::new();
    while !matcher.is_complete() {
        assert!(generated.len() < TOKENS_MAX, "{form:?} does not end");
        let masked = matcher.mask(&row(&mut rng)).unwrap();
        let tokens = Tokens {
            prompt: &[],
            generated: &generated,
        };
        let sampling = Sampling {
            seed,
            ..Sampling::NEUTRAL
        };
        let token = Sampler::default().choose(&masked, &sampling, tokens);
        let token = token.unwrap();
        if text.eos().contains(&token) {
            break;
        }
        matcher.accept(token).unwrap();
        generated.push(token);
    }
    generated
}

fn text_of(tokens: &[u32]) -> String {
    demo_text().decode(tokens).unwrap()
}

/// Tells whether a JSON text has at most one space in a row, but for the indentation of lines and within strings.
fn is_spaced_sparingly(json: &str) -> bool {
    let between_strings = json.split('"').step_by(2);
    let mut lines = between_strings.flat_map(|part| part.split('\n'));
    lines.all(|line| !line.trim_start().contains("  ") && !line.trim().contains('\t'))
}

#[test]
fn an_answer_is_what_a_schema_describes() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "count": {"type": "integer", "minimum": 3, "maximum": 40},
            "kind": {"enum": ["fox", "crow"]},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["name", "count", "kind"],
        "additionalProperties": false,
    });
    let form = AnswerForm::JsonSchema(schema.to_string());
    for seed in 0..30 {
        let text = text_of(&answer(&form, seed));
        assert!(is_spaced_sparingly(&text), "{text:?}");
        let value: Value = serde_json::from_str(&text).unwrap();
        let count = value["count"].as_i64().unwrap();
        assert!((3..=40).contains(&count), "{text}");
        assert!(
            value["name"].as_str().unwrap().chars().count() <= 12,
            "{text}"
        );
        assert!(
            ["fox", "crow"].contains(&value["kind"].as_str().unwrap()),
            "{text}"
        );
        let known = |name: &String| ["name", "count", "kind", "tags"].contains(&name.as_str());
        assert!(value.as_object().unwrap().keys().all(known), "{text}");
        // In the order of the schema.
        let places = ["\"name\"", "\"count\"", "\"kind\""].map(|name| text.find(name));
        assert!(places.is_sorted(), "{text}");
    }
}

/// A union as Pydantic describes it.
#[test]
fn an_answer_is_one_of_several_objects() {
    let of_kind = |kind: &str| {
        json!({
            "type": "object", "properties": {"kind": {"const": kind, "type": "string"}},
            "required": ["kind"], "additionalProperties": false,
        })
    };
    let schema = json!({
        "$defs": {"Cat": of_kind("cat"), "Dog": of_kind("dog")},
        "discriminator": {
            "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind",
        },
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    });
    let form = AnswerForm::JsonSchema(schema.to_string());
    let kinds = (0..20).map(|seed| {
        let value: Value = serde_json::from_str(&text_of(&answer(&form, seed))).unwrap();
        value["kind"].as_str().unwrap().to_owned()
    });
    let kinds: std::collections::BTreeSet<String> = kinds.collect();
    assert!(
        kinds.iter().map(String::as_str).eq(["cat", "dog"]),
        "{kinds:?}"
    );
}

#[test]
fn an_answer_is_a_choice_a_match_or_a_sentence_of_a_language() {
    let choices = ["yes", "no", "\"perhaps\"\n", "größer"];
    let choice = AnswerForm::Choice(choices.map(str::to_owned).to_vec());
    let regex = AnswerForm::Regex("[a-c]{2,4}-[0-9]{3}".to_owned());
    let lark = AnswerForm::Lark("start: \"(\" start \")\" | \"x\"".to_owned());
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let chosen = text_of(&answer(&choice, seed));
        assert!(choices.contains(&&*chosen), "{chosen}");
        seen.insert(chosen);
        let text = text_of(&answer(&regex, seed));
        let (letters, digits) = text.split_once('-').unwrap();
        assert!(
            (2..=4).contains(&letters.len()) && digits.len() == 3,
            "{text}"
        );
        assert!(
            letters.bytes().all(|byte| (b'a'..=b'c').contains(&byte)),
            "{text}"
        );
        assert!(digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        let text = text_of(&answer(&lark, seed));
        let depth = text.len() / 2;
        assert_eq!(text, format!("{}x{}", "(".repeat(depth), ")".repeat(depth)));
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn an_object_of_any_kind_is_one() {
    let mut whole = 0;
    for seed in 0..20 {
        let (text, mut rng) = (demo_text(), Rng::with_seed(seed));
        let mut matcher = text.begin_form(&AnswerForm::JsonObject, &[]).unwrap();
        let mut generated = Vec::new();
        while !matcher.is_complete() && generated.len() < 200 {
            let masked = matcher.mask(&row(&mut rng)).unwrap();
            let tokens = Tokens {
                prompt: &[],
                generated: &generated,
            };
            let token = Sampler::default().choose(&masked, &Sampling::GREEDY, tokens);
            matcher.accept(token.unwrap()).unwrap();
            generated.push(token.unwrap());
        }
        let text = text_of(&generated);
        assert!(text.trim_start().starts_with('{'), "{text}");
        if matcher.is_complete() {
            whole += 1;
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(value.is_object(), "{text}");
        }
    }
    assert!(whole > 0, "none has come to its end");
}

#[test]
fn an_answer_goes_on_from_any_token_as_if_it_had_never_stopped() {
    let schema = json!({
        "type": "array", "minItems": 2, "maxItems": 3,
        "items": {"type": "object", "properties": {"word": {"type": "string", "maxLength": 5}}, "required": ["word"]},
    });
    let form = AnswerForm::JsonSchema(schema.to_string());
    let tokens = answer(&form, 5);
    let (text, logits) = (demo_text(), row(&mut Rng::with_seed(1)));
    let mut uninterrupted = text.begin_form(&form, &[]).unwrap();
    for cut in 0..tokens.len() {
        let mut resumed = text.begin_form(&form, &tokens[..cut]).unwrap();
        let expected = uninterrupted.mask(&logits).unwrap();
        assert_eq!(
            resumed.mask(&logits).unwrap(),
            expected,
            "after {cut} tokens"
        );
        uninterrupted.accept(tokens[cut]).unwrap();
    }
}

#[test]
fn what_is_no_form_is_refused_with_the_reason() {
    let refusal = |form: AnswerForm| demo_text().check_form(&form).unwrap_err();
    let schema = |schema: Value| refusal(AnswerForm::JsonSchema(schema.to_string()));
    assert!(schema(json!({"type": "thing"})).contains("thing"));
    assert!(schema(json!({"$ref": "https://example.org/schema"})).contains("example.org"));
    let impossible = json!({"type": "integer", "minimum": 5, "maximum": 4});
    assert!(schema(impossible).contains("nsatisfiable"));
    assert!(refusal(AnswerForm::JsonSchema("{".to_owned())).contains("no JSON"));
    assert!(!refusal(AnswerForm::Regex("(".to_owned())).is_empty());
    assert!(!refusal(AnswerForm::Lark("begin: \"a\"".to_owned())).is_empty());
}
