//! Answers of models in every way, cut in every way, and what is read in them.

use super::*;

/// The text and the calls that come of an answer which is cut in pieces of so many characters.
fn read(
    syntax: CallSyntax,
    several: Several,
    (text, piece): (&str, usize),
) -> (String, Vec<(String, String)>) {
    let names = ["weather", "add"].map(str::to_owned);
    let mut parser = CallParser::new(syntax, Arc::from(names), several);
    let chars: Vec<char> = text.chars().collect();
    let pieces = chars.chunks(piece).map(|piece| piece.iter().collect());
    let mut parts = Vec::new();
    for piece in pieces.collect::<Vec<String>>() {
        parts.extend(parser.push(&piece));
    }
    parts.extend(parser.finish());
    let (mut text, mut calls) = (String::new(), Vec::new());
    for part in parts {
        match part {
            AnswerPart::Text(more) => {
                assert!(!more.is_empty());
                text.push_str(&more);
            }
            AnswerPart::CallBegins(number, name) => {
                assert_eq!(number as usize, calls.len());
                calls.push((name, String::new()));
            }
            AnswerPart::Arguments(number, more) => {
                assert!(!more.is_empty());
                calls[number as usize].1.push_str(&more);
            }
        }
    }
    assert_eq!(parser.has_called(), !calls.is_empty());
    (text, calls)
}

#[track_caller]
fn check(syntax: CallSyntax, text: &str, shown: &str, calls: &[(&str, &str)]) {
    let calls = calls.iter();
    let calls = calls.map(|(name, arguments)| (name.to_string(), arguments.to_string()));
    let expected = (shown.to_owned(), calls.collect::<Vec<_>>());
    for piece in [1, 2, 3, 7, 1000] {
        let got = read(syntax, Several::All, (text, piece));
        assert_eq!(got, expected, "{text:?} in pieces of {piece}");
    }
}

const WEATHER: (&str, &str) = ("weather", r#"{"city": "Köln", "in": ["\"a}\"", {"b": 1}]}"#);

#[test]
fn calls_between_tags() {
    let call = format!(r#"{{"name": "weather", "arguments": {}}}"#, WEATHER.1);
    let syntax = CallSyntax::Tags;
    check(
        syntax,
        &format!("<tool_call>\n{call}\n</tool_call>"),
        "",
        &[WEATHER],
    );
    check(
        syntax,
        &format!(
            "Let me see. \n\n<tool_call>{call}</tool_call>\n<tool_call>\n{call}\n</tool_call>\n"
        ),
        "Let me see.",
        &[WEATHER, WEATHER],
    );
    check(
        syntax,
        r#"<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>"#,
        "",
        &[("add", r#"{"a": 1}"#)],
    );
    check(
        syntax,
        r#"<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call> so"#,
        " so",
        &[("add", r#"{"a": 1}"#)],
    );
    check(
        syntax,
        r#"<tool_call>{"name": "add", "arguments": null}</tool_call>"#,
        "",
        &[("add", "{}")],
    );
}

#[test]
fn calls_that_are_nearly_json_are_calls() {
    let one = r#"{"a": 1}"#;
    for (text, called) in [
        (
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"x\ny\t\"}}\n</tool_call>",
            &[("add", r#"{"a": "x\ny\t"}"#)][..],
        ),
        (
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
            &[("add", one)],
        ),
        (
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            &[("add", one), ("add", one)],
        ),
        (
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"b\": x}\n</tool_call> so",
            &[("add", one)],
        ),
    ] {
        let shown = if text.ends_with("so") { " so" } else { "" };
        check(CallSyntax::Tags, text, shown, called);
    }
}

#[test]
fn what_is_no_call_is_text() {
    for text in [
        "<tool_call>\nnothing",
        "a < b and <tool_cal",
        " \n",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {\"a\": 1}</tool_call>",
        "<tool_call>",
    ] {
        check(CallSyntax::Tags, text, text, &[]);
    }
    for text in [
        "It rains. {\"name\": \"add\"}",
        "{\"answer\": 5}",
        " {\"name\": \"Bob\", \"parameters\": {}} ",
        "{\"name\": \"a",
        "<|python_ta",
        "<{\"name\": \"add\", \"parameters\": {}}",
    ] {
        check(CallSyntax::Bare, text, text, &[]);
    }
    for text in [
        "[TOOL_CALLS] none",
        "[TOOL_CALLS] who{\"a\": 1}",
        "[TOOL_CALLS] [5]",
    ] {
        check(CallSyntax::MarkedList, text, text, &[]);
        check(CallSyntax::MarkedName, text, text, &[]);
    }
}

#[test]
fn calls_that_are_the_whole_answer() {
    let call = format!(r#"{{"name": "weather", "parameters": {}}}"#, WEATHER.1);
    for text in [
        call.clone(),
        format!("\n{call}"),
        format!("<|python_tag|>{call}"),
    ] {
        check(CallSyntax::Bare, &text, "", &[WEATHER]);
    }
    let two = format!("{call}; {call}");
    check(CallSyntax::Bare, &two, "", &[WEATHER, WEATHER]);
}

#[test]
fn calls_behind_a_mark() {
    let call = format!(r#"{{"name": "weather", "arguments": {}}}"#, WEATHER.1);
    let list = format!("Well. [TOOL_CALLS] [{call}, {call}]");
    check(CallSyntax::MarkedList, &list, "Well.", &[WEATHER, WEATHER]);
    let named = format!("[TOOL_CALLS]weather[ARGS]{}", WEATHER.1);
    check(CallSyntax::MarkedName, &named, "", &[WEATHER]);
    let two = format!("{named}[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{{\"a\": {{}}}}");
    check(
        CallSyntax::MarkedName,
        &two,
        "",
        &[WEATHER, ("add", "{\"a\": {}}")],
    );
}

#[test]
fn of_several_calls_the_first_may_be_all_that_counts() {
    let call = r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#;
    let text = format!("{call}\n{call}");
    let one = vec![("add".to_owned(), r#"{"a": 1}"#.to_owned())];
    for piece in [1, 1000] {
        let got = read(CallSyntax::Tags, Several::FirstOnly, (&text, piece));
        assert_eq!(got, (String::new(), one.clone()));
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    let names = ["add".to_owned()];
    let mut parser = CallParser::new(CallSyntax::Tags, Arc::from(names), Several::All);
    assert_eq!(parser.push("<tool_call>{\"na"), []);
    let begins = AnswerPart::CallBegins(0, "add".to_owned());
    assert_eq!(parser.push("me\": \"add\", "), [begins]);
    let first = AnswerPart::Arguments(0, "{\"a\": 1".to_owned());
    assert_eq!(parser.push("\"arguments\": {\"a\": 1"), [first]);
    let rest = AnswerPart::Arguments(0, "23}".to_owned());
    assert_eq!(parser.push("23}}</tool_call>"), [rest]);
    assert_eq!(parser.finish(), []);
}

/// Pieces of which answers are put together that are nearly calls.
const FRAGMENTS: [&str; 24] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "{",
    "}",
    "[",
    "]",
    "\"name\"",
    "\"arguments\"",
    "\"parameters\"",
    ": ",
    ", ",
    "\"add\"",
    "weather",
    "{\"a\": 1}",
    "\\\"",
    "; ",
    " \n",
    "é so",
    "\"a\nb\"",
    "<",
];
/// Whole calls, which else come about too seldom.
const CALLS: [&str; 4] = [
    "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>",
    "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
    "[TOOL_CALLS]add[ARGS]{\"a\": [{}]}",
    "{\"name\": \"add\", \"parameters\": {}}",
];

#[test]
fn however_a_text_is_cut_the_same_comes_of_it() {
    let mut rng = fastrand::Rng::with_seed(14);
    let mut called = [0; 4];
    for _ in 0..2_000 {
        let fragments = (0..rng.usize(1..12)).map(|_| match rng.u8(0..4) {
            0 => CALLS[rng.usize(..CALLS.len())],
            _ => FRAGMENTS[rng.usize(..FRAGMENTS.len())],
        });
        let text: String = fragments.collect();
        let syntaxes = [
            CallSyntax::Tags,
            CallSyntax::MarkedList,
            CallSyntax::MarkedName,
            CallSyntax::Bare,
        ];
        for (number, syntax) in syntaxes.into_iter().enumerate() {
            let whole = read(syntax, Several::All, (&text, usize::MAX));
            called[number] += whole.1.len();
            for piece in [1, rng.usize(2..9)] {
                let cut = read(syntax, Several::All, (&text, piece));
                assert_eq!(cut, whole, "{syntax:?}: {text:?} in pieces of {piece}");
            }
        }
    }
    assert!(called.iter().all(|calls| *calls > 100), "{called:?}");
}
