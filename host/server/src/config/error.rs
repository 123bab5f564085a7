//! What can be wrong with a configuration, and where it says so.

use std::fmt;
use std::path::PathBuf;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {wrong}")]
pub struct ConfigError {
    /// Where it says so.
    pub place: Place,
    /// What is wrong.
    pub wrong: Box<Wrong>,
}

impl ConfigError {
    pub(crate) fn new(place: Place, wrong: Wrong) -> Self {
        let wrong = Box::new(wrong);
        Self { place, wrong }
    }
}

/// Where something is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file as a whole.
    File(PathBuf),
    /// A place in a file. Lines and columns count from one, columns in characters.
    At {
        /// Which file.
        file: PathBuf,
        /// Which line.
        line: usize,
        /// Which character of the line.
        column: usize,
    },
    /// A flag.
    Flag(&'static str),
    /// Nowhere: the defaults cannot be used.
    Defaults,
}

/// What is wrong with a configuration. A `key` is the path of a key: `http.body-max`,
/// `models[0].slots`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// A file that is not there or cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A folder that is not there.
    #[error("{key}: there is no folder {}", path.display())]
    NoFolder {
        /// Which key.
        key: String,
        /// What it names.
        path: PathBuf,
    },
    /// The file is no TOML.
    #[error("{0}")]
    Syntax(String),
    /// A key that has no meaning there.
    #[error("unknown key `{key}`; {}", instead(meant.as_deref(), known))]
    UnknownKey {
        /// Its path.
        key: String,
        /// What was probably meant.
        meant: Option<String>,
        /// What has a meaning there.
        known: Vec<String>,
    },
    /// A value of the wrong type or form.
    #[error("{key}: {message}")]
    Value {
        /// Which key.
        key: String,
        /// What is wrong with it.
        message: String,
    },
    /// A value out of its range.
    #[error("{key} must be from {min} to {max}, not {value}")]
    OutOfRange {
        /// Which key.
        key: String,
        /// The value.
        value: String,
        /// Smallest value accepted.
        min: String,
        /// Largest value accepted.
        max: String,
    },
    /// A name that stands for two things.
    #[error("{key}: `{name}` is there already")]
    Twice {
        /// Which key.
        key: String,
        /// The name.
        name: String,
    },
    /// A name that stands for nothing.
    #[error("{key}: there is no tenant `{name}`; {}", instead(meant.as_deref(), known))]
    UnknownTenant {
        /// Which key.
        key: String,
        /// The name.
        name: String,
        /// What was probably meant.
        meant: Option<String>,
        /// The tenants there are.
        known: Vec<String>,
    },
    /// An API key given in no way, or in several.
    #[error("{key} needs one of `key`, `sha256` and `file`")]
    KeySource {
        /// Which key.
        key: String,
    },
    /// An API key that is given a second time.
    #[error("{key} is the same key as {other}")]
    SameKey {
        /// The second.
        key: String,
        /// The first.
        other: String,
    },
    /// More sequences at once than a step has tokens for.
    #[error(
        "{slots} slots, all models together, need as many tokens per step, not {tokens_per_step}"
    )]
    SlotsExceedStep {
        /// Slots of all models.
        slots: u64,
        /// Tokens in a step.
        tokens_per_step: u32,
    },
    /// More models than executors may be attached.
    #[error("{models} models need as many executors, but core.executors-max is {executors_max}")]
    ModelsExceedExecutors {
        /// Models.
        models: usize,
        /// The bound.
        executors_max: u32,
    },
    /// The demo model is asked for, and this build has none.
    #[error("this build has no demo model: name a model's folder, with `path` or --model")]
    NoDemoModel,
}

/// What to write instead of an unknown name.
fn instead(meant: Option<&str>, known: &[String]) -> String {
    match meant {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("there are: {}", known.join(", ")),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(file) => write!(f, "{}", file.display()),
            Place::At { file, line, column } => write!(f, "{}:{line}:{column}", file.display()),
            Place::Flag(flag) => f.write_str(flag),
            Place::Defaults => f.write_str("defaults"),
        }
    }
}
