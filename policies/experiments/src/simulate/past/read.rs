//! A journal, read for a simulation: its longest run, and the policies that decided most of it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use pointsman_core::{Input, Machine};
use pointsman_journal::{
    BlobError, Chain, Entry, JournalReader, Keyframe, Located, PolicyRecord, ReadError, Roster,
};
use pointsman_replay::{PassedOver, ReplayError};
use pointsman_sim::history::History;

/// A run of a journal.
#[derive(Debug, Default)]
pub(super) struct RecordedRun {
    pub(super) history: Option<History>,
    /// The policies by number, each with its code where the journal has it.
    policies: BTreeMap<u32, PolicyRecord>,
    /// The orders of asking, each with the requests that arrived under it.
    chains: Vec<(Vec<Chain>, u64)>,
    /// True where entries are missing, until the next keyframe.
    is_interrupted: bool,
}

/// A journal that was read.
#[derive(Debug)]
pub(super) struct ReadJournal {
    /// The run with the most requests.
    pub(super) run: RecordedRun,
    /// Other runs with requests.
    pub(super) others: u64,
    /// Runs that were passed over.
    pub(super) passed_over: PassedOver,
    /// Files of another format.
    pub(super) foreign: usize,
    /// Places at which it is damaged.
    pub(super) damaged: u64,
    /// Files that end within an entry.
    pub(super) cut_off: usize,
}

/// A journal that is being read.
#[derive(Debug, Default)]
struct Reading {
    runs: Vec<RecordedRun>,
    passed_over: PassedOver,
    /// The fault of each file of another format.
    foreign: Vec<ReadError>,
    damaged: u64,
}

impl ReadJournal {
    /// Reads the journal at `path`, a folder or a file.
    ///
    /// # Errors
    /// If there is no journal, this build wrote no run of it, or it has no keyframe to begin with.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut reader = JournalReader::open(path)?;
        let mut reading = Reading::default();
        for located in reader.by_ref() {
            match located {
                Ok(located) => reading.take(located),
                Err(error) => reading.fault(error),
            }
        }
        let runs = std::mem::take(&mut reading.runs);
        let with_requests = runs.iter().filter(|run| run.arrivals() > 0).count();
        let lack = if runs.is_empty() {
            "no journal in it"
        } else {
            "there is no keyframe in it, so there is nothing to begin with"
        };
        let runs = runs.into_iter().filter(|run| run.history.is_some());
        // The first of those with the most.
        let most = runs.reduce(|best, run| {
            if run.arrivals() > best.arrivals() {
                run
            } else {
                best
            }
        });
        let Some(run) = most else {
            let reason = reading.reason();
            return Err(reason.unwrap_or_else(|| anyhow!("{}: {lack}", path.display())));
        };
        Ok(Self {
            run,
            others: (with_requests as u64).saturating_sub(1),
            passed_over: reading.passed_over,
            foreign: reading.foreign.len(),
            damaged: reading.damaged,
            cut_off: reader.torn_tails().len(),
        })
    }
}

impl Reading {
    fn take(&mut self, located: Located) {
        let begins_run = self.passed_over.begins_run(&located);
        if self.passed_over.hear(&located) {
            return;
        }
        if begins_run {
            self.runs.push(RecordedRun::default());
        }
        let Located {
            file,
            offset,
            entry,
        } = located;
        let Some(run) = self.runs.last_mut() else {
            return;
        };
        if let Err(error) = run.take(entry) {
            self.passed_over.unreadable(ReplayError::Machine {
                file: file.display().to_string(),
                offset,
                why: error.to_string(),
            });
        }
    }

    fn fault(&mut self, error: ReadError) {
        if matches!(error, ReadError::File { .. }) {
            self.foreign.push(error);
        } else if !self.passed_over.is_passing() {
            self.damaged += 1;
            if let Some(run) = self.runs.last_mut() {
                run.is_interrupted = true;
            }
        }
    }

    /// The reason for which a part of the journal was passed over; absent: none was.
    fn reason(mut self) -> Option<anyhow::Error> {
        let other = self.passed_over.take_reason();
        let foreign = self.foreign.into_iter().next();
        other
            .map(anyhow::Error::from)
            .or_else(|| foreign.map(anyhow::Error::from))
    }
}

impl RecordedRun {
    pub(super) fn arrivals(&self) -> u64 {
        self.history.as_ref().map_or(0, History::arrivals)
    }

    /// The policies, and the order of asking under which most requests arrived.
    pub(super) fn policies(&self) -> (Vec<PolicyRecord>, Vec<Chain>) {
        let most = self
            .chains
            .iter()
            .rev()
            .max_by_key(|(_, requests)| *requests);
        let chains = most.map(|(chains, _)| chains.clone());
        let policies = self.policies.values().cloned();
        (policies.collect(), chains.unwrap_or_default())
    }

    /// The requests that arrived under another order of asking than that.
    pub(super) fn decided_otherwise(&self) -> u64 {
        let requests = self.chains.iter().map(|(_, requests)| *requests);
        let most = requests.clone().max().unwrap_or(0);
        requests.sum::<u64>() - most
    }

    fn take(&mut self, entry: Entry<'static>) -> Result<(), BlobError> {
        match entry {
            Entry::Keyframe(keyframe) => return self.keyframe(*keyframe),
            Entry::Bound(bound) => self.meet(bound.roster),
            Entry::Gap(_) => self.is_interrupted = true,
            Entry::Input { now, input } => {
                let Some(history) = self.history.as_mut().filter(|_| !self.is_interrupted) else {
                    return Ok(());
                };
                history.input(now, &input);
                if let (Input::RequestArrived(_), Some((_, requests))) =
                    (&*input, self.chains.last_mut())
                {
                    *requests += 1;
                }
            }
            Entry::Fact(stamped) => {
                if let Some(history) = self.history.as_mut().filter(|_| !self.is_interrupted) {
                    history.fact(&stamped);
                }
            }
            Entry::Header(_)
            | Entry::Round { .. }
            | Entry::Decision(_)
            | Entry::PolicyEvent(_)
            | Entry::Briefed(_)
            | Entry::Restarted(_)
            | Entry::Saved(_) => {}
        }
        Ok(())
    }

    /// Begins with the first keyframe, and goes on with one after entries that are missing.
    fn keyframe(&mut self, keyframe: Keyframe) -> Result<(), BlobError> {
        self.meet(keyframe.roster);
        if self.history.is_some() && !self.is_interrupted {
            return Ok(());
        }
        let machine: Machine = keyframe.machine.read()?;
        match &mut self.history {
            Some(history) => history.go_on(&machine),
            None => self.history = Some(History::new(&machine)),
        }
        self.is_interrupted = false;
        Ok(())
    }

    fn meet(&mut self, roster: Roster) {
        for record in roster.policies {
            let known = self.policies.get(&record.number);
            if record.code.is_some() || known.is_none_or(|known| known.code.is_none()) {
                self.policies.insert(record.number, record);
            }
        }
        if self
            .chains
            .last()
            .is_none_or(|(last, _)| *last != roster.chains)
        {
            self.chains.push((roster.chains, 0));
        }
    }
}
