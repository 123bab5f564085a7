//! A journal, read for a simulation: its longest run, and the policies that decided most of it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pointsman_core::{Input, Machine};
use pointsman_journal::{
    Chain, Entry, Header, JournalReader, Keyframe, PolicyRecord, ReadError, Roster,
};
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
    /// Places at which it is damaged.
    pub(super) damaged: u64,
    /// Files that end within an entry.
    pub(super) cut_off: usize,
}

impl ReadJournal {
    /// Reads the journal at `path`, a folder or a file.
    ///
    /// # Errors
    /// If there is no journal, another version wrote it, or it has no keyframe to begin with.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let mut reader = JournalReader::open(path)?;
        let (mut started, mut runs, mut damaged) = (None, Vec::new(), 0);
        for located in reader.by_ref() {
            match located.map(|located| located.entry) {
                Ok(Entry::Header(header)) => {
                    check_version(path, &header)?;
                    if started != Some(header.started_unix_ms) {
                        started = Some(header.started_unix_ms);
                        runs.push(RecordedRun::default());
                    }
                }
                Ok(entry) => {
                    if let Some(run) = runs.last_mut() {
                        run.take(entry).with_context(|| shown.to_string())?;
                    }
                }
                Err(error @ ReadError::File { .. }) => return Err(error.into()),
                Err(_) => {
                    damaged += 1;
                    if let Some(run) = runs.last_mut() {
                        run.is_interrupted = true;
                    }
                }
            }
        }
        let cut_off = reader.torn_tails().len();
        if runs.is_empty() {
            bail!("{shown}: no journal in it");
        }
        if runs.iter().all(|run| run.history.is_none()) {
            bail!("{shown}: there is no keyframe in it, so there is nothing to begin with");
        }
        let with_requests = runs.iter().filter(|run| run.arrivals() > 0).count();
        // The first of those with the most.
        let most = runs.into_iter().reduce(|best, run| {
            if run.arrivals() > best.arrivals() {
                run
            } else {
                best
            }
        });
        Ok(Self {
            run: most.unwrap_or_default(),
            others: (with_requests as u64).saturating_sub(1),
            damaged,
            cut_off,
        })
    }
}

/// The machine in a keyframe is for the version that wrote it.
fn check_version(path: &Path, header: &Header) -> Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    let found = &header.pointsman;
    anyhow::ensure!(
        found == ours,
        "{} was written by Pointsman {found}; simulate it with that version, this is {ours}",
        path.display()
    );
    Ok(())
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

    fn take(&mut self, entry: Entry<'static>) -> Result<()> {
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
    fn keyframe(&mut self, keyframe: Keyframe) -> Result<()> {
        self.meet(keyframe.roster);
        if self.history.is_some() && !self.is_interrupted {
            return Ok(());
        }
        let machine: Machine = keyframe.machine.read().context(
            "the machine of its keyframe cannot be read: another build wrote it, so simulate it with \
             that one",
        )?;
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
