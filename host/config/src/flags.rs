//! Flags of the configuration.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use pointsman_driver::provider::ModelSource;
use pointsman_executor::server::ServerUrl;
use pointsman_notation::HubModel;

use crate::LogFormat;
use crate::fleet::SIZES;

/// The ending of a GGUF file.
const GGUF: &str = "gguf";
/// The configuration of a model, in a folder that is named for it.
const CONFIG: &str = "config.json";
/// The beginning of a model of random weights, and of its seed.
const DUMMY: &str = "dummy:";
const SEED: &str = ",seed=";

/// Flags that name the configuration file, or override it.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Configuration file; examples/pointsman.toml explains every key
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address to listen on: `localhost:8080`, or `:8080` for all of this machine's, of IPv4 and of IPv6
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub listen: Option<SocketAddr>,

    /// Model to serve: a Hugging Face folder or a GGUF file, called NAME or as that is; ORG/NAME, which is
    /// fetched from the hub; or `dummy:PATH,seed=N`, random weights for a config.json. Repeatable; replaces the
    /// models of the file [default: the demo model, as `demo`]
    #[arg(long = "model", value_name = "[NAME=]PATH")]
    pub models: Vec<ModelFlag>,

    /// Server to pass requests on to, as in `http://gpu1:8000`: vLLM, SGLang, llama.cpp, Ollama or another
    /// with OpenAI's API, found out by asking. Repeatable; replaces the backends of the file
    #[arg(long = "backend", value_name = "URL")]
    pub backends: Vec<ServerUrl>,

    /// Try policies on N executors of the demo model, each half of the one before: slots, memory, tokens of a step, threads.
    /// Replaces the models, executors, backends and devices of the file
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(SIZES),
        conflicts_with_all = ["models", "backends"]
    )]
    pub fleet: Option<u32>,

    /// Folder of policies, watched for changes [default: ./policies.d, if it exists]
    #[arg(long, value_name = "DIR")]
    pub policies: Option<PathBuf>,

    /// Folder of everything that outlives the server: orders, quarantine, last good and compiled
    /// policies [default: $STATE_DIRECTORY, or pointsman in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Write logs for people or for programs [default: human]
    #[arg(
        long,
        value_enum,
        value_name = "human|json",
        hide_possible_values = true
    )]
    pub log_format: Option<LogFormat>,

    /// Filter of the log: a level, or levels by the beginning of a module's name, as in
    /// `warn,pointsman=debug` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

/// The address that `HOST:PORT` means: a host by its number or name, which is looked up; without one, all
/// addresses of this machine, where those of IPv6 stand for those of IPv4 too.
///
/// # Errors
/// If it is none, or the host has no address.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, ListenError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').ok_or(ListenError::NoPort)?;
    let port: u16 = port.parse().map_err(|_none| ListenError::NoPort)?;
    match host {
        "" => return Ok((Ipv6Addr::UNSPECIFIED, port).into()),
        // Clients that try the other family first fall back on this one.
        "localhost" => return Ok((Ipv4Addr::LOCALHOST, port).into()),
        _ => {}
    }
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
    let preferred = found.iter().find(|address| address.is_ipv4());
    let preferred = preferred.or_else(|| found.first()).copied();
    preferred.ok_or_else(|| ListenError::NoHost(host.to_owned()))
}

/// A text that is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// A port is missing.
    #[error("expected an address and a port, such as 127.0.0.1:8080, localhost:8080 or :8080")]
    NoPort,
    /// The host is not known.
    #[error(
        "`{0}` is no address and no name that has one; write an address and a port, such as localhost:8080 or :8080"
    )]
    NoHost(String),
}

/// A value of `--model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFlag {
    /// The name clients use.
    pub name: String,
    /// The place of the model's files.
    pub source: ModelSource,
}

/// A reason to refuse a value of `--model`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFlagError {
    /// A model without a name.
    #[error("the path has no name to call the model by; write NAME=PATH")]
    NoName,
    /// A seed that is no number.
    #[error("the seed is no number from 0 to 4294967295; write dummy:PATH,seed=N")]
    NoSeed,
    /// A model without a path.
    #[error("the path of a folder or a GGUF file is missing")]
    NoPath,
}

impl FromStr for ModelFlag {
    type Err = ModelFlagError;

    fn from_str(text: &str) -> Result<Self, ModelFlagError> {
        let (name, place) = match text.split_once('=') {
            Some((name, place)) if !name.starts_with(DUMMY) => (Some(name.to_owned()), place),
            Some(_) | None => (None, text),
        };
        let (path, seed) = match place.strip_prefix(DUMMY) {
            None => (Path::new(place), None),
            Some(dummy) => {
                let (config, seed) = dummy.rsplit_once(SEED).unwrap_or((dummy, "0"));
                let seed = seed.parse().map_err(|_none| ModelFlagError::NoSeed)?;
                (Path::new(config), Some(seed))
            }
        };
        if path.as_os_str().is_empty() {
            return Err(ModelFlagError::NoPath);
        }
        let on_hub = on_hub(place).filter(|_| seed.is_none());
        let called = match &on_hub {
            Some(model) => Some(model.name().to_owned()),
            None => called(path),
        };
        let name = name.or(called).filter(|name| !name.is_empty());
        Ok(Self {
            name: name.ok_or(ModelFlagError::NoName)?,
            source: match on_hub {
                Some(model) => ModelSource::Hub(model),
                None => source(path.to_owned(), seed),
            },
        })
    }
}

/// The model on a hub that a text means. What is here, or would be in a folder that is here, is no such model.
fn on_hub(text: &str) -> Option<HubModel> {
    let (path, model) = (Path::new(text), text.parse::<HubModel>().ok()?);
    (!path.exists() && !Path::new(model.maker()).exists()).then_some(model)
}

/// The place of a model's files: at this path, or random weights by a seed.
pub(crate) fn source(path: PathBuf, seed: Option<u32>) -> ModelSource {
    match seed {
        None => ModelSource::Path(path),
        Some(seed) => ModelSource::Dummy {
            config: path,
            seed: seed.into(),
        },
    }
}

/// The name of a model that is given none: its folder's, or its file's without the ending.
fn called(path: &Path) -> Option<String> {
    let is_gguf = path.extension().is_some_and(|it| it == GGUF);
    let is_config = path.file_name().is_some_and(|it| it == CONFIG);
    let name = match (is_gguf, is_config) {
        (true, _) => path.file_stem(),
        (false, true) => path.parent().and_then(Path::file_name),
        (false, false) => path.file_name(),
    };
    name.map(|name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_the_host_or_name_it() {
        let at = |text: &str| listen_address(text).map(|address| address.to_string());
        for (text, address) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:8080", "[::1]:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            (":8080", "[::]:8080"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(address), "{text}");
        }
        for text in ["8080", "localhost", ":http", "127.0.0.1", ""] {
            assert_eq!(at(text), Err(ListenError::NoPort), "{text:?}");
        }
        let nobody = ListenError::NoHost("no such host".to_owned());
        assert_eq!(at("no such host:80"), Err(nobody));
    }

    #[test]
    fn a_model_is_called_like_its_folder_or_file_unless_it_is_named() {
        for (text, name, path) in [
            ("./tiny", "tiny", "./tiny"),
            ("/models/tiny/", "tiny", "/models/tiny/"),
            // The folder is here, and what is not in it is misspelt.
            ("src/tiny", "tiny", "src/tiny"),
            ("./tiny-Q8_0.gguf", "tiny-Q8_0", "./tiny-Q8_0.gguf"),
            ("chat=tiny", "chat", "tiny"),
            ("chat=a=b", "chat", "a=b"),
        ] {
            let flag: ModelFlag = text.parse().unwrap();
            assert_eq!(
                (flag.name.as_str(), flag.source),
                (name, ModelSource::Path(path.into()))
            );
        }
        for (text, error) in [
            ("", ModelFlagError::NoPath),
            ("chat=", ModelFlagError::NoPath),
            ("=models", ModelFlagError::NoName),
            ("..", ModelFlagError::NoName),
            ("dummy:", ModelFlagError::NoPath),
            ("dummy:a,seed=x", ModelFlagError::NoSeed),
        ] {
            assert_eq!(text.parse::<ModelFlag>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_maker_and_a_name_mean_a_model_on_the_hub() {
        for (text, name, model) in [
            ("org/tiny", "tiny", "org/tiny"),
            ("org/tiny:Q4_K_M@v2", "tiny", "org/tiny:Q4_K_M@v2"),
            ("chat=org/tiny", "chat", "org/tiny"),
        ] {
            let flag: ModelFlag = text.parse().unwrap();
            let source = ModelSource::Hub(model.parse().unwrap());
            assert_eq!((flag.name.as_str(), flag.source), (name, source));
        }
    }

    #[test]
    fn a_dummy_has_a_seed_and_is_called_like_the_folder_of_its_configuration() {
        for (text, name, config, seed) in [
            ("dummy:models/large", "large", "models/large", 0),
            (
                "dummy:models/large/config.json",
                "large",
                "models/large/config.json",
                0,
            ),
            ("dummy:large,seed=7", "large", "large", 7),
            ("chat=dummy:large,seed=7", "chat", "large", 7),
        ] {
            let flag: ModelFlag = text.parse().unwrap();
            let config = config.into();
            assert_eq!(flag.name, name, "{text}");
            assert_eq!(flag.source, ModelSource::Dummy { config, seed }, "{text}");
        }
    }
}
