//! Prompts as transformers makes them, and text out of tokens however they come.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use fastrand::Rng;
use pointsman_executor::delivery;
use pointsman_executor::form::AnswerForm;
use pointsman_executor::job::{AnswerStart, Job, JobState};
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _, PromptError};
use pointsman_executor::test_util::first_stop;
use pointsman_executor::text::{Decoded, Detokenizer, TextStream, UNREAD_MAX};
use pointsman_text::ModelText;
use serde_json::{Value, json};

use pointsman_engine::test_util::demo_text;
use pointsman_engine::test_util::texts::{model, tokenizer};

/// Returns the text of `tokens` as it would be shown, and true if a stop string came up.
fn stream(text: &ModelText, stop: &[String], tokens: &[u32]) -> (String, bool) {
    stream_from(TextStream::default(), text, stop, tokens)
}

/// The same of a text that begins in this state.
fn stream_from(
    mut stream: TextStream,
    text: &ModelText,
    stop: &[String],
    tokens: &[u32],
) -> (String, bool) {
    let mut shown = String::new();
    let pushed = tokens.iter().map(Some).chain([None]);
    for token in pushed {
        let decoded = match token {
            Some(token) => stream.push(text, stop, *token),
            None => stream.finish(text, stop),
        };
        match decoded.unwrap() {
            Decoded::More(more) => shown.push_str(&more),
            Decoded::Stopped(last) => return (shown + &last, true),
        }
    }
    (shown, false)
}

/// Returns what the stream must show, found in the text of all tokens at once.
fn at_once(text: &ModelText, stop: &[String], tokens: &[u32]) -> (String, bool) {
    let all = text.decode(tokens).unwrap();
    match first_stop(&all, stop) {
        Some(start) => (all[..start].to_owned(), true),
        None => (all, false),
    }
}

#[test]
fn chat_prompts_are_those_of_transformers() {
    let text = demo_text();
    for golden in golden() {
        let message = ChatMessage::new("user", golden["message"].as_str().unwrap());
        assert_eq!(
            text.chat_prompt(&[message], &[], u32::MAX).unwrap(),
            ids(&golden["prompt_ids"])
        );
        let prompt = golden["prompt"].as_str().unwrap();
        assert_eq!(
            text.encode(prompt, u32::MAX).unwrap(),
            ids(&golden["prompt_ids"])
        );
        let answer = ids(&golden["greedy_ids"]);
        assert_eq!(text.decode(&answer).unwrap(), golden["greedy_text"]);
        assert_eq!(stream(&text, &[], &answer).0, golden["greedy_text"]);
    }
}

fn golden() -> Vec<Value> {
    serde_json::from_str(include_str!("../../../examples/demo-model/golden.json")).unwrap()
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    serde_json::from_value(list.clone()).unwrap()
}

#[test]
fn the_demo_model_says_when_it_ends_and_how_to_sample() {
    let text = demo_text();
    assert_eq!(text.eos(), [4]);
    assert_eq!((text.vocab_size(), text.missing_ids()), (1024, &[][..]));
    let defaults = text.defaults();
    assert_eq!((defaults.temperature, defaults.top_p), (0.7, 0.95));
    assert_eq!(defaults.top_k, 0);
    assert!(text.has_chat_template());
}

/// Random tokens are full of broken characters.
#[test]
fn pieces_together_are_the_text_decoded_at_once() {
    let text = demo_text();
    let mut rng = Rng::with_seed(21);
    for _ in 0..3000 {
        let tokens: Vec<u32> = (0..rng.usize(0..40)).map(|_| rng.u32(0..1024)).collect();
        assert_eq!(stream(&text, &[], &tokens), at_once(&text, &[], &tokens));
    }
}

#[test]
fn every_piece_is_whole_characters() {
    let text = demo_text();
    let phrase = "naïve 東京 👩‍👩‍👧 ≠ ﬁ\u{301}";
    let mut stream = TextStream::default();
    let mut shown = String::new();
    for token in text.encode(phrase, u32::MAX).unwrap() {
        let Decoded::More(piece) = stream.push(&*text, &[], token).unwrap() else {
            panic!("nothing was to stop it")
        };
        assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{piece:?}");
        shown.push_str(&piece);
        assert!(phrase.starts_with(&shown));
    }
    assert_eq!(shown, phrase);
}

#[test]
fn a_text_ends_before_its_first_stop_string_wherever_it_was_cut() {
    let text = demo_text();
    let mut rng = Rng::with_seed(22);
    let mut stopped = 0;
    for _ in 0..3000 {
        // Few characters, so that beginnings of stop strings come up again and again.
        let alphabet = ["a", "b", "ab", "ba", "é", "aab", " b"];
        let phrase: String = (0..rng.usize(0..30))
            .map(|_| alphabet[rng.usize(..alphabet.len())])
            .collect();
        let tokens = cut(&text, &phrase, &mut rng);
        let stop: Vec<String> = (0..rng.usize(0..4))
            .map(|_| {
                (0..rng.usize(1..6))
                    .map(|_| ['a', 'b', 'é', ' '][rng.usize(..4)])
                    .collect()
            })
            .collect();
        let expected = at_once(&text, &stop, &tokens);
        stopped += u32::from(expected.1);
        assert_eq!(
            stream(&text, &stop, &tokens),
            expected,
            "{phrase:?} {stop:?}"
        );
    }
    assert!(
        (500..2500).contains(&stopped),
        "{stopped} of 3000 say little"
    );
}

/// Returns tokens of `phrase`, cut into words of the vocabulary at random places.
fn cut(text: &ModelText, phrase: &str, rng: &mut Rng) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = phrase;
    while !rest.is_empty() {
        let lengths: Vec<usize> = rest.char_indices().map(|(at, _)| at).skip(1).collect();
        let length = rng.choice(lengths.iter().take(4)).copied();
        let (word, after) = rest.split_at(length.unwrap_or(rest.len()));
        tokens.extend(text.encode(word, u32::MAX).unwrap());
        rest = after;
    }
    assert_eq!(text.decode(&tokens).unwrap(), phrase);
    tokens
}

#[test]
fn the_stop_string_that_ends_first_counts_and_the_longest_of_those() {
    let text = demo_text();
    let stop = |list: &[&str]| -> Vec<String> { list.iter().map(ToString::to_string).collect() };
    let check = |list: &[&str], phrase: &str, expected: &str| {
        let tokens = text.encode(phrase, u32::MAX).unwrap();
        assert_eq!(
            stream(&text, &stop(list), &tokens),
            (expected.to_owned(), true)
        );
    };
    check(&["lo wo", "o"], "hello world", "hell");
    check(&["wor", "o wor"], "hello world", "hell");
    check(&["d"], "hello world", "hello worl");
    check(&["hello world"], "hello world", "");
}

#[test]
fn tokens_that_never_become_text_do_not_pile_up() {
    let text = demo_text();
    let lone = text.encode("é", u32::MAX).unwrap()[0];
    assert_eq!(text.decode(&[lone]).unwrap(), "\u{fffd}");
    let mut stream = TextStream::default();
    let mut characters = 0;
    for pushed in 1..=1000 {
        let Decoded::More(piece) = stream.push(&*text, &[], lone).unwrap() else {
            panic!("nothing was to stop it")
        };
        characters += piece.chars().count();
        assert!(pushed - characters <= UNREAD_MAX);
    }
    let Decoded::More(rest) = stream.finish(&*text, &[]).unwrap() else {
        panic!("nothing was to stop it")
    };
    assert_eq!(characters + rest.chars().count(), 1000);
}

// === Other models ===

#[test]
fn what_the_tokenizer_puts_around_a_text_is_put_there_once() {
    let config = json!({
        "bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>",
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    });
    let text = model(&[tokenizer(), ("tokenizer_config.json", config.to_string())]).unwrap();
    assert_eq!(text.encode("a a", u32::MAX).unwrap(), [256, 261, 261]);
    let message = ChatMessage::new("user", "a");
    assert_eq!(
        text.chat_prompt(&[message], &[], u32::MAX).unwrap(),
        [256, 261]
    );
    assert_eq!(text.eos(), [257]);
}

#[test]
fn the_tokens_around_a_text_may_be_left_out() {
    let text = model(&[tokenizer()]).unwrap();
    assert_eq!(text.encode("a a", u32::MAX).unwrap(), [256, 261, 261]);
    assert_eq!(text.encode_bare("a a", u32::MAX).unwrap(), [261, 261]);
    assert_eq!(
        text.encode_bare("<s>a", u32::MAX).unwrap()[0],
        256,
        "those in the text stay"
    );
}

/// Returns the tokens of `a`, by this tokenizer of this class, with these settings.
fn ids_of_a(tokenizer: &Value, class: &str, settings: &Value) -> Vec<u32> {
    let mut config = json!({"tokenizer_class": class, "bos_token": "<s>", "eos_token": "</s>"});
    let settings = settings.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(settings);
    let files = [
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", config.to_string()),
    ];
    model(&files).unwrap().encode("a", u32::MAX).unwrap()
}

#[test]
fn the_classes_of_llama_put_around_a_text_what_their_flags_say() {
    let (llama, other) = ("LlamaTokenizerFast", "PreTrainedTokenizerFast");
    let with: Value = serde_json::from_str(&tokenizer().1).unwrap();
    // As DeepSeek's distilled models have it.
    let mut without = with.clone();
    without["post_processor"] = json!({
        "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true,
    });
    let begun: &[u32] = &[256, 261];
    let alone: &[u32] = &[261];
    let ended: &[u32] = &[256, 261, 257];
    for (class, settings, of_with, of_without) in [
        (llama, json!({}), begun, begun),
        (llama, json!({"add_bos_token": true}), begun, begun),
        (llama, json!({"add_bos_token": false}), alone, alone),
        (llama, json!({"add_eos_token": true}), ended, ended),
        // Nobody knows which token that is.
        (llama, json!({"bos_token": null}), begun, alone),
        // Of other classes `tokenizer.json` alone says it.
        (other, json!({"add_bos_token": false}), begun, alone),
        (other, json!({"add_eos_token": true}), begun, alone),
    ] {
        let ids = |tokenizer| ids_of_a(tokenizer, class, &settings);
        assert_eq!(ids(&with), of_with, "{class} {settings}");
        assert_eq!(ids(&without), of_without, "{class} {settings}");
    }
}

#[test]
fn prompts_are_neither_cut_nor_filled_up() {
    let text = model(&[tokenizer()]).unwrap();
    assert_eq!(text.encode("", u32::MAX).unwrap().len(), 1);
    assert_eq!(text.encode(&"a ".repeat(50), u32::MAX).unwrap().len(), 52);
}

#[test]
fn tokenising_stops_past_the_tokens_asked_for() {
    let text = demo_text();
    let long = "Once upon a time. ".repeat(100_000);
    let whole = text.encode(&long[..40_000], u32::MAX).unwrap().len();
    let counted = |tokens_max| match text.encode(&long, tokens_max) {
        Err(PromptError::TooLong { tokens_min }) => tokens_min,
        other => panic!("{other:?}"),
    };
    for tokens_max in [0, 100, 2000] {
        let (tokens_min, tokens_max) = (counted(tokens_max), tokens_max as usize);
        assert!(tokens_min > tokens_max, "{tokens_min} for {tokens_max}");
        // At most twice the bytes that hold as many, whatever else the text has.
        assert!(tokens_min < whole, "{tokens_min} for {tokens_max}");
    }
    let chat = text.chat_prompt(&[ChatMessage::new("user", &*long)], &[], 100);
    assert!(matches!(chat, Err(PromptError::TooLong { .. })));
}

#[test]
fn a_text_that_fits_is_tokenised_as_ever_however_sparse() {
    let text = demo_text();
    // A token each for many bytes: the beginning alone says too little.
    let sparse = "<|assistant|>".repeat(1000);
    let tokens = text.encode(&sparse, u32::MAX).unwrap();
    assert_eq!(tokens.len(), 1000);
    assert_eq!(text.encode(&sparse, 1000).unwrap(), tokens);
    assert!(text.token_bytes_max() >= "<|assistant|>".len());
}

#[test]
fn ids_that_the_tokenizer_lacks_are_known() {
    let text = model(&[tokenizer()]).unwrap();
    assert_eq!((text.vocab_size(), text.missing_ids()), (263, &[260][..]));
}

#[test]
fn an_added_token_of_which_the_model_has_no_row_is_plain_text() {
    let (name, mut file) = (tokenizer().0, parsed(&tokenizer().1));
    file["model"]["vocab"]["b"] = json!(260);
    let mut added = file["added_tokens"][0].clone();
    (added["id"], added["content"]) = (json!(263), json!("<pad>"));
    file["added_tokens"].as_array_mut().unwrap().push(added);
    let with_rows = |rows: u32| {
        let config = ("config.json", json!({"vocab_size": rows}).to_string());
        model(&[(name, file.to_string()), config]).unwrap()
    };
    let ids = |text: &ModelText| text.encode("<pad>", 100).unwrap();
    let filled = with_rows(264);
    assert_eq!((filled.vocab_size(), ids(&filled).len()), (264, 2));
    let cut = with_rows(263);
    assert_eq!(cut.vocab_size(), 263);
    assert!(ids(&cut).len() > 2 && ids(&cut).iter().all(|id| *id < 263));
    // The models make different tokens of one text.
    assert_ne!(filled.tokenizer_id(), cut.tokenizer_id());
    assert_eq!(filled.tokenizer_id(), with_rows(300).tokenizer_id());
}

/// Returns a text of words, letters that are bytes, and special tokens.
fn phrase(rng: &mut Rng) -> String {
    let words = [" a", "a", "é", "東", "👧", "</s>", " "];
    let words = (0..rng.usize(1..20)).map(|_| words[rng.usize(..words.len())]);
    words.collect()
}

#[test]
fn a_text_that_goes_on_with_its_prompt_is_the_end_of_both_together() {
    let text = model(&[tokenizer()]).unwrap();
    let mut rng = Rng::with_seed(24);
    for _ in 0..500 {
        let [prompt, answer] = [phrase(&mut rng), phrase(&mut rng)];
        let prompt = text.encode(&prompt, u32::MAX).unwrap();
        let answer = text.encode(&answer, u32::MAX).unwrap();
        let whole = text.decode(&[&prompt[..], &answer].concat()).unwrap();
        let begun = text.decode(&prompt).unwrap();
        let stream = TextStream::after(&text, &prompt).unwrap();
        let (shown, _) = stream_from(stream, &text, &[], &answer);
        assert_eq!(begun + &shown, whole);
    }
}

#[test]
fn an_answer_keeps_the_space_before_it_where_its_prompt_is_a_text() {
    let text = model(&[tokenizer()]).unwrap();
    let shown = |prompt: &[u32], answer_start| {
        let job = Job {
            answer_start,
            ..Job::new(prompt.to_vec(), 2)
        };
        let (sink, _closing, _deliveries) = delivery::channel(2);
        let mut state = JobState::new(Arc::new(job), sink);
        for (token, left) in [(261, 1), (259, 0)] {
            state.accept(token, left, &text).unwrap();
        }
        state.unsent.text
    };
    let prompt = text.encode("a", u32::MAX).unwrap();
    assert_eq!(shown(&prompt, AnswerStart::WithinText), " aa");
    assert_eq!(shown(&prompt, AnswerStart::Apart), "aa");
    // No word is before it.
    assert_eq!(shown(&[256], AnswerStart::WithinText), "aa");
}

#[test]
fn nothing_is_lost_behind_a_prompt_that_ends_within_a_character() {
    let text = demo_text();
    let (prompt, rest) = (text.encode("é", u32::MAX).unwrap(), " fox");
    let mut answer = prompt[1..].to_vec();
    answer.extend(text.encode(rest, u32::MAX).unwrap());
    let stream = TextStream::after(&*text, &prompt[..1]).unwrap();
    let (shown, _) = stream_from(stream, &text, &[], &answer);
    assert!(shown.ends_with(rest), "{shown:?}");
}

/// Its letter `Ġ` is a space in vocabularies of bytes.
#[test]
fn a_vocabulary_of_text_is_none_of_bytes_whatever_letters_it_has() {
    let config = json!({"eos_token": "</s>"});
    let text = model(&[tokenizer(), ("tokenizer_config.json", config.to_string())]).unwrap();
    assert_eq!(text.token_bytes(261), b" a");
    assert_eq!(text.token_bytes(0x0a), b"\n");
    assert_eq!(text.token_bytes(262), "Ġ".as_bytes());
    let choice = AnswerForm::Choice(vec!["a a".to_owned()]);
    text.begin_form(&choice, &[259, 261]).unwrap();
    let string = AnswerForm::JsonSchema(r#"{"type": "string"}"#.to_owned());
    let (quote, line) = (0x22, 0x0a);
    text.begin_form(&string, &[quote, 261, quote]).unwrap();
    assert!(text.begin_form(&string, &[quote, line]).is_err());
}

#[test]
fn a_tokenizer_that_falls_back_to_bytes_streams_whole_characters() {
    let text = model(&[tokenizer()]).unwrap();
    let mut rng = Rng::with_seed(23);
    for _ in 0..500 {
        let phrase = phrase(&mut rng);
        let tokens = text.encode(&phrase, u32::MAX).unwrap();
        assert_eq!(
            stream(&text, &[], &tokens),
            at_once(&text, &[], &tokens),
            "{phrase:?}"
        );
    }
}

/// Returns what the stream must show of tokens of [`tokenizer`]: of a run of bytes the characters before the first byte
/// that is no UTF-8, and U+FFFD for each byte from there on.
fn byte_by_byte(tokens: &[u32]) -> String {
    let runs = tokens.chunk_by(|one, other| *one < 256 && *other < 256);
    let shown = runs.enumerate().map(|(at, run)| match run {
        [259] => "a".to_owned(),
        [261] => " a".to_owned(),
        bytes => {
            let bytes = bytes.iter().map(|byte| u8::try_from(*byte).unwrap());
            let bytes: Vec<u8> = bytes.collect();
            let whole = match std::str::from_utf8(&bytes) {
                Ok(text) => text.len(),
                // A space before the first word is no text: nothing of the run was shown.
                Err(error) if at == 0 && bytes[..error.valid_up_to()] == [b' '] => 0,
                Err(error) => error.valid_up_to(),
            };
            let text = std::str::from_utf8(&bytes[..whole]).unwrap();
            text.to_owned() + &"\u{fffd}".repeat(bytes.len() - whole)
        }
    });
    let shown: String = shown.collect();
    shown.strip_prefix(' ').unwrap_or(&shown).to_owned()
}

#[test]
fn a_byte_that_is_no_text_takes_nothing_of_what_is_around_it() {
    let text = model(&[tokenizer()]).unwrap();
    let shown = |tokens: &[u32]| stream(&text, &[], tokens).0;
    assert_eq!(shown(&[0x0a, 0xe2, 259]), "\n\u{fffd}a");
    // As many bytes as a U+FFFD has, which each of them becomes at once.
    assert_eq!(shown(&[0xe6, 0x9d, 0xb1, 0xe2, 259]), "東\u{fffd}a");
    // A space has no text where nothing is before it.
    assert_eq!(shown(&[259, 0x20, 0xe2, 259]), "a \u{fffd}a");
    let mut rng = Rng::with_seed(25);
    let parts: [&[u32]; 9] = [
        &[0x0a],
        &[0x20],
        &[0xc3, 0xa9],
        &[0xe6, 0x9d, 0xb1],
        &[0xf0, 0x9f, 0x91, 0xa7],
        &[0xe2],
        &[0x80],
        &[259],
        &[261],
    ];
    for _ in 0..3000 {
        let parts = (0..rng.usize(0..12)).map(|_| parts[rng.usize(..parts.len())]);
        let tokens = parts.collect::<Vec<_>>().concat();
        assert_eq!(shown(&tokens), byte_by_byte(&tokens), "{tokens:?}");
    }
}

/// A space before the first word is stripped: a word after special tokens is not the first.
#[test]
fn special_tokens_leave_no_trace() {
    let text = model(&[tokenizer()]).unwrap();
    let mut tokens = vec![259];
    tokens.extend([257; 2 * UNREAD_MAX]);
    tokens.push(261);
    assert_eq!(stream(&text, &[], &tokens).0, "a a");
}

#[test]
fn a_chat_template_of_its_own_file_goes_first() {
    let config = json!({"chat_template": [
        {"name": "tool_use", "template": "t"}, {"name": "default", "template": "a"},
    ]});
    let config = ("tokenizer_config.json", config.to_string());
    let named = model(&[tokenizer(), config.clone()]).unwrap();
    assert_eq!(named.chat_prompt(&[], &[], u32::MAX).unwrap(), [261]);
    let own = ("chat_template.jinja", "aa".to_owned());
    let own = model(&[tokenizer(), config, own]).unwrap();
    assert_eq!(own.chat_prompt(&[], &[], u32::MAX).unwrap(), [261, 259]);
}

#[test]
fn without_a_template_there_is_no_chat() {
    let text = model(&[tokenizer()]).unwrap();
    assert!(!text.has_chat_template());
    let refused = text.chat_prompt(&[], &[], u32::MAX).unwrap_err();
    assert!(matches!(refused, PromptError::NoChatTemplate));
}

#[test]
fn files_that_are_missing_or_broken_are_named() {
    let message = |files: &[(&'static str, String)]| model(files).unwrap_err().to_string();
    assert_eq!(message(&[]), "embedded tokenizer.json is missing");
    assert_eq!(
        message(&[("tokenizer.json", "{}".to_owned())]),
        "embedded tokenizer.json holds no tokenizer that can be used"
    );
    assert_eq!(
        message(&[
            tokenizer(),
            ("generation_config.json", "{\"top_k\": \"x\"}".to_owned())
        ]),
        "embedded generation_config.json cannot be understood"
    );
    assert_eq!(
        message(&[tokenizer(), ("chat_template.jinja", "{% if %}".to_owned())]),
        "the chat template of embedded chat_template.jinja cannot be compiled"
    );
}
