//! Replays of journals: [`Replay`].
//!
//! The machine of a keyframe is given the inputs that follow it and decides when it did. Each
//! question it asks is put to the policies that answered it then; what they answer, and the fuel
//! it took, has to be what the journal has. The machine goes on with the recorded answers, so what
//! it makes of them, fact by fact, has to be the same too.
//!
//! With a [`WhatIf`] another policy is asked the same questions instead, and how often it would
//! have answered otherwise is counted.
//!
//! # Invariants
//! 1. The first difference ends a replay: what follows from it is of no interest
//!    (`tests/tests/replay.rs`).
//! 2. No replay goes on across missing or damaged entries but by a keyframe
//!    (`tests/tests/replay.rs`).
//!
//! # What is not repeated
//! A fault that came of the clock ([`FaultKind::Deadline`]) or of a start that did not succeed is
//! taken from the journal. Fuel is compared where an instance has been followed from its start, or
//! from where its predecessor faulted, and under the wasmtime that recorded it.
//!
//! [`FaultKind::Deadline`]: pointsman_core::FaultKind::Deadline

mod answers;
mod recorded;
mod run;
mod what_if;

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pointsman_core::{Micros, Round};
use pointsman_journal::{Entry, Header, Keyframe, Located, PolicyRecord, ReadError, text_line};

use crate::components::ComponentCache;
use run::ReplayRun;
pub use what_if::{HookComparison, WhatIf, WhatIfTally};

/// Entries shown before a difference.
const CONTEXT_MAX: usize = 12;

/// Counts of a replay so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayTally {
    /// Inputs given to the machine.
    pub inputs: u64,
    /// Times the machine was told to decide.
    pub rounds: u64,
    /// Questions that the machine asked.
    pub decisions: u64,
    /// Answers of policies that came out the same.
    pub answers: u64,
    /// Answers that also took the same fuel.
    pub fuels: u64,
    /// Faults that came out the same.
    pub faults: u64,
    /// Faults that were taken from the journal.
    pub faults_taken: u64,
    /// Facts that came out the same.
    pub facts: u64,
    /// Keyframes whose machine came out the same, byte by byte.
    pub keyframes: u64,
    /// Snapshots of policies that came out the same.
    pub snapshots: u64,
    /// Times a replay began anew after missing or damaged entries.
    pub restarts: u64,
    /// Entries passed over for want of a keyframe before them.
    pub skipped: u64,
}

/// The place where a replay came out otherwise than the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The file of the entry.
    pub file: Arc<Path>,
    /// Offset of the entry in the file, in bytes.
    pub offset: u64,
    /// The time of the entry, on the host's clock.
    pub now: Micros,
    /// The last round before.
    pub round: Round,
    /// The thing that differs.
    pub what: String,
    /// Its value in the journal.
    pub recorded: String,
    /// Its value in the replay.
    pub replayed: String,
    /// The entries before it, oldest first.
    pub context: Vec<String>,
}

/// The reason for which a journal cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It was written by another version, whose rules this one does not have.
    #[error(
        "{file} was written by Pointsman {found}; replay it with that version, this is {}",
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// The journal's file.
        file: String,
        /// The version that wrote it.
        found: String,
    },
    /// A keyframe has no machine that can be read.
    #[error("{file} at {offset}: the machine of the keyframe cannot be read: {why}")]
    Machine {
        /// The journal's file.
        file: String,
        /// Offset of the keyframe in the file, in bytes.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// A policy of the journal cannot be started.
    #[error("policy {name} of the journal cannot be started")]
    Policy {
        /// The policy's name.
        name: String,
        /// The reason.
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
    fn new(what: impl Into<String>, recorded: impl fmt::Debug, replayed: impl fmt::Debug) -> Self {
        Self {
            what: what.into(),
            recorded: format!("{recorded:?}"),
            replayed: format!("{replayed:?}"),
        }
    }
}

/// The end of a replay before the end of its journal.
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
    /// Another policy, which is asked instead of those of the journal.
    what_if: Option<Box<WhatIf>>,
    run: Option<ReplayRun>,
    has_begun: bool,
    /// True if this build counts fuel as the one that recorded.
    compares_fuel: bool,
    tally: ReplayTally,
    context: Vec<(u64, String)>,
}

/// Parts of a replay that each step of a run needs.
struct Context<'a> {
    components: &'a ComponentCache,
    what_if: Option<&'a mut WhatIf>,
    tally: &'a mut ReplayTally,
}

impl Replay {
    /// A replay that asks the policies of the journal.
    #[must_use]
    pub fn new(components: ComponentCache) -> Self {
        Self {
            components,
            what_if: None,
            run: None,
            has_begun: false,
            compares_fuel: true,
            tally: ReplayTally::default(),
            context: Vec::new(),
        }
    }

    /// A replay that asks the policy of `what_if` alone.
    #[must_use]
    pub fn with_what_if(components: ComponentCache, what_if: WhatIf) -> Self {
        Self {
            what_if: Some(Box::new(what_if)),
            ..Self::new(components)
        }
    }

    /// True once there was a keyframe to begin with.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Counts so far.
    #[must_use]
    pub fn tally(&self) -> &ReplayTally {
        &self.tally
    }

    /// The other policy that is asked, if one is.
    #[must_use]
    pub fn what_if(&self) -> Option<&WhatIf> {
        self.what_if.as_deref()
    }

    /// Does what an entry says, or, of a question, takes note of the answer to come. Returns the
    /// difference, if something came out otherwise; there is no point in going on then.
    ///
    /// # Errors
    /// If the journal cannot be replayed.
    pub fn take(&mut self, located: Located) -> Result<Option<Box<Difference>>, ReplayError> {
        let Located {
            file,
            offset,
            entry,
        } = located;
        let line = text_line(&entry);
        let done = match entry {
            Entry::Header(header) => self.header(&file, &header).map_err(Stop::Error),
            Entry::Keyframe(keyframe) => {
                let done = self.keyframe(*keyframe);
                done.map_err(|stop| located_in(stop, &file, offset))
            }
            Entry::Gap(_) => {
                self.run = None;
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
            | Entry::Saved(_)) => self.act(entry, offset),
        };
        let difference = match done {
            Ok(()) => None,
            Err(Stop::Error(error)) => return Err(error),
            Err(Stop::Differs(mismatch)) => Some(self.difference(mismatch, file, offset)),
        };
        if self.context.len() == CONTEXT_MAX {
            self.context.remove(0);
        }
        self.context.push((offset, line));
        Ok(difference)
    }

    /// Notes that the journal is damaged here: nothing is known before the next keyframe.
    pub fn damaged(&mut self, _: &ReadError) {
        self.run = None;
    }

    /// Ends the replay with the journal. A round whose decisions were cut off is no difference.
    ///
    /// # Errors
    /// If the journal cannot be replayed.
    pub fn finish(&mut self) -> Result<Option<Box<Difference>>, ReplayError> {
        let Some(mut run) = self.run.take() else {
            return Ok(None);
        };
        let at = run.at();
        match run.finish(&mut self.context_of()) {
            Ok(()) => Ok(None),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Differs(mismatch)) => {
                self.run = Some(run);
                let file = Path::new("end of the journal").into();
                Ok(Some(self.difference(
                    mismatch,
                    file,
                    at.unwrap_or_default(),
                )))
            }
        }
    }

    fn header(&mut self, file: &Path, header: &Header) -> Result<(), ReplayError> {
        if header.pointsman != env!("CARGO_PKG_VERSION") {
            return Err(ReplayError::OtherVersion {
                file: file.display().to_string(),
                found: header.pointsman.clone(),
            });
        }
        self.compares_fuel = header.wasmtime == pointsman_policy::WASMTIME_VERSION;
        Ok(())
    }

    fn keyframe(&mut self, keyframe: Keyframe) -> Result<(), Stop> {
        if let Some(mut run) = self.run.take()
            && run.round_is_before(&keyframe)
        {
            let done = run.keyframe(&keyframe, &mut self.context_of());
            self.run = Some(run);
            return done;
        }
        self.tally.restarts += u64::from(self.has_begun);
        self.has_begun = true;
        let compares_fuel = self.compares_fuel;
        let run = ReplayRun::new(keyframe, compares_fuel, &mut self.context_of())?;
        self.run = Some(run);
        Ok(())
    }

    fn act(&mut self, entry: Entry<'static>, offset: u64) -> Result<(), Stop> {
        let Some(mut run) = self.run.take() else {
            let is_for_people = matches!(entry, Entry::PolicyEvent(_));
            self.tally.skipped += u64::from(!is_for_people);
            return Ok(());
        };
        let done = run.act(entry, offset, &mut self.context_of());
        self.run = Some(run);
        done
    }

    fn context_of(&mut self) -> Context<'_> {
        Context {
            components: &self.components,
            what_if: self.what_if.as_deref_mut(),
            tally: &mut self.tally,
        }
    }

    fn difference(&self, mismatch: Mismatch, file: Arc<Path>, offset: u64) -> Box<Difference> {
        let run = self.run.as_ref();
        let context = self.context.iter();
        Box::new(Difference {
            file,
            offset: run.and_then(ReplayRun::at).unwrap_or(offset),
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
