//! Models of random weights.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use pointsman_engine::test_util::{self, demo_text};
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _};
use pointsman_executor::text::Detokenizer as _;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use pointsman_model::weights::Values;
use pointsman_text::ModelText;
use serde_json::{Value, json};

fn files(path: &Path, seed: u64) -> ModelFiles {
    ModelFiles::Dummy(Dummy::new(path, seed))
}

fn folder(config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn logits(files: &ModelFiles) -> Vec<f32> {
    test_util::logits(Arc::new(HostModel::load(files).unwrap()))
}

#[test]
fn every_shape_computes_and_each_seed_is_another_model() {
    for config in models::shapes() {
        let folder = folder(&config);
        let of = |seed| logits(&files(folder.path(), seed));
        let first = of(0);
        assert!(first.iter().all(|logit| logit.is_finite()), "{config}");
        let spread = first.iter().fold(0.0_f32, |most, it| most.max(it.abs()));
        assert!((0.1..100.0).contains(&spread), "{spread} of {config}");
        assert_eq!(first, of(0), "{config}");
        assert_ne!(first, of(1), "{config}");
    }
}

#[test]
fn a_seed_is_the_same_model_on_every_machine() {
    let folder = folder(&models::config(json!({})));
    let model = HostModel::load(&files(&folder.path().join("config.json"), 7)).unwrap();
    let weights = model.weights();
    let Values::Bf16(embedding) = &weights.embedding.values else {
        panic!("they are bf16");
    };
    let first: Vec<f32> = embedding[..4].iter().map(|it| it.to_f32()).collect();
    assert_eq!(
        first,
        [0.015_625, -0.214_843_75, -0.132_812_5, -0.238_281_25]
    );
    assert_eq!(weights.norm, [1.0; 48]);
}

#[test]
fn without_a_tokenizer_each_byte_is_a_token() {
    let folder = folder(&models::config(json!({"vocab_size": 300})));
    let text = ModelText::load(&files(folder.path(), 0)).unwrap();
    for written in ["hello", "caf\u{e9} \u{1f600}\n\0"] {
        let ids = text.encode(written, u32::MAX).unwrap();
        let bytes: Vec<u32> = written.bytes().map(u32::from).collect();
        assert_eq!(ids, bytes);
        assert_eq!(text.decode(&ids).unwrap(), written);
    }
    let messages = [ChatMessage::new("user", "hi")];
    let prompt = text.chat_prompt(&messages, &[], u32::MAX).unwrap();
    assert_eq!(text.decode(&prompt).unwrap(), "user: hi\n");
}

#[test]
fn a_tokenizer_beside_the_configuration_counts() {
    let folder = models::demo_folder();
    let text = ModelText::load(&files(&folder, 0)).unwrap();
    let written = "What comes after four?";
    let ids = |text: &ModelText| text.encode(written, u32::MAX).unwrap();
    assert_eq!(ids(&text), ids(&demo_text()));
    assert!(text.has_chat_template());
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = HostModel::load(&files(folder.path(), 0)).unwrap_err();
    let path = folder.path().join("config.json");
    let said = format!(
        "{} does not exist; a model folder in Hugging Face's layout has one",
        path.display()
    );
    assert_eq!(error.to_string(), said);
}
