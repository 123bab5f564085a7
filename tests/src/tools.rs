//! Models that know tools: the demo model, with chat templates that tell of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_config::Config;
use pointsman_driver::provider::{ExecutorConfig, ModelConfig, ModelSource};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo-model");

/// The marks by which templates show how calls are written, by the names of models.
const MARKS: [(&str, &str); 6] = [
    ("tags", "<tool_call></tool_call>"),
    ("marked", "[TOOL_CALLS]"),
    ("named", "[TOOL_CALLS][ARGS]"),
    ("bare", "<|python_tag|>"),
    (SINGLE, "<|python_tag|>"),
    (SPECIAL, "[TOOL_CALLS][ARGS]"),
];
/// The model whose template refuses a message with several calls, as that of Llama 3.1 does.
const SINGLE: &str = "single";
const REFUSAL: &str = "{% for m in messages %}{% if 'tool_calls' in m and m.tool_calls | length != 1 %}\
     {{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}{% endfor %}";
/// The model whose marks are special tokens.
const SPECIAL: &str = "special";

/// The folders of the models, for as long as they are served.
#[derive(Debug)]
pub struct ToolModels(TempDir);

impl ToolModels {
    /// Makes the models `tags`, `marked`, `named` and `bare`, each of which writes calls in its own way; `single`, which
    /// is `bare` with a template that takes one call in a message; and `special`, which is `named` with marks that are
    /// special tokens.
    ///
    /// # Errors
    /// If files cannot be copied.
    pub fn make() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, marks) in MARKS {
            let to = folder.path().join(name);
            fs::create_dir(&to)?;
            for file in ["config.json", "model.safetensors", "generation_config.json"] {
                fs::copy(Path::new(DEMO).join(file), to.join(file))?;
            }
            let read = |file: &str| fs::read_to_string(Path::new(DEMO).join(file));
            let mut config: Value = serde_json::from_str(&read("tokenizer_config.json")?)?;
            let chat = config["chat_template"].as_str().unwrap_or_default();
            // What the demo model knows, behind what it is told of tools.
            let chat = chat.replace("m['content']", "(m['content'] or '')");
            let refusal = if name == SINGLE { REFUSAL } else { "" };
            let template = format!(
                "{refusal}{{% if tools %}}{{{{ tools | tojson }}}}{{{{ '{marks}' }}}}{{% endif %}}{chat}"
            );
            config["chat_template"] = json!(template);
            fs::write(to.join("tokenizer_config.json"), config.to_string())?;
            let mut tokenizer: Value = serde_json::from_str(&read("tokenizer.json")?)?;
            if name == SPECIAL {
                make_special(&mut tokenizer, &["[TOOL_CALLS]", "[ARGS]"])?;
            }
            fs::write(to.join("tokenizer.json"), tokenizer.to_string())?;
        }
        Ok(Self(folder))
    }

    /// Has a server serve the models, beside those that it has.
    pub fn serve(&self, config: &mut Config) {
        for (name, _) in MARKS {
            let source = ModelSource::Path(self.0.path().join(name));
            config.local.models.push(ModelConfig::new(name, source));
            config.local.executors.push(ExecutorConfig::new(name));
        }
    }
}

/// Gives a tokenizer these special tokens in the place of the last ones that it has learnt.
fn make_special(tokenizer: &mut Value, marks: &[&str]) -> Result<()> {
    let merges = tokenizer["model"]["merges"].as_array_mut();
    let merges = merges.context("the tokenizer has merges")?;
    merges.truncate(merges.len() - marks.len());
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
    let vocabulary = vocabulary.context("the tokenizer has a vocabulary")?;
    let kept = (vocabulary.len() - marks.len()) as u64;
    vocabulary.retain(|_, id| id.as_u64() < Some(kept));
    let added = tokenizer["added_tokens"].as_array_mut();
    let added = added.context("the tokenizer has special tokens")?;
    added.extend((kept..).zip(marks).map(|(id, mark)| {
        json!({
            "id": id, "content": mark, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })
    }));
    Ok(())
}
