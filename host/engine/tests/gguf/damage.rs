//! Files that are cut short, or that lie.

use fastrand::Rng;
use pointsman_model::gguf::try_head;
use pointsman_model::test_util::gguf::{GgufFile, Kind, Meta};
use pointsman_model::test_util::models;
use serde_json::json;

use super::open;

/// A small file with a tokenizer, and the length of its head.
fn sample() -> (Vec<u8>, usize) {
    let config = models::config(json!({"num_hidden_layers": 1, "vocab_size": 5}));
    let (file, _) = GgufFile::of_model(&config, &models::tensors(&config, 0), Kind::F32);
    let tokens = ["<s>", "</s>", "a", "b", "ab"].map(str::to_owned).to_vec();
    let file = file
        .with("tokenizer.ggml.model", Meta::Text("gpt2".into()))
        .with("tokenizer.ggml.pre", Meta::Text("gpt-2".into()))
        .with("tokenizer.ggml.tokens", Meta::Texts(tokens))
        .with("tokenizer.ggml.token_type", Meta::I32s(vec![3, 3, 1, 1, 1]))
        .with("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into()]));
    let bytes = file.bytes();
    let data: usize = file
        .tensors
        .values()
        .map(|(_, _, bytes)| bytes.len().next_multiple_of(32))
        .sum();
    (bytes.clone(), bytes.len() - data)
}

#[test]
fn a_file_that_was_cut_short_is_told_so_wherever_the_cut_is() {
    let (whole, head) = sample();
    try_head(&whole).unwrap();
    for length in (0..=head).chain([head + 100, whole.len() - 1]) {
        let said = try_head(&whole[..length]).unwrap_err();
        if length < 8 {
            assert!(
                said.starts_with("model.gguf is no GGUF file;"),
                "{length}: {said}"
            );
        } else {
            let cut = said.starts_with("model.gguf was cut short: ");
            assert!(
                cut && said.ends_with("; fetch it again"),
                "{length}: {said}"
            );
        }
    }
    let said = open(&whole[..whole.len() - 1]).unwrap_err();
    let expected = "model.gguf was cut short: tensor token_embd.weight would go beyond its end; fetch it again";
    assert_eq!(said, expected);
}

#[test]
fn no_damage_makes_the_reader_panic() {
    let (whole, head) = sample();
    let mut rng = Rng::with_seed(1);
    let mut understood = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.usize(1..4) {
            let place = rng.usize(..head);
            bytes[place] = match rng.u8(..3) {
                0 => rng.u8(..),
                1 => bytes[place] ^ (1 << rng.u8(..8)),
                _ => *rng.choice(&[0, 1, 0x7f, 0xff]).unwrap(),
            };
        }
        understood += u32::from(try_head(&bytes).is_ok());
    }
    // Some damage is to texts and numbers that may be anything.
    assert!((100..15_000).contains(&understood), "{understood}");
}

#[test]
fn a_length_that_the_file_has_not_takes_no_memory() {
    let (whole, _) = sample();
    let place = |text: &str| {
        let mut windows = whole.windows(text.len());
        windows
            .position(|window| window == text.as_bytes())
            .unwrap()
            + text.len()
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        try_head(&damaged).unwrap_err()
    };
    let huge = u64::MAX.to_le_bytes();
    // Behind the key: the kind of the list, the kind of what is in it, and the number of them.
    let list = place("tokenizer.ggml.tokens") + 8;
    assert!(with(list, &huge).starts_with("model.gguf "));
    let text = place("tokenizer.ggml.pre") + 4;
    let said =
        "model.gguf was cut short: tokenizer.ggml.pre would go beyond its end; fetch it again";
    assert_eq!(with(text, &huge), said);
    let tensors = with(8, &huge);
    assert!(tensors.starts_with("model.gguf is damaged: it claims 18446744073709551615 tensors"));
    let shape = place("token_embd.weight") + 4;
    let said = with(shape, &(u64::MAX / 2).to_le_bytes());
    assert!(
        said.contains("token_embd.weight of type F32 cannot have shape"),
        "{said}"
    );
    let large = with(shape, &(1_u64 << 40).to_le_bytes());
    assert!(
        large.starts_with("model.gguf was cut short: tensor token_embd.weight"),
        "{large}"
    );
    let kind = place("tokenizer.ggml.pre");
    let said =
        "model.gguf is damaged: key tokenizer.ggml.pre has a value of kind 99; fetch it again";
    assert_eq!(with(kind, &99_u32.to_le_bytes()), said);
}

#[test]
fn what_is_no_such_file_is_told_so() {
    let said =
        "model.gguf is no GGUF file; a model is a folder in Hugging Face's layout, or a GGUF file";
    assert_eq!(open(b"{\"architectures\": []}").unwrap_err(), said);
    let (mut bytes, _) = sample();
    bytes[4..8].copy_from_slice(&3_u32.to_be_bytes());
    let said = "model.gguf: byte order `big-endian` is not supported; little-endian is: convert the model again";
    assert_eq!(open(&bytes).unwrap_err(), said);
    bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
    let said =
        "model.gguf: GGUF version `1` is not supported; 2 and 3 are: convert the model again";
    assert_eq!(open(&bytes).unwrap_err(), said);
}
