//! Programs of others that tests run: clients that are always there, and what a run was asked to have.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::serving::{Serving, target};

/// The variable by which `cargo xtask test --with NAME` says what there is.
const WITH: &str = "POINTSMAN_TEST_WITH";
/// Messages with the demo model's answers.
const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/demo-model/golden.json"
);
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients");

/// A script that talks to a server as clients do, and ends with 0 if all is as it should be.
#[derive(Clone, Debug)]
pub struct ClientScript {
    interpreter: PathBuf,
    script: PathBuf,
    /// Further arguments.
    words: &'static [&'static str],
}

/// The folder of a program that tests are run with on demand; absent: this run is without it, which
/// is said.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "the run's configuration, and its word about what it leaves out"
)]
pub fn extra(name: &str) -> Option<PathBuf> {
    let with = std::env::var(WITH).unwrap_or_default();
    if with.split(',').any(|there| there == name) {
        return Some(target().join("peers").join(name));
    }
    println!("not run: `cargo xtask test --with {name}` has what this needs");
    None
}

/// An address where nobody listens now, for a program that has to be told one.
///
/// # Errors
/// If the system has none.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl ClientScript {
    /// The official `openai` client for Python.
    #[must_use]
    pub fn python() -> Self {
        Self::of_python("openai_chat.py")
    }

    /// The same, which asks for no more than chats, as a server of others takes them.
    #[must_use]
    pub fn python_chats() -> Self {
        Self {
            words: &["chats"],
            ..Self::python()
        }
    }

    /// The official `openai` client for Python, which has models call tools.
    #[must_use]
    pub fn python_tools() -> Self {
        Self::of_python("openai_tools.py")
    }

    fn of_python(script: &str) -> Self {
        Self {
            interpreter: target().join("python/bin/python"),
            script: Path::new(SCRIPTS).join(script),
            words: &[],
        }
    }

    /// The official `openai` client for Node.
    #[must_use]
    pub fn node() -> Self {
        Self {
            interpreter: PathBuf::from("node"),
            script: target().join("node/openai_chat.mjs"),
            words: &[],
        }
    }

    /// LiteLLM and LangChain; absent: this run is without them.
    #[must_use]
    pub fn frameworks() -> Option<Self> {
        let folder = extra("frameworks")?;
        Some(Self {
            interpreter: folder.join("bin/python"),
            script: Path::new(SCRIPTS).join("frameworks.py"),
            words: &[],
        })
    }

    /// Runs the script against a server.
    ///
    /// # Errors
    /// If something is not as it should be, with what the script said.
    pub async fn run(&self, serving: &Serving) -> Result<()> {
        let output = Command::new(&self.interpreter)
            .arg(&self.script)
            .arg(format!("http://{}/v1", serving.server.addr()))
            .arg(GOLDEN)
            .args(self.words)
            .output()
            .await
            .with_context(|| format!("{}: run `cargo xtask test`", self.interpreter.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}\n{complained}");
        Ok(())
    }
}
