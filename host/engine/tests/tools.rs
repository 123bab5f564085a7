//! Tools in prompts, and answers kept to calls of them, in each way in which models write calls.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fs;

use fastrand::Rng;
use pointsman_engine::sample::{Sampler, Tokens};
use pointsman_engine::test_util::texts::model;
use pointsman_executor::form::AnswerForm;
use pointsman_executor::job::Sampling;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _, PromptError};
use pointsman_executor::text::{Decoded, Detokenizer as _, TextStream};
use pointsman_executor::tools::{
    CallForm, CallSyntax, CallableTool, CalledFunction, NoTools, OtherwiseText, Tool, ToolCall,
    ToolKind, UnkeptRules,
};
use pointsman_model::test_util::models::demo_folder;
use pointsman_text::ModelText;
use serde_json::{Value, json};

/// Templates that tell of tools, by the way in which their models write calls.
const TEMPLATES: [(CallSyntax, &str); 4] = [
    (
        CallSyntax::Tags,
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
         {% for m in messages %}{{ m.role }}:{{ m.content }}\
         {% for c in m.tool_calls %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}\
         {{ m.tool_call_id }};{% endfor %}",
    ),
    (
        CallSyntax::MarkedList,
        "{% if tools %}{{ tools | tojson }}{% endif %}[TOOL_CALLS]",
    ),
    (
        CallSyntax::MarkedName,
        "{% if tools %}{{ tools | tojson }}{% endif %}[TOOL_CALLS][ARGS]",
    ),
    (
        CallSyntax::Bare,
        "{% if tools %}{{ tools | tojson }}{% endif %}<|python_tag|>ipython",
    ),
];

/// The demo model's text, with this template and with marks that are special tokens.
fn text(template: &str, special: &[&str]) -> ModelText {
    let read = |name: &str| fs::read_to_string(demo_folder().join(name)).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for (id, mark) in (800..).zip(special) {
        added.push(json!({
            "id": id, "content": mark, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        }));
    }
    let mut config: Value = serde_json::from_str(&read("tokenizer_config.json")).unwrap();
    config["chat_template"] = json!(template);
    let files = [
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", config.to_string()),
    ];
    model(&files).unwrap()
}

fn tools() -> Vec<(&'static str, Value)> {
    let add = json!({
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": [1, 2]}},
        "required": ["a", "b"], "additionalProperties": false,
    });
    let greet = json!({
        "$defs": {"Name": {"type": "string", "maxLength": 8}, "Nobody": {"type": "null"}},
        "type": "object",
        "properties": {"who": {"oneOf": [{"$ref": "#/$defs/Name"}, {"$ref": "#/$defs/Nobody"}]}},
        "required": ["who"], "additionalProperties": false,
    });
    vec![("add", add), ("greet.people", greet)]
}

fn calls(most: u32, otherwise: OtherwiseText) -> AnswerForm {
    let tools = tools().into_iter();
    let tools = tools.map(|(name, schema)| CallableTool {
        name: name.to_owned(),
        parameters: schema.to_string(),
        unkept: UnkeptRules::Refuse,
    });
    AnswerForm::Calls(CallForm {
        tools: tools.collect(),
        most,
        otherwise,
    })
}

/// Generates by random logits what follows `begun`, and returns all as a client's reader sees it.
fn answer(text: &ModelText, form: &AnswerForm, begun: &[u32], seed: u64) -> String {
    let mut rng = Rng::with_seed(seed);
    let mut matcher = text.begin_form(form, begun).unwrap();
    let mut tokens = begun.to_vec();
    while !matcher.is_complete() {
        assert!(tokens.len() < 900, "{form:?} does not end");
        let row: Vec<f32> = (0..text.vocab_size()).map(|_| rng.f32() * 10.0).collect();
        let masked = matcher.mask(&row).unwrap();
        let so_far = Tokens {
            prompt: &[],
            generated: &tokens,
        };
        let sampling = Sampling {
            seed,
            ..Sampling::NEUTRAL
        };
        let token = Sampler::default().choose(&masked, &sampling, so_far);
        let token = token.unwrap();
        if text.eos().contains(&token) {
            break;
        }
        matcher.accept(token).unwrap();
        tokens.push(token);
    }
    shown(text, &tokens)
}

/// The text of tokens, with the marks that are special tokens.
fn shown(text: &ModelText, tokens: &[u32]) -> String {
    let (mut stream, mut shown) = (TextStream::default(), String::new());
    let mut add = |decoded| match decoded {
        Decoded::More(more) | Decoded::Stopped(more) => shown.push_str(&more),
    };
    for token in tokens {
        let decoded = if text.call_tokens().contains(token) {
            stream.push_special(text, &[], *token)
        } else {
            stream.push(text, &[], *token)
        };
        add(decoded.unwrap());
    }
    add(stream.finish(text, &[]).unwrap());
    shown
}

/// Checks the arguments of a call.
#[track_caller]
fn check_call(name: &str, arguments: &Value) {
    let arguments = arguments.as_object().unwrap();
    match name {
        "add" => {
            assert!(arguments["a"].as_i64().unwrap() <= 99);
            assert!(["1", "2"].contains(&&*arguments["b"].to_string()));
        }
        "greet.people" => {
            let who = &arguments["who"];
            assert!(who.is_null() || who.as_str().unwrap().chars().count() <= 8);
        }
        other => panic!("there is no tool {other}"),
    }
}

#[track_caller]
fn check_object(written: &str, key: &str) {
    let call: Value = serde_json::from_str(written).unwrap();
    check_call(call["name"].as_str().unwrap(), &call[key]);
}

/// Checks an answer of calls alone, and returns their number.
#[track_caller]
fn check_answer(syntax: CallSyntax, answer: &str) -> usize {
    match syntax {
        CallSyntax::Tags => {
            let calls: Vec<&str> = answer.split("</tool_call>").collect();
            let (rest, calls) = calls.split_last().unwrap();
            assert_eq!(*rest, "");
            for call in calls {
                let call = call.trim_start_matches('\n');
                check_object(call.strip_prefix("<tool_call>\n").unwrap(), "arguments");
            }
            calls.len()
        }
        CallSyntax::MarkedList => {
            let list = answer.strip_prefix("[TOOL_CALLS]").unwrap();
            let list: Vec<Value> = serde_json::from_str(list).unwrap();
            for call in &list {
                check_object(&call.to_string(), "arguments");
            }
            list.len()
        }
        CallSyntax::MarkedName => {
            let calls: Vec<&str> = answer.split("[TOOL_CALLS]").skip(1).collect();
            for call in &calls {
                let (name, arguments) = call.split_once("[ARGS]").unwrap();
                check_call(name, &serde_json::from_str(arguments).unwrap());
            }
            calls.len()
        }
        CallSyntax::Bare => {
            let calls = serde_json::Deserializer::from_str(&answer.replace("; ", " "))
                .into_iter::<Value>()
                .map(|call| call.unwrap())
                .collect::<Vec<_>>();
            for call in &calls {
                check_object(&call.to_string(), "parameters");
            }
            calls.len()
        }
    }
}

#[test]
fn an_answer_that_has_to_be_a_call_is_calls_of_the_tools_there_are() {
    let marks = ["[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>"];
    for (syntax, template) in TEMPLATES {
        for special in [&[][..], &marks] {
            let text = text(template, special);
            assert_eq!(text.call_syntax(), Ok(syntax));
            let mut most = 0;
            for seed in 0..12 {
                let one = answer(&text, &calls(1, OtherwiseText::None), &[], seed);
                assert_eq!(check_answer(syntax, &one), 1, "{one}");
                let several = answer(&text, &calls(3, OtherwiseText::None), &[], seed);
                most = most.max(check_answer(syntax, &several));
            }
            assert!((2..=3).contains(&most), "{syntax:?}: {most} calls");
        }
    }
}

#[test]
fn text_may_stand_in_the_place_of_calls_and_calls_keep_to_their_schemas_then() {
    for (syntax, template) in TEMPLATES {
        for special in [&[][..], &["[TOOL_CALLS]", "[ARGS]"]] {
            let text = text(template, special);
            let begins = |beginning: &str| {
                let tokens = text.encode(beginning, u32::MAX).unwrap();
                (beginning.to_owned(), tokens)
            };
            let form = calls(2, OtherwiseText::Any);
            let (written, begun) = match syntax {
                CallSyntax::Tags => begins("Well. <tool_call>"),
                CallSyntax::MarkedList | CallSyntax::MarkedName => begins("Well. [TOOL_CALLS]"),
                CallSyntax::Bare => begins("{"),
            };
            for seed in 0..6 {
                let answer = answer(&text, &form, &begun, seed);
                assert!(answer.starts_with(&written), "{answer}");
                let calls = answer.strip_prefix("Well. ").unwrap_or(&answer);
                check_answer(syntax, calls);
            }
            let (_, begun) = begins("Well, no.");
            let mut matcher = text.begin_form(&form, &begun).unwrap();
            let row = vec![1.0; text.vocab_size()];
            let masked = matcher.mask(&row).unwrap();
            // It may end, and go on with nearly anything.
            assert!(masked[text.eos()[0] as usize].is_finite());
            assert!(masked.iter().filter(|logit| logit.is_finite()).count() > 500);
        }
    }
}

#[test]
fn what_a_reader_takes_for_a_call_is_no_text() {
    for (syntax, template) in TEMPLATES {
        let text = text(template, &[]);
        let form = calls(2, OtherwiseText::Any);
        let called = match syntax {
            CallSyntax::Tags => ["<tool_call>{}", "a <tool_call> "],
            CallSyntax::MarkedList | CallSyntax::MarkedName => {
                ["[TOOL_CALLS]no", "a [TOOL_CALLS]{"]
            }
            CallSyntax::Bare => [" \n{", "<|python_tag|>{"],
        };
        for called in called {
            let tokens = text.encode(called, u32::MAX).unwrap();
            let mut matcher = text.begin_form(&form, &[]).unwrap();
            let refused = tokens.iter().any(|token| matcher.accept(*token).is_err());
            assert!(refused, "{syntax:?}: {called:?}");
        }
    }
}

/// Schemas as Pydantic writes them, of secrets, paths, sets and maps with keys of a kind.
#[test]
fn rules_that_no_answer_can_be_kept_to_are_left_out_or_refused() {
    let text = text(TEMPLATES[0].1, &[]);
    let checked = |field: &Value, unkept: UnkeptRules| {
        let parameters =
            json!({"type": "object", "properties": {"field": field}, "required": ["field"]});
        text.check_form(&AnswerForm::Calls(CallForm {
            tools: vec![CallableTool {
                name: "keep".to_owned(),
                parameters: parameters.to_string(),
                unkept,
            }],
            most: 1,
            otherwise: OtherwiseText::None,
        }))
    };
    let of_keys = json!({"type": "string", "maxLength": 3});
    for (field, rule) in [
        (json!({"type": "string", "format": "password"}), "password"),
        (json!({"type": "string", "format": "path"}), "path"),
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
            "uniqueItems",
        ),
        (
            json!({"type": "object", "propertyNames": of_keys}),
            "propertyNames",
        ),
    ] {
        assert_eq!(checked(&field, UnkeptRules::LeaveOut), Ok(()), "{field}");
        let refused = checked(&field, UnkeptRules::Refuse).unwrap_err();
        assert!(refused.contains(rule), "{refused}");
        // It tells nothing of the grammar around the schema.
        assert!(!refused.contains("keep"), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
}

/// A conversation in which the assistant called a tool, and said nothing.
fn with_a_call() -> [ChatMessage; 3] {
    let call = ToolCall {
        id: "one".to_owned(),
        kind: ToolKind::Function,
        function: CalledFunction {
            name: "add".to_owned(),
            arguments: r#"{"b": 1, "a": 2}"#.to_owned(),
        },
    };
    [
        ChatMessage::new("user", "Hi"),
        ChatMessage {
            content: None,
            tool_calls: vec![call],
            ..ChatMessage::new("assistant", "")
        },
        ChatMessage {
            tool_call_id: Some("one".to_owned()),
            ..ChatMessage::new("tool", "3")
        },
    ]
}

#[test]
fn templates_are_told_of_tools_calls_and_results() {
    let text = text(TEMPLATES[0].1, &[]);
    let definition = json!({"type": "function", "function": {"name": "add", "z": 1, "a": 2}});
    let tool = Tool {
        name: "add".to_owned(),
        definition: definition.to_string(),
        parameters: "{}".to_owned(),
    };
    let messages = with_a_call();
    let prompt = text.chat_prompt(&messages, &[tool], u32::MAX).unwrap();
    let expected = "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"z\": 1, \"a\": 2}}\
                    user:Hi;assistant:None<tool_call>{\"b\": 1, \"a\": 2}</tool_call>;tool:3one;";
    assert_eq!(text.decode(&prompt).unwrap(), expected);
    let without = text.chat_prompt(&messages[..1], &[], u32::MAX).unwrap();
    assert_eq!(text.decode(&without).unwrap(), "user:Hi;");
}

/// Qwen 3's first template looks for a word in each text, and `QwQ`'s splits it.
#[test]
fn a_template_that_fails_on_a_message_without_a_text_is_told_an_empty_one() {
    let searches = "{% for m in messages %}{{ m.role }}:\
                    {% if '</think>' in m.content %}thought {% endif %}{{ m.content + ';' }}{% endfor %}";
    let splits =
        "{% for m in messages %}{{ m.role }}:{{ m.content.split('</think>')[-1] }};{% endfor %}";
    for template in [searches, splits] {
        let text = text(template, &[]);
        let prompt = text.chat_prompt(&with_a_call(), &[], u32::MAX).unwrap();
        assert_eq!(text.decode(&prompt).unwrap(), "user:Hi;assistant:;tool:3;");
    }
    let text = text("{{ messages[1].content.unheard_of() }}", &[]);
    let failed = text.chat_prompt(&with_a_call(), &[], u32::MAX);
    assert!(matches!(failed, Err(PromptError::Template(_))));
}

#[test]
fn a_template_of_its_own_is_for_tools() {
    let read = |name: &str| fs::read_to_string(demo_folder().join(name)).unwrap();
    let config = json!({"chat_template": [
        {"name": "tool_use", "template": "T{{ tools | length }}<tool_call>"},
        {"name": "default", "template": "D"},
    ]});
    let files = [
        ("tokenizer.json", read("tokenizer.json")),
        ("tokenizer_config.json", config.to_string()),
    ];
    let text = model(&files).unwrap();
    assert_eq!(text.call_syntax(), Ok(CallSyntax::Tags));
    let tool = Tool {
        name: "a".to_owned(),
        definition: "{}".to_owned(),
        parameters: "{}".to_owned(),
    };
    let prompt = |tools: &[Tool]| {
        let tokens = text.chat_prompt(&[], tools, u32::MAX).unwrap();
        text.decode(&tokens).unwrap()
    };
    assert_eq!(prompt(&[]), "D");
    assert_eq!(prompt(&[tool]), "T1<tool_call>");
}

#[test]
fn tools_that_a_template_may_have_by_another_name_are_tools() {
    let template = "{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}\
                    {% if not tools is defined %}{% set tools = none %}{% endif %}\
                    {% if tools is not none %}{{ tools | length }}{% endif %}<|python_tag|>";
    let text = text(template, &[]);
    assert_eq!(text.call_syntax(), Ok(CallSyntax::Bare));
    let tool = Tool {
        name: "a".to_owned(),
        definition: "{}".to_owned(),
        parameters: "{}".to_owned(),
    };
    let prompt = text.chat_prompt(&[], &[tool], u32::MAX).unwrap();
    assert_eq!(text.decode(&prompt).unwrap(), "1<|python_tag|>");
}

#[test]
fn models_that_cannot_be_told_of_tools_say_why() {
    for (template, why) in [
        ("no", NoTools::NotInTemplate),
        ("no <tool_call>", NoTools::NotInTemplate),
        ("{{ tools }}", NoTools::UnknownSyntax),
        ("{{ tools }}<tool_call><function=", NoTools::UnknownSyntax),
        // Its own word for something else.
        (
            "{% set tools = 1 %}{{ tools }}<tool_call>",
            NoTools::NotInTemplate,
        ),
    ] {
        assert_eq!(text(template, &[]).call_syntax(), Err(why), "{template}");
    }
    // A form of calls is refused then.
    let refused = text("no", &[]).check_form(&calls(1, OtherwiseText::None));
    assert_eq!(refused, Err(NoTools::NotInTemplate.to_string()));
}
