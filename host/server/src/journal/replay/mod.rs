//! Doing a journal again: [`Replay`].
//!
//! The machine of a keyframe is given the inputs that follow it and decides when it did. Each
//! question it asks is put to the policies that answered it then; what they answer, and the fuel
//! it took, has to be what the journal has. The machine goes on with the recorded answers, so what
//! it makes of them, fact by fact, has to be the same too.
//!
//! A [`Rival`] is asked the same questions besides, and how often it would have answered otherwise
//! is counted.
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

mod rival;
mod stage;
mod troupe;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pointsman_core::{Hook, Micros, Round};
use pointsman_journal::{Entry, Header, Located, ReadError};

use super::roster::Library;
pub use rival::{Rival, RivalTally};
use stage::Stage;

/// Entries shown before a difference.
const CONTEXT_MAX: usize = 12;

/// What a replay came to so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Inputs given.
    pub inputs: u64,
    /// Times the machine was told to decide.
    pub rounds: u64,
    /// Questions asked.
    pub decisions: u64,
    /// Answers of policies that came out the same.
    pub answers: u64,
    /// Of these, with the same fuel.
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

/// Where a replay came out otherwise than the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// In which file.
    pub file: Arc<Path>,
    /// Where in it.
    pub offset: u64,
    /// When.
    pub now: Micros,
    /// The last round before.
    pub round: Round,
    /// In what.
    pub what: String,
    /// What the journal has.
    pub recorded: String,
    /// What came out.
    pub replayed: String,
    /// The entries before it, oldest first.
    pub context: Vec<String>,
}

/// Why a journal cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The rules of another version would be replayed by this one's.
    #[error(
        "{file} was written by Pointsman {found}; replay it with that version, this is {}",
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// Which file.
        file: String,
        /// The version.
        found: String,
    },
    /// A keyframe that no machine can be read from.
    #[error("{file} at {offset}: the machine of the keyframe cannot be read: {why}")]
    Machine {
        /// In which file.
        file: String,
        /// Where.
        offset: u64,
        /// Why.
        why: String,
    },
    /// A policy that cannot be started.
    #[error("{0}")]
    Policy(String),
}

/// How an entry went.
#[derive(Debug)]
pub enum Outcome {
    /// As recorded, or passed over.
    Same,
    /// Otherwise. There is no point in going on.
    Differs(Box<Difference>),
}

/// What is wrong, before it is known where.
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

/// Why a step did not succeed.
enum Stop {
    Differs(Mismatch),
    Error(ReplayError),
}

impl From<Mismatch> for Stop {
    fn from(mismatch: Mismatch) -> Self {
        Self::Differs(mismatch)
    }
}

impl From<super::roster::Lifeless> for Stop {
    fn from(lifeless: super::roster::Lifeless) -> Self {
        Self::Error(ReplayError::Policy(lifeless.to_string()))
    }
}

/// Who is asked again.
#[derive(Debug)]
enum Asked {
    /// The policies of the journal.
    Recorded,
    /// Another one, besides.
    Rival(Box<Rival>),
}

/// Does a journal again, entry by entry.
#[derive(Debug)]
pub struct Replay {
    library: Library,
    asked: Asked,
    stage: Option<Stage>,
    /// Whether there was a stage before.
    begun: Begun,
    wasmtime: SameFuel,
    tally: Tally,
    context: Vec<(u64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    No,
    Yes,
}

/// Whether this build counts fuel as the one that recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SameFuel {
    Yes,
    No,
}

impl Replay {
    /// A replay that asks the policies of the journal.
    #[must_use]
    pub fn new(library: Library) -> Self {
        Self::asking(library, Asked::Recorded)
    }

    /// A replay that asks `rival` what it would have answered, and nobody else.
    #[must_use]
    pub fn with_rival(library: Library, rival: Rival) -> Self {
        Self::asking(library, Asked::Rival(Box::new(rival)))
    }

    fn asking(library: Library, asked: Asked) -> Self {
        Self {
            library,
            asked,
            stage: None,
            begun: Begun::No,
            wasmtime: SameFuel::Yes,
            tally: Tally::default(),
            context: Vec::new(),
        }
    }

    /// Whether there was a keyframe to begin with.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun == Begun::Yes
    }

    /// What it came to so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What the other policy would have done.
    #[must_use]
    pub fn rival(&self) -> Option<&Rival> {
        match &self.asked {
            Asked::Recorded => None,
            Asked::Rival(rival) => Some(rival),
        }
    }

    /// Does what an entry says, or, of a question, takes note of the answer to come.
    ///
    /// # Errors
    /// If the journal cannot be replayed.
    pub fn take(&mut self, located: Located) -> Result<Outcome, ReplayError> {
        let Located {
            file,
            offset,
            entry,
        } = located;
        let line = one_line(&entry);
        let done = match entry {
            Entry::Header(header) => self.header(&file, &header).map_err(Stop::Error),
            Entry::Keyframe(keyframe) => {
                let done = self.keyframe(*keyframe);
                done.map_err(|stop| located_in(stop, &file, offset))
            }
            // How a policy fared is told for people, but for this: a keyframe does not take its
            // state any more.
            Entry::PolicyEvent(event) => match &mut self.stage {
                Some(stage) => stage.policy_event(&event, &mut self.asked, &mut self.tally),
                None => Ok(()),
            },
            Entry::Gap(_) => {
                self.stage = None;
                Ok(())
            }
            entry @ (Entry::Input { .. }
            | Entry::Round { .. }
            | Entry::Decision(_)
            | Entry::Bound(_)
            | Entry::Fact(_)
            | Entry::Briefed(_)
            | Entry::Restarted(_)
            | Entry::Saved(_)) => self.act(entry, offset),
        };
        let differs = match done {
            Ok(()) => None,
            Err(Stop::Error(error)) => return Err(error),
            Err(Stop::Differs(mismatch)) => Some(self.difference(mismatch, file, offset)),
        };
        if self.context.len() == CONTEXT_MAX {
            self.context.remove(0);
        }
        self.context.push((offset, line));
        Ok(differs.map_or(Outcome::Same, |it| Outcome::Differs(Box::new(it))))
    }

    /// Something is wrong with the journal here: nothing is known before the next keyframe.
    pub fn damaged(&mut self, _: &ReadError) {
        self.stage = None;
    }

    /// The journal ends here. A round whose decisions were cut off is no difference.
    ///
    /// # Errors
    /// If the journal cannot be replayed.
    pub fn finish(&mut self) -> Result<Outcome, ReplayError> {
        let Some(mut stage) = self.stage.take() else {
            return Ok(Outcome::Same);
        };
        let at = stage.at();
        match stage.finish(&mut self.asked, &mut self.tally) {
            Ok(()) => Ok(Outcome::Same),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Differs(mismatch)) => {
                self.stage = Some(stage);
                let file = Path::new("end of the journal").into();
                let offset = at.unwrap_or_default();
                let difference = self.difference(mismatch, file, offset);
                Ok(Outcome::Differs(Box::new(difference)))
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
        self.wasmtime = if header.wasmtime == pointsman_policy::WASMTIME_VERSION {
            SameFuel::Yes
        } else {
            SameFuel::No
        };
        Ok(())
    }

    fn keyframe(&mut self, keyframe: pointsman_journal::Keyframe) -> Result<(), Stop> {
        if let Some(stage) = &mut self.stage
            && stage.round_is_before(&keyframe)
        {
            return stage.keyframe(&keyframe, &mut self.asked, &mut self.tally);
        }
        if self.begun == Begun::Yes {
            self.tally.restarts += 1;
        }
        self.begun = Begun::Yes;
        let stage = Stage::new(&self.library, keyframe, self.wasmtime, &mut self.asked)?;
        self.stage = Some(stage);
        Ok(())
    }

    fn act(&mut self, entry: Entry<'static>, offset: u64) -> Result<(), Stop> {
        let Some(stage) = &mut self.stage else {
            self.tally.skipped += 1;
            return Ok(());
        };
        stage.act(
            entry,
            offset,
            (&self.library, &mut self.asked, &mut self.tally),
        )
    }

    fn difference(&self, mismatch: Mismatch, file: Arc<Path>, offset: u64) -> Difference {
        let stage = self.stage.as_ref();
        let context = self.context.iter();
        Difference {
            file,
            offset: stage.and_then(Stage::at).unwrap_or(offset),
            now: stage.map_or(Micros(0), Stage::now),
            round: stage.map_or(Round(0), Stage::round),
            what: mismatch.what,
            recorded: mismatch.recorded,
            replayed: mismatch.replayed,
            context: context
                .map(|(at, line)| format!("{at:>10}  {line}"))
                .collect(),
        }
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

/// An entry for people, of bounded length.
pub(super) fn one_line(entry: &Entry<'_>) -> String {
    const MAX: usize = 300;
    let mut line = match entry {
        Entry::Header(header) => format!("header {header:?}"),
        Entry::Input { now, input } => format!("{now} input {input:?}"),
        Entry::Round { now, round } => format!("{now} decide, after round {round}"),
        Entry::Decision(it) => format!(
            "  {} by {:?}, generation {}, fuel {}: {:?} about {:?}{}",
            it.hook.as_str(),
            it.answer.author,
            it.generation,
            it.fuel,
            it.answer.value,
            it.requests,
            faults(it.hook, &it.answer.faults),
        ),
        Entry::Bound(bound) => format!("{} bound {:?}", bound.now, bound.roster.chains),
        Entry::Fact(it) => format!("  {} round {} fact {:?}", it.now, it.round, it.fact),
        Entry::PolicyEvent(it) => {
            format!("{} policy {} {}: {}", it.now, it.policy, it.what, it.detail)
        }
        Entry::Keyframe(it) => format!("{} keyframe after round {}", it.now, it.round),
        Entry::Gap(gap) => format!("gap: {} entries are missing", gap.dropped),
        Entry::Briefed(it) => format!("{} briefed {:?} up to {}", it.now, it.kinds, it.told),
        Entry::Restarted(it) => {
            format!(
                "  policy {} restarted as generation {}",
                it.policy, it.generation
            )
        }
        Entry::Saved(it) => format!("{} policy {} saved {} bytes", it.now, it.policy, it.bytes),
    };
    if line.len() > MAX {
        line.truncate(line.floor_char_boundary(MAX));
        line.push('…');
    }
    line
}

fn faults(hook: Hook, faults: &[pointsman_core::PolicyFault]) -> String {
    let faults = faults.iter();
    let faults: Vec<String> = faults
        .map(|it| {
            format!(
                "; policy {} faulted at {}: {:?}",
                it.policy,
                hook.as_str(),
                it.kind
            )
        })
        .collect();
    faults.concat()
}
