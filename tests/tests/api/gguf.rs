//! The demo model as a GGUF file, over HTTP: the answers of its folder.

use std::fs;

use anyhow::{Context, Result, ensure};
use pointsman_driver::provider::{ExecutorConfig, ModelConfig, ModelSource};
use pointsman_model::test_util::gguf::{self, Kind};
use pointsman_model::test_util::models::demo_folder;
use pointsman_tests::client::chat;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// The types that the demo model's rows have whole blocks of.
const KINDS: [(&str, Kind); 4] = [
    ("f32", Kind::F32),
    ("f16", Kind::F16),
    ("bf16", Kind::Bf16),
    ("q8-0", Kind::Q8_0),
];

fn json(name: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&fs::read(
        demo_folder().join(name),
    )?)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gguf_file_gives_the_golden_answers_of_the_folder() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut models = Vec::new();
    for (name, kind) in KINDS {
        let path = folder.path().join(format!("{name}.gguf"));
        fs::write(&path, gguf::demo(kind).bytes())?;
        let source = ModelSource::Path(path);
        models.push(ModelConfig::new(name, source));
    }
    let serving = Serving::start(|config| {
        config.local.executors = KINDS.map(|(name, _)| ExecutorConfig::new(name)).to_vec();
        config.local.models = models;
    });
    let serving = serving.await?;
    let golden = json("golden.json")?;
    let golden = golden.as_array().context("a list")?;
    ensure!(golden.len() == 18);
    for (model, _) in KINDS {
        for case in golden {
            let mut body = chat(case["message"].as_str().context("a message")?);
            body["model"] = json!(model);
            body["temperature"] = json!(0);
            let answer = serving
                .client
                .post("/v1/chat/completions", &body)
                .await?
                .json()?;
            let choice = &answer["choices"][0];
            let expected = (&case["greedy_text"], &json!("stop"));
            let found = (&choice["message"]["content"], &choice["finish_reason"]);
            ensure!(found == expected, "{model}: {case} got {answer}");
            let prompt = case["prompt_ids"].as_array().context("a list")?.len();
            ensure!(
                answer["usage"]["prompt_tokens"] == json!(prompt),
                "{answer}"
            );
        }
    }
    Ok(())
}
