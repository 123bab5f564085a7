//! `policy dev`: a policy that is being written, built and tested at each change, and asked beside the one
//! in force by a running server.
//!
//! A server takes policies out of its policy folder alone, so that it has them again after a restart and
//! nobody puts code into it over the network. The shadow is therefore a file there, `NAME-dev.wasm`, with a
//! sidecar that says so: it stands beside the policy itself, and decides nothing.
//!
//! # Invariants
//! 1. What does not build or pass its tests does not replace the shadow that runs, nor does an error after the
//!    first try end the command, and Ctrl-C removes both files (`host/server/tests/running/dev.rs`).

mod shadow;
mod sources;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::Result;
use pointsman_component::EmbeddedPolicy;
use pointsman_experiments::stop::Stop;

use super::server::{Format, ServerArgs};
use super::stopwatch::stopwatch;
use super::test::{self, Whole};
use super::{Done, Verdict, build};
use shadow::Shadow;
use sources::Sources;

/// The time between two looks at the wish to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `policy dev`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The policy's folder, which is built at each change; or a policy's file that something else builds
    #[arg(value_name = "FOLDER", default_value = ".")]
    policy: PathBuf,
    /// Scenarios, or folders of them [default for a folder: its `scenarios`]
    #[arg(value_name = "SCENARIOS")]
    scenarios: Vec<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// The server's policy folder, on this machine [default: as the server names it, if that is a whole path]
    #[arg(long, value_name = "FOLDER")]
    policies: Option<PathBuf>,
    /// The policy's [settings] and [limits], as in the file beside a policy in the policy folder
    #[arg(long, value_name = "FILE.toml")]
    settings: Option<PathBuf>,
    /// Check the properties for so long at each change
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = test::time)]
    time: Duration,
    /// Say how the shadow agrees so often, where there is something new
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = test::time)]
    every: Duration,
}

/// Works on a policy until Ctrl-C, and tells how it goes as it goes.
///
/// # Errors
/// If the server cannot be asked at the start, a folder cannot be watched then, or the first try cannot be carried
/// out.
pub(super) fn run(args: &Args, defaults: &'static [EmbeddedPolicy]) -> Result<Done> {
    anyhow::ensure!(
        args.server.format == Format::Human,
        "what this command tells is for people: leave out --format"
    );
    let stop = Stop::on_ctrl_c()?;
    let mut shadow = Shadow::new(&args.server, args.policies.as_deref())?;
    let worked = work(args, defaults, &stop, &mut shadow);
    let removed = shadow.remove();
    worked?;
    removed.map(|text| Done {
        text,
        verdict: Verdict::Good,
    })
}

fn work(
    args: &Args,
    defaults: &'static [EmbeddedPolicy],
    stop: &Stop,
    shadow: &mut Shadow<'_>,
) -> Result<()> {
    let mut sources = Sources::watch(args)?;
    // What changes from here on is a change after this try.
    sources.look()?;
    // An error at the first try is one of the arguments, or of this machine.
    offer(tried(args, defaults)?, args, stop, shadow)?;
    loop {
        until_changed(args, &sources, stop, shadow)?;
        if stop.is_asked() {
            return Ok(());
        }
        // A later one ends nothing: a file is half written or away while it is saved, or the server starts again. The
        // next change is the next try.
        or_said(sources.look());
        let good = or_said(tried(args, defaults));
        or_said(offer(good, args, stop, shadow));
    }
}

/// Puts a policy that is good into the server, and tells what came of it.
fn offer(good: Option<PathBuf>, args: &Args, stop: &Stop, shadow: &mut Shadow<'_>) -> Result<()> {
    if let Some(policy) = good
        && !stop.is_asked()
    {
        say(shadow.put(&policy, args.settings.as_deref(), stop)?);
    } else {
        say(shadow.stays());
    }
    Ok(())
}

/// Tells an error, which is no reason to end.
fn or_said<T: Default>(done: Result<T>) -> T {
    done.unwrap_or_else(|error| {
        say(format!("{error:#}\n"));
        T::default()
    })
}

/// Builds and tests the policy. Returns its file, if it is good.
fn tried(args: &Args, defaults: &'static [EmbeddedPolicy]) -> Result<Option<PathBuf>> {
    let is_folder = args.policy.is_dir();
    let policy = if is_folder {
        match build::build(&args.policy, None)? {
            Ok(built) => {
                say(built.text());
                built.path
            }
            Err(why) => {
                say(why);
                return Ok(None);
            }
        }
    } else {
        args.policy.clone()
    };
    let own = args.policy.join("scenarios");
    let mut scenarios = args.scenarios.clone();
    if is_folder && scenarios.is_empty() && own.is_dir() {
        scenarios.push(own);
    }
    let whole = Whole {
        policy: &policy,
        scenarios,
        settings: args.settings.clone(),
        time: args.time,
    };
    // A file that is half written, or a scenario with an error, is a policy that is not good yet.
    Ok(match test::whole(whole, defaults) {
        Ok(done) => {
            say(done.text);
            (done.verdict == Verdict::Good).then_some(policy)
        }
        Err(error) => {
            say(format!("{error:#}\n"));
            None
        }
    })
}

/// Waits for a change or Ctrl-C, and tells how the shadow agrees.
fn until_changed(
    args: &Args,
    sources: &Sources,
    stop: &Stop,
    shadow: &mut Shadow<'_>,
) -> Result<()> {
    let mut since = stopwatch();
    while !stop.is_asked() {
        match sources.news.recv_timeout(LOOK) {
            Ok(()) if sources.have_changed() => return Ok(()),
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("{} is not watched any more", args.policy.display())
            }
        }
        if since() >= args.every {
            since = stopwatch();
            say(shadow.agreement());
        }
    }
    Ok(())
}

/// Tells something at once. Nobody who reads is no reason to stop: the shadow has to be removed.
fn say(text: impl Display) {
    let mut out = io::stdout().lock();
    drop(write!(out, "{text}").and_then(|()| out.flush()));
}

/// The name of the shadow of a policy's file.
fn shadow_name(policy: &Path) -> String {
    format!("{}-dev", super::file::stem(policy))
}
