//! Engines of others that make the steps of the benchmark `cuda` on the same device, by a script in Python.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/cuda_peer.py");
/// The beginning of the script's line where an engine does not start.
const NOT_STARTED: &str = "not started: ";

/// An engine of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaPeer {
    /// vLLM, by its offline interface.
    Vllm,
    /// transformers, as a program of a user's has it.
    Transformers,
}

/// A place where a peer may be.
#[derive(Clone, Debug)]
pub struct Candidate {
    peer: CudaPeer,
    /// The place in words.
    place: &'static str,
    python: PathBuf,
    script: PathBuf,
}

/// The steps that a peer makes of a model: prompts, one after the other, and the next tokens of batches.
#[derive(Clone, Copy, Debug)]
pub struct PeerSteps<'a> {
    /// The model's configuration.
    pub config: &'a Path,
    /// Tokens that sequences have while the next ones are generated.
    pub context: u32,
    /// Tokens of each prompt.
    pub prompts: &'a [u32],
    /// Numbers of sequences.
    pub batches: &'a [u32],
}

/// The end of a candidate's run.
#[derive(Debug)]
enum Run {
    Started,
    /// The engine did not start, and the reason.
    NotStarted(String),
}

// === impl CudaPeer ===

impl CudaPeer {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Transformers => "transformers",
        }
    }

    /// The name for the script.
    fn argument(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Transformers => "transformers",
        }
    }
}

// === impl Candidate ===

impl Candidate {
    /// The candidates in the order of preference: vLLM, and transformers where it does not start, which vLLM's environment
    /// has, too. `target` is the target folder, in which `cargo xtask bench cuda` makes environments.
    #[must_use]
    pub fn all(target: &Path) -> Vec<Self> {
        let at = |peer, place: &'static str| Self {
            peer,
            place,
            python: target.join(place).join("bin/python"),
            script: PathBuf::from(SCRIPT),
        };
        let of_machine = |peer| Self {
            python: PathBuf::from("python3"),
            ..at(peer, "python3")
        };
        vec![
            at(CudaPeer::Vllm, "peers/vllm"),
            of_machine(CudaPeer::Vllm),
            at(CudaPeer::Transformers, "peers/vllm"),
            at(CudaPeer::Transformers, "peers/transformers"),
            of_machine(CudaPeer::Transformers),
        ]
    }

    fn run(&self, steps: &PeerSteps<'_>, tell: &mut dyn FnMut(&str) -> Result<()>) -> Result<Run> {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).arg(self.peer.argument());
        command.arg(steps.config).arg(steps.context.to_string());
        command.arg(list(steps.prompts)).arg(list(steps.batches));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(Run::NotStarted(error.to_string())),
        };
        let said = child.stdout.take().context("its output is piped")?;
        let read = pass_on(BufReader::new(said), tell);
        if read.is_err() {
            // It has the device's memory.
            drop(child.kill());
        }
        let status = child.wait()?;
        let (why, has_started) = read?;
        let ended = format!("it ended with {status}");
        match (why, has_started) {
            (Some(why), _) => return Ok(Run::NotStarted(why)),
            (None, false) => return Ok(Run::NotStarted(ended)),
            (None, true) if status.success() => {}
            (None, true) => tell(&ended)?,
        }
        Ok(Run::Started)
    }
}

// === impl PeerSteps ===

impl PeerSteps<'_> {
    /// Has the first candidate that starts make the steps. Tells what it says, and why those before it did not start. A
    /// step that fails is told, and so is that none starts.
    ///
    /// # Errors
    /// If `tell` fails, or a program's words cannot be read.
    pub fn make(
        &self,
        candidates: &[Candidate],
        tell: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        for candidate in candidates {
            match candidate.run(self, tell)? {
                Run::Started => return Ok(()),
                Run::NotStarted(why) => {
                    let (peer, place) = (candidate.peer.name(), candidate.place);
                    tell(&format!("{peer} of {place} did not start: {why}"))?;
                }
            }
        }
        tell("no other engine made these steps")
    }
}

/// Tells what an engine says, line by line. Returns why it did not start, if it says so, and whether it did anything.
fn pass_on(
    said: impl BufRead,
    tell: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(Option<String>, bool)> {
    let (mut why, mut has_started) = (None, false);
    for line in said.lines() {
        let line = line?;
        match line.strip_prefix(NOT_STARTED) {
            Some(reason) => why = Some(reason.to_owned()),
            None => {
                tell(&line)?;
                has_started = true;
            }
        }
    }
    Ok((why, has_started))
}

/// Numbers separated by commas.
fn list(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(",")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::serving::target;

    const NO_DRIVER: &str = "echo not started: ImportError: no driver; exit 3";

    /// The words of candidates that are shell scripts, of each of these peers.
    fn told(scripts: &[(CudaPeer, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let candidates = scripts.iter().zip(0..).map(|((peer, text), number)| {
            let script = folder.path().join(format!("{number}.sh"));
            fs::write(&script, text).unwrap();
            Candidate {
                peer: *peer,
                place: "sh",
                python: PathBuf::from("sh"),
                script,
            }
        });
        made(&candidates.collect::<Vec<_>>())
    }

    /// The lines that are told of these candidates' steps.
    fn made(candidates: &[Candidate]) -> Vec<String> {
        let steps = PeerSteps {
            config: Path::new("1B.json"),
            context: 512,
            prompts: &[512, 2048],
            batches: &[1, 8],
        };
        let mut told = Vec::new();
        let done = steps.make(candidates, &mut |line| {
            told.push(line.to_owned());
            Ok(())
        });
        done.unwrap();
        told
    }

    #[test]
    fn transformers_makes_the_steps_where_vllm_does_not_start_and_both_are_told() {
        let told = told(&[
            (CudaPeer::Vllm, NO_DRIVER),
            (CudaPeer::Transformers, "echo \"$@\""),
            (CudaPeer::Transformers, "echo never"),
        ]);
        let expected = [
            "vLLM of sh did not start: ImportError: no driver",
            "transformers 1B.json 512 512,2048 1,8",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn an_engine_that_breaks_off_is_told_with_what_it_said_before() {
        let told = told(&[
            (CudaPeer::Vllm, "exit 4"),
            (CudaPeer::Vllm, "echo vLLM 1.0; echo decode; exit 5"),
            (CudaPeer::Transformers, "echo never"),
        ]);
        let expected = [
            "vLLM of sh did not start: it ended with exit status: 4",
            "vLLM 1.0",
            "decode",
            "it ended with exit status: 5",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn without_any_other_engine_the_benchmark_goes_on() {
        let missing = Candidate {
            python: PathBuf::from("no-such-program-of-ours"),
            ..Candidate::all(Path::new("target"))[0].clone()
        };
        let told = made(&[missing]);
        assert!(
            told[0].starts_with("vLLM of peers/vllm did not start: "),
            "{told:?}"
        );
        assert_eq!(told[1..], ["no other engine made these steps"]);
        assert!(made(&[]) == told[1..]);
    }

    #[test]
    fn candidates_are_in_the_environments_that_are_made_for_them_and_then_anywhere() {
        let candidates = Candidate::all(Path::new("target"));
        let places = candidates.iter().map(|candidate| {
            let python = candidate.python.display().to_string();
            (candidate.peer.argument(), python)
        });
        let places: Vec<(&str, String)> = places.collect();
        let expected = [
            ("vllm", "target/peers/vllm/bin/python"),
            ("vllm", "python3"),
            ("transformers", "target/peers/vllm/bin/python"),
            ("transformers", "target/peers/transformers/bin/python"),
            ("transformers", "python3"),
        ];
        let expected = expected.map(|(peer, python)| (peer, python.to_owned()));
        assert_eq!(places, expected);
    }

    #[test]
    fn the_script_says_which_package_an_engine_lacks() {
        // The clients' environment has neither.
        let candidates = [CudaPeer::Vllm, CudaPeer::Transformers].map(|peer| Candidate {
            peer,
            place: "python",
            python: target().join("python/bin/python"),
            script: PathBuf::from(SCRIPT),
        });
        let expected = [
            "vLLM of python did not start: ModuleNotFoundError: No module named 'vllm'",
            "transformers of python did not start: ModuleNotFoundError: No module named 'torch'",
            "no other engine made these steps",
        ];
        assert_eq!(made(&candidates), expected);
    }
}
