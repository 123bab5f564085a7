//! Models of a hub: fetched, gone on with, checked, and used without a network.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod log;
mod mock;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pointsman_driver::provider::{ModelConfig, ModelSource};
use pointsman_local::hub::{HubSettings, Reach};
use pointsman_local::hub::{cached, fetched};
use pointsman_local::{DeviceConfig, LocalSettings};
use pointsman_notation::chain;
use serde_json::{Value, json};
use tempfile::TempDir;

use log::Log;
use mock::{COMMIT, Mock, NEWER, sha256, tag};

const WEIGHTS: &str = "model.safetensors";
const MODEL: &str = "org/tiny";

/// The demo model's files, and some that no server needs.
fn files() -> BTreeMap<String, Vec<u8>> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo-model");
    let needed = [
        "config.json",
        "generation_config.json",
        WEIGHTS,
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let content = |name: &str| (name.to_owned(), fs::read(demo.join(name)).unwrap());
    let mut files: BTreeMap<String, Vec<u8>> = needed.into_iter().map(content).collect();
    for name in ["README.md", "../outside.json", "pytorch_model.bin"] {
        files.insert(name.to_owned(), b"unneeded".to_vec());
    }
    files
}

struct Stage {
    mock: Mock,
    home: TempDir,
    hub: HubSettings,
    devices: Vec<DeviceConfig>,
}

impl Stage {
    fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mock = Mock::serve(files);
        let hub = HubSettings::of_environment(|name| match name {
            "HF_HOME" => Some(home.path().to_str()?.to_owned()),
            "HF_ENDPOINT" => Some(format!("http://{}", mock.hub)),
            "HF_TOKEN" => Some("hf_secret".to_owned()),
            _ => None,
        });
        Self {
            mock,
            home,
            hub,
            devices: vec![DeviceConfig::with_processors("cpu0", 2)],
        }
    }

    /// Fetches a model. Returns its place.
    async fn fetch(&self, model: &str) -> Result<PathBuf, String> {
        let source = ModelSource::Hub(model.parse().unwrap());
        let settings = LocalSettings {
            models: vec![ModelConfig::new("m", source)],
            hub: self.hub.clone(),
            executors: Vec::new(),
            devices: self.devices.clone(),
        };
        let fetched = fetched(&settings).await;
        let fetched = fetched.map_err(|error| {
            let home = self.home.path().display().to_string();
            let endpoint = &self.hub.endpoint;
            chain(&error)
                .replace(&home, "HOME")
                .replace(endpoint, "HUB")
        })?;
        let ModelSource::Path(path) = &fetched.models[0].source else {
            panic!("{:?}", fetched.models[0]);
        };
        Ok(path.clone())
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join("hub/models--org--tiny")
    }

    fn lines(&self) -> Vec<String> {
        let asked = self.mock.asked();
        asked
            .into_iter()
            .map(|asked| format!("{} {}", asked.server, asked.line))
            .collect()
    }
}

#[tokio::test]
async fn a_model_is_laid_out_as_the_tools_of_the_hub_do() {
    let stage = Stage::new(files());
    let place = stage.fetch(MODEL).await.unwrap();
    assert_eq!(place, stage.cache().join("snapshots").join(COMMIT));
    let names = fs::read_dir(&place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let needed = [
        "config.json",
        "generation_config.json",
        WEIGHTS,
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, needed);
    for name in needed {
        let content = &files()[name];
        assert_eq!(&fs::read(place.join(name)).unwrap(), content);
        let link = fs::read_link(place.join(name)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(tag(name, content)));
    }
    let main = fs::read_to_string(stage.cache().join("refs/main")).unwrap();
    assert_eq!(main, COMMIT);
    assert_eq!(
        fs::read_dir(stage.cache().join("blobs")).unwrap().count(),
        5
    );
    assert_eq!(cached(&MODEL.parse().unwrap(), &stage.hub), Some(place));
}

#[tokio::test]
async fn the_log_tells_how_far_a_file_has_come() {
    let stage = Stage::new(files());
    let log = Log::begin();
    let place = stage.fetch(MODEL).await.unwrap();
    let bytes_total = files()[WEIGHTS].len();
    let begun = log.lines("fetching");
    // The others are small, and there at once.
    assert_eq!(begun[0].0["file"], WEIGHTS);
    let tenths = bytes_total / 100_000;
    let size = format!("{}.{} MB", tenths / 10, tenths % 10);
    assert_eq!(begun[0].0["size"], size);
    let more = log.lines("more is there");
    let of_weights = more.iter().filter(|line| line.0["name"] == WEIGHTS);
    let bytes = of_weights.map(|line| line.0["bytes"].parse().unwrap());
    let bytes: Vec<usize> = bytes.collect();
    assert!(bytes.is_sorted() && bytes.len() > 1, "{bytes:?}");
    assert_eq!(bytes.last(), Some(&bytes_total));
    let fetched = log.lines("fetched");
    let fetched = fetched.iter().map(|line| &*line.0["file"]);
    let mut fetched: Vec<&str> = fetched.collect();
    fetched.sort_unstable();
    let names = fs::read_dir(place).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    assert_eq!(fetched, names);
}

#[tokio::test]
async fn what_is_there_is_not_fetched_again() {
    let stage = Stage::new(files());
    stage.fetch(MODEL).await.unwrap();
    assert!(stage.lines().len() > 5);
    stage.fetch(MODEL).await.unwrap();
    let list = "hub GET /api/models/org/tiny/revision/main";
    assert_eq!(stage.lines(), [list]);
    // Of another commit, with the same content.
    let config = stage
        .cache()
        .join("snapshots")
        .join(COMMIT)
        .join("config.json");
    fs::remove_file(&config).unwrap();
    stage.fetch(MODEL).await.unwrap();
    let head = |path: &str| format!("hub HEAD {path}");
    let path = format!("/org/tiny/resolve/{COMMIT}/config.json");
    assert_eq!(
        stage.lines(),
        [list.to_owned(), head(&path), head("/again/config.json")]
    );
    assert!(config.is_file());
}

#[tokio::test]
async fn a_branch_is_written_only_where_it_is_another_commit_and_then_as_a_whole() {
    let stage = Stage::new(files());
    stage.fetch(MODEL).await.unwrap();
    // A cache that has all may be one that can only be read.
    let main = stage.cache().join("refs/main");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let file = File::options().write(true).open(&main).unwrap();
    file.set_modified(long_ago).unwrap();
    stage.fetch(MODEL).await.unwrap();
    let found = fs::metadata(&main).unwrap();
    assert_eq!(found.modified().unwrap(), long_ago);

    // The file that was there stays as it was: another one takes its place.
    fs::write(&main, NEWER).unwrap();
    let before = stage.home.path().join("before");
    fs::hard_link(&main, &before).unwrap();
    // A process has ended while it wrote.
    fs::write(stage.cache().join("refs.incomplete"), &NEWER[..9]).unwrap();
    stage.fetch(MODEL).await.unwrap();
    assert_eq!(fs::read_to_string(&main).unwrap(), COMMIT);
    assert_eq!(fs::read_to_string(before).unwrap(), NEWER);
    let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
    assert_eq!(count(&stage.cache().join("refs")), 1);
    assert_eq!(count(&stage.cache()), ["blobs", "refs", "snapshots"].len());
}

#[tokio::test]
async fn a_download_that_breaks_off_is_gone_on_with_and_the_key_stays_with_the_hub() {
    let stage = Stage::new(files());
    stage
        .mock
        .faults(|state| state.cuts = vec![70_000, 1_000_000]);
    let place = stage.fetch(MODEL).await.unwrap();
    assert_eq!(fs::read(place.join(WEIGHTS)).unwrap(), files()[WEIGHTS]);
    let asked = stage.mock.asked();
    let stored = asked.iter().filter(|asked| asked.server == "store");
    let ranges: Vec<Option<&str>> = stored.clone().map(|asked| asked.range.as_deref()).collect();
    assert_eq!(
        ranges,
        [None, Some("bytes=1000000-"), Some("bytes=1070000-")]
    );
    assert!(stored.clone().all(|asked| asked.authorization.is_none()));
    let mut of_hub = asked.iter().filter(|asked| asked.server == "hub");
    assert!(of_hub.all(|asked| asked.authorization.as_deref() == Some("Bearer hf_secret")));
}

#[tokio::test]
async fn what_a_process_before_has_left_is_gone_on_with() {
    let stage = Stage::new(files());
    let stage_cache = stage.cache();
    let weights = &files()[WEIGHTS];
    let part = stage
        .cache()
        .join(format!("blobs/{}.incomplete", sha256(weights)));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, &weights[..3_000_000]).unwrap();
    let place = stage.fetch(MODEL).await.unwrap();
    assert_eq!(&fs::read(place.join(WEIGHTS)).unwrap(), weights);
    let asked = stage.mock.asked();
    let mut stored = asked.iter().filter(|asked| asked.server == "store");
    assert_eq!(
        stored.next().unwrap().range.as_deref(),
        Some("bytes=3000000-")
    );
    assert!(!part.exists());

    // Left by a tool that writes in another order.
    let stage = Stage::new(files());
    let part = stage.cache().join(part.strip_prefix(stage_cache).unwrap());
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, [0; 1000]).unwrap();
    let place = stage.fetch(MODEL).await.unwrap();
    assert_eq!(&fs::read(place.join(WEIGHTS)).unwrap(), weights);
}

#[tokio::test]
async fn what_is_not_what_the_hub_says_gets_no_name() {
    let stage = Stage::new(files());
    stage.mock.faults(|state| state.lies = true);
    let said = stage.fetch(MODEL).await.unwrap_err();
    let expected = format!(
        "and not {}; it was removed, so try again",
        sha256(&files()[WEIGHTS])
    );
    assert!(
        said.starts_with("model.safetensors of org/tiny came damaged: its SHA-256 is "),
        "{said}"
    );
    assert!(said.ends_with(&expected), "{said}");
    assert!(
        !stage
            .cache()
            .join("snapshots")
            .join(COMMIT)
            .join(WEIGHTS)
            .exists()
    );
    assert!(!stage.cache().join("refs/main").exists());
    assert_eq!(cached(&MODEL.parse().unwrap(), &stage.hub), None);
    stage.mock.faults(|state| state.lies = false);
    stage.fetch(MODEL).await.unwrap();
}

#[tokio::test]
async fn without_a_network_the_cache_serves() {
    let mut stage = Stage::new(files());
    let said = |why: &str| format!("{why}, HOME/hub/models--org--tiny");
    // A port that nobody listens at any more.
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let hub = std::mem::replace(&mut stage.hub.endpoint, format!("http://{nobody}"));
    let unreached = stage.fetch(MODEL).await.unwrap_err();
    let begins =
        "model org/tiny is no folder here, and the hub at HUB cannot be reached or is busy (";
    assert!(unreached.starts_with(begins), "{unreached}");
    let end =
        said("try again later, or name a folder or a GGUF file, or copy the model into the cache");
    assert!(unreached.ends_with(&end), "{unreached}");
    stage.hub.reach = Reach::Offline;
    let offline = "HF_HUB_OFFLINE is set, and HOME/hub/models--org--tiny has no whole copy of org/tiny; fetch it \
                   where there is a network, and copy the cache";
    assert_eq!(stage.fetch(MODEL).await.unwrap_err(), offline);

    let nowhere = std::mem::replace(&mut stage.hub.endpoint, hub);
    stage.hub.reach = Reach::Online;
    let place = stage.fetch(MODEL).await.unwrap();
    stage.mock.asked();
    stage.hub.reach = Reach::Offline;
    assert_eq!(stage.fetch(MODEL).await, Ok(place.clone()));
    assert_eq!(
        stage.fetch(&format!("org/tiny@{COMMIT}")).await,
        Ok(place.clone())
    );
    assert!(stage.mock.asked().is_empty());
    stage.hub.reach = Reach::Online;
    stage.hub.endpoint = nowhere;
    assert_eq!(stage.fetch(MODEL).await, Ok(place.clone()));
    // Half of it is no model.
    fs::remove_file(place.join("tokenizer.json")).unwrap();
    assert!(stage.fetch(MODEL).await.is_ok(), "not every model has one");
    fs::remove_file(place.join(WEIGHTS)).unwrap();
    assert!(stage.fetch(MODEL).await.is_err());
}

#[tokio::test]
async fn a_hub_that_is_busy_is_asked_again_and_then_the_cache_serves() {
    let stage = Stage::new(files());
    let place = stage.fetch(MODEL).await.unwrap();
    stage.mock.asked();
    let list = "hub GET /api/models/org/tiny/revision/main";
    for status in [429, 500] {
        let refuses = Some((status, ""));
        stage.mock.faults(|state| state.refuses = refuses);
        assert_eq!(stage.fetch(MODEL).await, Ok(place.clone()), "{status}");
        assert_eq!(stage.lines(), [list; 3]);
    }
    stage.mock.faults(|state| state.refuses = None);
    // It tells of another commit, and has none of its files.
    stage.mock.faults(|state| state.newer = Some(503));
    assert_eq!(stage.fetch(MODEL).await, Ok(place.clone()));
    let head = format!("hub HEAD /org/tiny/resolve/{NEWER}/config.json");
    assert_eq!(stage.lines(), [list, &*head, &*head, &*head]);
    fs::remove_file(place.join(WEIGHTS)).unwrap();
    let said = stage.fetch(MODEL).await.unwrap_err();
    assert!(said.contains("(status 503 Service Unavailable)"), "{said}");
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let stage = Stage::new(files());
    let unknown = "model org/other is no folder here, and the hub at HUB knows no model org/other, or shows it to \
                   nobody without a key: check the name, or set HF_TOKEN";
    assert_eq!(stage.fetch("org/other").await.unwrap_err(), unknown);
    for (status, code, said) in [
        (
            403,
            "GatedRepo",
            "the makers of org/tiny have not given it to you: ask for access at HUB/org/tiny, and set HF_TOKEN to a \
             token of yours",
        ),
        (
            404,
            "RevisionNotFound",
            "the hub at HUB has no revision main of org/tiny",
        ),
        (
            500,
            "",
            "model org/tiny is no folder here, and the hub at HUB cannot be reached or is busy (status 500 \
             Internal Server Error); try again later, or name a folder or a GGUF file, or copy the model into the cache, \
             HOME/hub/models--org--tiny",
        ),
        (
            418,
            "",
            "the hub at HUB answers /api/models/org/tiny/revision/main with status 418 I'm a teapot; try again later",
        ),
    ] {
        stage
            .mock
            .faults(|state| state.refuses = Some((status, code)));
        assert_eq!(stage.fetch(MODEL).await.unwrap_err(), said);
    }
}

#[tokio::test]
async fn a_model_that_cannot_be_served_is_refused_before_its_weights() {
    let mut files = files();
    let config = json!({"architectures": ["Gemma3ForCausalLM"], "vocab_size": 1, "hidden_size": 1,
        "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1,
        "max_position_embeddings": 1});
    files.insert("config.json".to_owned(), config.to_string().into_bytes());
    let stage = Stage::new(files);
    let said = "org/tiny cannot be served; its weights were not fetched: config.json: architectures \
                `Gemma3ForCausalLM` is not supported; LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and \
                Qwen3ForCausalLM are";
    assert_eq!(stage.fetch(MODEL).await.unwrap_err(), said);
    assert!(stage.mock.asked().iter().all(|asked| asked.server == "hub"));
}

#[tokio::test]
async fn a_model_whose_tokenizer_cannot_be_used_is_refused_before_its_weights() {
    let mut without = files();
    without.remove("tokenizer.json");
    let mut other = files();
    other.insert("tokenizer.json".to_owned(), b"{}".to_vec());
    let mut fewer = files();
    let mut config: Value = serde_json::from_slice(&fewer["config.json"]).unwrap();
    config["vocab_size"] = json!(1000);
    fewer.insert("config.json".to_owned(), config.to_string().into_bytes());
    for (files, why) in [
        (without, "tokenizer.json is missing"),
        (other, "tokenizer.json holds no tokenizer that can be used"),
        (fewer, "the tokenizer has 1024 tokens, the model 1000"),
    ] {
        let stage = Stage::new(files);
        let said = stage.fetch(MODEL).await.unwrap_err();
        let begins = "org/tiny cannot be served; its weights were not fetched: ";
        assert!(said.starts_with(begins) && said.contains(why), "{said}");
        assert!(stage.mock.asked().iter().all(|asked| asked.server == "hub"));
    }
}

#[tokio::test]
async fn a_model_in_fp8_is_fetched_only_where_a_cuda_device_may_compute_it() {
    let mut files = files();
    let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    config["quantization_config"] = json!({"quant_method": "fp8"});
    files.insert("config.json".to_owned(), config.to_string().into_bytes());
    let mut stage = Stage::new(files);
    let said = "org/tiny is in FP8, which only CUDA devices of compute capability 8.9 or newer compute, and this host \
                has none configured; its weights were not fetched: serve a copy of it in bf16";
    assert_eq!(stage.fetch(MODEL).await.unwrap_err(), said);
    assert!(stage.mock.asked().iter().all(|asked| asked.server == "hub"));
    stage.devices.push(DeviceConfig::with_cuda("gpu0", &[0]));
    let place = stage.fetch(MODEL).await.unwrap();
    assert!(place.join(WEIGHTS).is_file());
}

#[tokio::test]
async fn shards_and_gguf_files_are_fetched_as_they_are_needed() {
    let mut sharded = files();
    let weights = sharded.remove(WEIGHTS).unwrap();
    sharded.insert("model-1.safetensors".to_owned(), weights.clone());
    sharded.insert("model-2.safetensors".to_owned(), weights);
    let index = json!({"weight_map": {"a": "model-1.safetensors", "b": "../outside.json"}});
    let index = index.to_string().into_bytes();
    sharded.insert("model.safetensors.index.json".to_owned(), index);
    sharded.insert("sub/tiny-Q4_K_M.gguf".to_owned(), b"GGUF".to_vec());
    sharded.insert("sub/tiny-Q8_0.gguf".to_owned(), b"GGUF8".to_vec());
    let stage = Stage::new(sharded);
    let place = stage.fetch(MODEL).await.unwrap();
    assert!(place.join("model-1.safetensors").is_file());
    assert!(!place.join("model-2.safetensors").exists());
    assert!(!place.join("../outside.json").exists());
    let file = stage.fetch("org/tiny:q8_0").await.unwrap();
    assert_eq!(file, place.join("sub/tiny-Q8_0.gguf"));
    assert_eq!(fs::read(&file).unwrap(), b"GGUF8");
    assert!(!place.join("sub/tiny-Q4_K_M.gguf").exists());
}
