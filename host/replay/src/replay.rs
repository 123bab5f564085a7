//! Replays of journals: [`Replay`].
//!
//! The machine of a keyframe is given the inputs that follow, and decides when the recorded one
//! did. Each question goes to the policies that answered it then: their answers, and the fuel for
//! them, must be those of the journal. The machine goes on with the recorded answers, so its facts
//! must be the same too.
//!
//! With a [`WhatIf`] another policy is asked the same questions instead, and the answers that
//! differ are counted.
//!
//! # Invariants
//! 1. The first difference ends a replay: later ones would follow from it
//!    (`tests/tests/operating/replay.rs`).
//! 2. After missing or damaged entries a replay goes on only with a keyframe
//!    (`tests/tests/operating/replay.rs`).
//! 3. Runs of other versions are passed over, and fail a replay only where there is no other
//!    (`runs_of_others_are_passed_over_and_fail_alone` there).
//! 4. The header of another run ends the run before it, as the end of the journal does
//!    (`another_run_is_no_gap_and_may_follow_one_that_was_cut_off` and
//!    `the_last_round_of_a_run_is_compared_before_another_run_and_found_at_its_own_place` there).
//!
//! # Not repeated
//! Faults of the clock ([`FaultKind::Deadline`]) or of a failed start are taken from the journal.
//! Fuel is compared if the replay has followed an instance from its start, and runs under the
//! wasmtime that recorded it.
//!
//! [`FaultKind::Deadline`]: pointsman_core::FaultKind::Deadline

mod answers;
mod recorded;
mod run;
mod what_if;

use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use pointsman_component::WASMTIME_VERSION;
use pointsman_core::{Micros, Round};
use pointsman_journal::{Entry, Keyframe, Located, PolicyRecord, ReadError, text_line};

use crate::components::ComponentCache;
use crate::passed_over::PassedOver;
pub(crate) use answers::End;
use answers::Place;
use run::ReplayRun;
pub use what_if::{HookComparison, WhatIf, WhatIfTally};

/// Number of entries shown before a difference.
const CONTEXT_MAX: usize = 12;

/// Counters of a replay so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayTally {
    /// Inputs that the machine was given.
    pub inputs: u64,
    /// Calls of the machine to decide.
    pub rounds: u64,
    /// Questions that the machine asked.
    pub decisions: u64,
    /// Answers of policies that were the same.
    pub answers: u64,
    /// Answers that also took the same fuel.
    pub fuels: u64,
    /// Faults that were the same.
    pub faults: u64,
    /// Faults that were taken from the journal.
    pub faults_taken: u64,
    /// Facts that were the same.
    pub facts: u64,
    /// Keyframes whose machine was the same, byte by byte.
    pub keyframes: u64,
    /// Snapshots of policies that were the same.
    pub snapshots: u64,
    /// Fresh instances that were asked after they had been told elsewhere what there was.
    pub briefed: u64,
    /// Fresh beginnings at a keyframe, after missing or damaged entries.
    pub restarts: u64,
    /// Entries that were skipped because no keyframe came before them.
    pub skipped: u64,
}

/// The first place where a replay differs from its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// File of the entry.
    pub file: Arc<Path>,
    /// Offset of the entry in the file, in bytes.
    pub offset: u64,
    /// Time of the entry, in µs of the host's clock.
    pub now: Micros,
    /// Last round before the entry.
    pub round: Round,
    /// Name of the thing that differs.
    pub what: String,
    /// Value in the journal.
    pub recorded: String,
    /// Value in the replay.
    pub replayed: String,
    /// Entries before it, oldest first.
    pub context: Vec<String>,
}

/// A reason why a journal cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Another version of Pointsman wrote the journal. This one does not have that version's rules.
    #[error(
        "{file} was written by Pointsman {found}: read it with that version, this is {}",
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// File of the journal.
        file: String,
        /// Version that wrote the journal.
        found: String,
    },
    /// The machine of a keyframe cannot be read.
    #[error(
        "{file} at {offset}: the machine of the keyframe cannot be read, as another build wrote it: {why}"
    )]
    Machine {
        /// File of the journal.
        file: String,
        /// Offset of the keyframe in the file, in bytes.
        offset: u64,
        /// Message of the decoder.
        why: String,
    },
    /// The machine does not ask what the journal has answers to.
    #[error(
        "{file} at {offset}: the machine does not go as the journal says; `pointsman replay` shows where"
    )]
    Differs {
        /// File of the journal.
        file: String,
        /// Offset in the file at which it was noticed, in bytes.
        offset: u64,
    },
    /// A policy of the journal cannot be started.
    #[error("policy {name} of the journal cannot be started")]
    Policy {
        /// Name of the policy.
        name: String,
        /// Reason that it cannot be started.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ReplayError {
    pub(crate) fn policy(record: &PolicyRecord, source: Box<dyn Error + Send + Sync>) -> Self {
        Self::Policy {
            name: record.name.clone(),
            source,
        }
    }
}

/// A difference before its place is known.
struct Mismatch {
    what: String,
    recorded: String,
    replayed: String,
}

impl Mismatch {
    fn new(what: impl Into<String>, recorded: impl Display, replayed: impl Display) -> Self {
        Self {
            what: what.into(),
            recorded: recorded.to_string(),
            replayed: replayed.to_string(),
        }
    }
}

/// A reason to stop before the end of the journal.
enum Stop {
    Differs(Mismatch),
    Error(ReplayError),
}

impl From<Mismatch> for Stop {
    fn from(mismatch: Mismatch) -> Self {
        Self::Differs(mismatch)
    }
}

impl From<ReplayError> for Stop {
    fn from(error: ReplayError) -> Self {
        Self::Error(error)
    }
}

/// A replay, entry by entry.
#[derive(Debug)]
pub struct Replay {
    components: ComponentCache,
    /// The policy that is asked instead of the journal's.
    what_if: Option<Box<WhatIf>>,
    run: Option<ReplayRun>,
    beginning: Beginning,
    passed_over: PassedOver,
    /// Version of wasmtime of the recording build.
    wasmtime: String,
    tally: ReplayTally,
    context: Vec<(u64, String)>,
}

/// The keyframe that a replay begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// None was found yet.
    Awaited,
    /// One was found, and nothing that follows it is missing.
    Found,
    /// Entries that follow it are missing or damaged: the next keyframe is a fresh beginning.
    Lost,
}

/// Parts of a replay that each step of a run needs.
struct Context<'a> {
    components: &'a ComponentCache,
    what_if: Option<&'a mut WhatIf>,
    tally: &'a mut ReplayTally,
    /// True if this build counts fuel as the recording one did.
    compares_fuel: bool,
}

impl Replay {
    /// Makes a replay that asks the policies of the journal.
    #[must_use]
    pub fn new(components: ComponentCache) -> Self {
        Self {
            components,
            what_if: None,
            run: None,
            beginning: Beginning::Awaited,
            passed_over: PassedOver::default(),
            wasmtime: WASMTIME_VERSION.to_owned(),
            tally: ReplayTally::default(),
            context: Vec::new(),
        }
    }

    /// Makes a replay that asks only the policy of `what_if`.
    #[must_use]
    pub fn with_what_if(components: ComponentCache, what_if: WhatIf) -> Self {
        Self {
            what_if: Some(Box::new(what_if)),
            ..Self::new(components)
        }
    }

    /// True once a keyframe was found to begin with.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.beginning != Beginning::Awaited
    }

    /// Counters so far.
    #[must_use]
    pub fn tally(&self) -> &ReplayTally {
        &self.tally
    }

    /// Runs that were passed over.
    #[must_use]
    pub fn passed_over(&self) -> &PassedOver {
        &self.passed_over
    }

    /// The policy that is asked instead of the journal's.
    #[must_use]
    pub fn what_if(&self) -> Option<&WhatIf> {
        self.what_if.as_deref()
    }

    /// Repeats an entry; the answer to a question is only noted. Returns the difference if
    /// something is not as in the journal; then the replay should end. A run that cannot be read is passed
    /// over ([`Self::passed_over`]).
    ///
    /// # Errors
    /// If the journal cannot be replayed.
    pub fn take(&mut self, located: Located) -> Result<Option<Box<Difference>>, ReplayError> {
        let begins_run = self.passed_over.begins_run(&located);
        if self.passed_over.hear(&located) && !begins_run {
            return Ok(None);
        }
        let Located {
            file,
            offset,
            entry,
        } = located;
        let line = text_line(&entry);
        let done = match entry {
            Entry::Header(header) => {
                let ended = if begins_run { self.end_run() } else { Ok(()) };
                self.wasmtime = header.wasmtime;
                ended
            }
            Entry::Keyframe(keyframe) => {
                let done = self.keyframe(*keyframe);
                done.map_err(|stop| located_in(stop, &file, offset))
            }
            Entry::Gap(_) => {
                self.lose();
                Ok(())
            }
            entry @ (Entry::Input { .. }
            | Entry::Round { .. }
            | Entry::Decision(_)
            | Entry::Bound(_)
            | Entry::Fact(_)
            | Entry::PolicyEvent(_)
            | Entry::Briefed(_)
            | Entry::Restarted(_)
            | Entry::Saved(_)) => self.act(entry, (Arc::clone(&file), offset)),
        };
        let difference = match done {
            Ok(()) => None,
            Err(Stop::Error(error @ ReplayError::Machine { .. })) => {
                self.passed_over.unreadable(error);
                None
            }
            Err(Stop::Error(error)) => return Err(error),
            Err(Stop::Differs(mismatch)) => Some(self.difference(mismatch, (file, offset))),
        };
        if self.context.len() == CONTEXT_MAX {
            self.context.remove(0);
        }
        self.context.push((offset, line));
        Ok(difference)
    }

    /// Notes damage in the journal: the replay goes on with the next keyframe.
    pub fn damaged(&mut self, _: &ReadError) {
        self.lose();
    }

    /// Ends the replay with the end of the journal. A round whose decisions were cut off is no
    /// difference.
    ///
    /// # Errors
    /// If the journal cannot be replayed, or all runs of it were passed over.
    pub fn finish(&mut self) -> Result<Option<Box<Difference>>, ReplayError> {
        if self.run.is_none() {
            let reason = self.passed_over.take_reason();
            let reason = reason.filter(|_| !self.has_begun());
            return reason.map_or(Ok(None), Err);
        }
        match self.end_run() {
            Ok(()) => Ok(None),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Differs(mismatch)) => {
                let end = (Path::new("end of the journal").into(), 0);
                Ok(Some(self.difference(mismatch, end)))
            }
        }
    }

    /// Ends the run, if there is one. Its last round may have been cut off.
    fn end_run(&mut self) -> Result<(), Stop> {
        let Some(mut run) = self.run.take() else {
            return Ok(());
        };
        let done = run.finish(&mut self.context_of());
        // A difference has its place from the run.
        self.run = done.is_err().then_some(run);
        done
    }

    /// Gives the run up, as entries of it are missing or damaged. Before its first keyframe there is nothing to lose.
    fn lose(&mut self) {
        if self.run.take().is_some() {
            self.beginning = Beginning::Lost;
        }
    }

    fn keyframe(&mut self, keyframe: Keyframe) -> Result<(), Stop> {
        if let Some(mut run) = self.run.take() {
            if run.round_is_before(&keyframe) {
                let done = run.keyframe(&keyframe, &mut self.context_of());
                self.run = Some(run);
                return done;
            }
            self.beginning = Beginning::Lost;
        }
        let run = ReplayRun::new(keyframe, &mut self.context_of())?;
        self.tally.restarts += u64::from(self.beginning == Beginning::Lost);
        self.beginning = Beginning::Found;
        self.run = Some(run);
        Ok(())
    }

    fn act(&mut self, entry: Entry<'static>, place: Place) -> Result<(), Stop> {
        let Some(mut run) = self.run.take() else {
            let is_for_people = matches!(entry, Entry::PolicyEvent(_));
            self.tally.skipped += u64::from(!is_for_people);
            return Ok(());
        };
        let done = run.act(entry, place, &mut self.context_of());
        self.run = Some(run);
        done
    }

    fn context_of(&mut self) -> Context<'_> {
        Context {
            components: &self.components,
            what_if: self.what_if.as_deref_mut(),
            tally: &mut self.tally,
            compares_fuel: self.wasmtime == WASMTIME_VERSION,
        }
    }

    /// The difference at the place that the run names, or else at `read`, where it was noticed.
    fn difference(&self, mismatch: Mismatch, read: Place) -> Box<Difference> {
        let run = self.run.as_ref();
        let (file, offset) = run.and_then(ReplayRun::at).unwrap_or(read);
        let context = self.context.iter();
        Box::new(Difference {
            file,
            offset,
            now: run.map_or(Micros(0), ReplayRun::now),
            round: run.map_or(Round(0), ReplayRun::round),
            what: mismatch.what,
            recorded: mismatch.recorded,
            replayed: mismatch.replayed,
            context: context
                .map(|(at, line)| format!("{at:>10}  {line}"))
                .collect(),
        })
    }
}

fn located_in(stop: Stop, file: &Path, offset: u64) -> Stop {
    match stop {
        Stop::Error(ReplayError::Machine { why, .. }) => Stop::Error(ReplayError::Machine {
            file: file.display().to_string(),
            offset,
            why,
        }),
        Stop::Error(error) => Stop::Error(error),
        Stop::Differs(mismatch) => Stop::Differs(mismatch),
    }
}
