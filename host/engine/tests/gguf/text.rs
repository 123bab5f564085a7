//! The tokenizer, its templates and its settings from the metadata.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use pointsman_engine::test_util::demo_text;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _};
use pointsman_executor::text::Detokenizer as _;
use pointsman_model::files::ModelFiles;
use pointsman_model::gguf::Gguf;
use pointsman_model::test_util::gguf::{GgufFile, Kind, Meta};
use pointsman_model::test_util::models;
use pointsman_text::ModelText;
use serde_json::{Value, json};

const TEXTS: [&str; 5] = [
    "What comes after four?",
    "  1234 five, SIX!\n\n\tcafé ▁ 😀 it's",
    "<|user|>hi<|end|> <|nobody|>",
    "",
    " ",
];

fn of_demo(name: &str) -> Value {
    let json = fs::read(models::demo_folder().join(name)).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// A file without weights.
fn empty() -> GgufFile {
    let config = models::config(json!({}));
    GgufFile::of_model(&config, &BTreeMap::new(), Kind::F32).0
}

fn demo(pre: &str) -> GgufFile {
    let config = of_demo("tokenizer_config.json");
    empty().with_tokenizer(&of_demo("tokenizer.json"), &config, pre)
}

fn load(file: &GgufFile, folder: &Path) -> Result<ModelText, String> {
    let gguf = Gguf::open(&file.write(folder)).unwrap();
    let text = ModelText::load(&ModelFiles::Gguf(Arc::new(gguf)));
    let place = format!("{}/", folder.display());
    text.map_err(|error| error.to_string().replace(&place, ""))
}

fn text(file: &GgufFile) -> Result<ModelText, String> {
    load(file, tempfile::tempdir().unwrap().path())
}

fn ids(text: &ModelText, of: &str) -> Vec<u32> {
    text.encode(of, u32::MAX).unwrap()
}

#[test]
fn the_demo_model_reads_and_writes_as_its_folder_does() {
    let (found, expected) = (text(&demo("smollm")).unwrap(), demo_text());
    for text in TEXTS {
        let tokens = ids(&found, text);
        assert_eq!(tokens, ids(&expected, text), "{text:?}");
        let decoded = |text: &ModelText| text.decode(&tokens).unwrap();
        assert_eq!(decoded(&found), decoded(&expected));
    }
    let messages = [ChatMessage::new("user", "What is 7 plus 5?")];
    let prompt = |text: &ModelText| text.chat_prompt(&messages, &[], u32::MAX).unwrap();
    assert_eq!(prompt(&found), prompt(&expected));
    assert_eq!(found.eos(), expected.eos());
    assert_eq!(found.vocab_size(), expected.vocab_size());
    assert!(found.is_special(4) && !found.is_special(5));
}

#[test]
fn words_are_cut_as_the_kind_of_the_tokenizer_says() {
    // Tokens that only a word of several digits, or of digits with a space, can become.
    let merged = |pre: &str| {
        let tokens = (0..=255)
            .map(|byte| spelled(&[byte]))
            .chain(["12", "123", "1234", "Ġ1", "'S"].map(str::to_owned));
        let merges = ["1 2", "12 3", "123 4", "Ġ 1", "' S"].map(str::to_owned);
        let file = empty()
            .with("tokenizer.ggml.model", Meta::Text("gpt2".into()))
            .with("tokenizer.ggml.pre", Meta::Text(pre.into()))
            .with("tokenizer.ggml.tokens", Meta::Texts(tokens.collect()))
            .with("tokenizer.ggml.merges", Meta::Texts(merges.to_vec()));
        let text = text(&file).unwrap();
        let count = |of: &str| ids(&text, of).len();
        (count("1234"), count(" 1"), count("A'S"), count("e\u{301}"))
    };
    assert_eq!(merged("gpt-2"), (1, 1, 3, 3));
    assert_eq!(merged("smollm"), (4, 2, 3, 3));
    assert_eq!(merged("llama-bpe"), (2, 2, 2, 3));
    // Composed: one character of two bytes.
    assert_eq!(merged("qwen2"), (4, 2, 2, 2));
    assert_eq!(merged("tekken"), (4, 2, 2, 3));
}

/// Bytes as a byte-level vocabulary writes them.
fn spelled(bytes: &[u8]) -> String {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let character = |byte: &u8| match visible(*byte) {
        true => char::from(*byte),
        false => {
            let before = (0..*byte).filter(|byte| !visible(*byte)).count();
            char::from_u32(0x100 + u32::try_from(before).unwrap()).unwrap()
        }
    };
    bytes.iter().map(character).collect()
}

#[test]
fn a_text_begins_and_ends_as_the_metadata_say() {
    let begin = "tokenizer.ggml.add_bos_token";
    let plain = ids(&text(&demo("smollm")).unwrap(), "hi");
    let with = |file: GgufFile| ids(&text(&file).unwrap(), "hi");
    let (first, last) = ([0].as_slice(), [4].as_slice());
    assert_eq!(
        with(demo("smollm").with(begin, Meta::Bool(true))),
        [first, &plain].concat()
    );
    let both = demo("smollm").with(begin, Meta::Bool(true));
    let both = both.with("tokenizer.ggml.add_eos_token", Meta::Bool(true));
    assert_eq!(with(both), [first, &plain, last].concat());
    // Llama 3 begins every text, unless it says that it does not.
    assert_eq!(with(demo("llama-bpe"))[0], 0);
    assert_eq!(
        with(demo("llama-bpe").with(begin, Meta::Bool(false))),
        plain
    );
}

#[test]
fn an_answer_ends_at_every_token_that_ends_a_turn() {
    let (eos, eot) = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id");
    let ends = |file: &GgufFile| text(file).unwrap().eos().to_vec();
    // `<|end|>` has the number 4.
    let other = demo("smollm").with(eos, Meta::U32(0));
    assert_eq!(ends(&other), [0, 4]);
    assert_eq!(ends(&other.with(eot, Meta::U32(2))), [0, 2, 4]);
}

#[test]
fn a_token_that_ends_texts_by_its_name_or_fills_code_in_ends_an_answer_too() {
    let ends = |file: &GgufFile| text(file).unwrap().eos().to_vec();
    // As files of Llama 3 Instruct have it, whose `eos_token_id` is that of `<|eot_id|>`.
    for name in ["<|end_of_text|>", "<end_of_utterance>", "<EOT>", "_<EOT>"] {
        let mut file = demo("smollm");
        match file.metadata.get_mut("tokenizer.ggml.tokens") {
            Some(Meta::Texts(tokens)) => tokens[2] = name.to_owned(),
            other => panic!("{other:?}"),
        }
        assert_eq!(ends(&file), [2, 4], "{name}");
    }
    for name in ["fim_pad", "fim_rep", "fim_sep"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let file = demo("smollm").with(&key, Meta::U32(1));
        assert_eq!(ends(&file), [1, 4], "{name}");
    }
}

#[test]
fn suggestions_and_a_template_for_tools_are_taken_over() {
    let file = demo("smollm")
        .with("general.sampling.temp", Meta::F32(0.5))
        .with("general.sampling.top_k", Meta::I32(20))
        .with(
            "tokenizer.chat_template.tool_use",
            Meta::Text("{{ tools }}<tool_call></tool_call>".into()),
        );
    let text = text(&file).unwrap();
    assert_eq!(
        (text.defaults().temperature, text.defaults().top_k),
        (0.5, 20)
    );
    assert!(text.call_syntax().is_ok());
    assert!(demo_text().call_syntax().is_err());
}

#[test]
fn tokens_that_only_fill_the_table_up_are_none() {
    let mut file = demo("smollm");
    for (key, more) in [
        ("tokens", Meta::Texts(vec!["[PAD]".into(); 3])),
        ("token_type", Meta::I32s(vec![5; 3])),
    ] {
        let list = file
            .metadata
            .get_mut(&format!("tokenizer.ggml.{key}"))
            .unwrap();
        match (list, more) {
            (Meta::Texts(list), Meta::Texts(more)) => list.extend(more),
            (Meta::I32s(list), Meta::I32s(more)) => list.extend(more),
            other => panic!("{other:?}"),
        }
    }
    let text = text(&file).unwrap();
    assert_eq!(text.vocab_size(), demo_text().vocab_size());
    assert!(text.missing_ids().is_empty());
}

#[test]
fn a_tokenizer_that_cannot_be_built_is_named_with_what_to_do() {
    let advice = "put the model's tokenizer.json beside the file";
    let other = demo("smollm").with("tokenizer.ggml.model", Meta::Text("t5".into()));
    let said = format!(
        "model.gguf: tokenizer.ggml.model `t5` is not supported; gpt2 and llama are: {advice}"
    );
    assert_eq!(text(&other).unwrap_err(), said);
    let said = format!(
        "model.gguf: tokenizer.ggml.pre `falcon` is not supported; gpt-2, smollm, llama-bpe, qwen2 and tekken are: \
         {advice}"
    );
    assert_eq!(text(&demo("falcon")).unwrap_err(), said);
    let merges = Meta::Texts(vec!["alone".into()]);
    let damaged = demo("smollm").with("tokenizer.ggml.merges", merges);
    let said =
        "model.gguf is damaged: an entry of tokenizer.ggml.merges is no pair; fetch it again";
    assert_eq!(text(&damaged).unwrap_err(), said);
    let unknown = demo("smollm").with("tokenizer.ggml.merges", Meta::Texts(vec!["zz zz".into()]));
    let said = "tokenizer.json from the metadata of model.gguf holds no tokenizer that can be used";
    assert_eq!(text(&unknown).unwrap_err(), said);
}

#[test]
fn a_folder_with_one_file_and_no_configuration_is_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = || ModelFiles::at(folder.path()).unwrap();
    assert!(matches!(at(), ModelFiles::Folder(_)), "there is none");
    let path = demo("smollm").write(folder.path());
    assert!(matches!(at(), ModelFiles::Gguf(gguf) if gguf.path() == path));
    let put = |name: &str| fs::copy(&path, folder.path().join(name)).unwrap();
    put("mmproj-F16.gguf");
    assert!(matches!(at(), ModelFiles::Gguf(gguf) if gguf.path() == path));
    put("config.json");
    assert!(
        matches!(at(), ModelFiles::Folder(_)),
        "it has a configuration"
    );
}

#[test]
fn a_path_with_no_model_is_told_from_one_with_several() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let said = |path: &Path| ModelFiles::at(path).unwrap_err().to_string();
    let wrong = folder.path().join("modle");
    assert_eq!(said(&wrong), format!("{place}/modle does not exist"));
    let path = demo("smollm").write(folder.path());
    fs::copy(&path, folder.path().join("other.gguf")).unwrap();
    let several = "has no config.json, and several GGUF files: name one of them; there are: \
                   model.gguf, other.gguf";
    assert_eq!(said(folder.path()), format!("{place} {several}"));
}

#[test]
fn files_beside_it_count_in_the_place_of_the_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let put =
        |name: &str| fs::copy(models::demo_folder().join(name), folder.path().join(name)).unwrap();
    put("tokenizer.json");
    fs::write(
        folder.path().join("chat_template.jinja"),
        "{{ messages[0].content }}",
    )
    .unwrap();
    let text = load(&demo("falcon"), folder.path()).unwrap();
    let hi = ids(&demo_text(), "hi");
    assert_eq!(ids(&text, "hi"), hi);
    let messages = [ChatMessage::new("user", "hi")];
    assert_eq!(text.chat_prompt(&messages, &[], u32::MAX).unwrap(), hi);
}

/// The tokens of a word as `SentencePiece` finds them: again and again, the neighbours whose token has the best
/// score become one, the first of equals.
fn by_scores(word: &str, scores: &BTreeMap<String, f32>) -> Vec<String> {
    let mut parts: Vec<String> = word.chars().map(String::from).collect();
    loop {
        let pairs = parts.windows(2).enumerate();
        let scored = pairs.filter_map(|(place, pair)| Some((place, *scores.get(&pair.concat())?)));
        let best = scored.fold(None, |best: Option<(usize, f32)>, it| match best {
            Some(best) if best.1 >= it.1 => Some(best),
            _ => Some(it),
        });
        let Some((place, _)) = best else {
            return parts;
        };
        let second = parts.remove(place + 1);
        parts[place].push_str(&second);
    }
}

#[test]
fn a_tokenizer_of_scores_reads_as_sentencepiece_does() {
    let words = [
        "▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab", "ca", "▁abc", "cab", "▁▁",
    ];
    let tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> = tokens
        .chain(bytes)
        .chain(words.map(str::to_owned))
        .collect();
    let scores: Vec<f32> = (0..tokens.len())
        // Not in the order of the ids.
        .map(|id| {
            if id < 259 {
                0.0
            } else {
                -((id * 7 % 13) as f32) - 1.0
            }
        })
        .collect();
    let types = (0..tokens.len()).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    });
    let file = empty()
        .with("tokenizer.ggml.model", Meta::Text("llama".into()))
        .with("tokenizer.ggml.tokens", Meta::Texts(tokens.clone()))
        .with("tokenizer.ggml.scores", Meta::F32s(scores.clone()))
        .with("tokenizer.ggml.token_type", Meta::I32s(types.collect()))
        .with("tokenizer.ggml.bos_token_id", Meta::U32(1))
        .with("tokenizer.ggml.eos_token_id", Meta::U32(2));
    let text = text(&file).unwrap();
    let by_token = tokens.iter().cloned().zip(scores).skip(259).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..500 {
        let letters = (0..rng.usize(1..12)).map(|_| *rng.choice(&['a', 'b', 'c', ' ']).unwrap());
        let written: String = letters.collect();
        let word = format!("▁{}", written.replace(' ', "▁"));
        let parts = by_scores(&word, &by_token);
        let id = |part: &String| tokens.iter().position(|token| token == part).unwrap();
        let expected: Vec<u32> = parts
            .iter()
            .map(|part| u32::try_from(id(part)).unwrap())
            .collect();
        let found = ids(&text, &written);
        assert_eq!(found, [&[1], &*expected].concat(), "{written:?}");
        assert_eq!(text.decode(&found).unwrap(), written);
    }
    // What the vocabulary has not is written in bytes.
    let tokens = ids(&text, "ä");
    assert_eq!(tokens[2..], [3 + 0xc3, 3 + 0xa4]);
    assert_eq!(text.decode(&tokens).unwrap(), "ä");
    let plain = file.with("tokenizer.ggml.add_space_prefix", Meta::Bool(false));
    let without = self::text(&plain).unwrap();
    assert_eq!(ids(&without, "a").len(), 2);
}
