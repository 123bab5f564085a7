//! What the host has done by itself, and what the state folder keeps of it.

use std::collections::BTreeSet;
use std::fs;

use pointsman_policy::{Cause, Quarantined};

use super::{Ended, PolicyKeeper};
use crate::driver::message::{Commit, CommitError, Committed};
use crate::reload::pass::Pass;
use crate::reload::port::PolicyPort;
use crate::reload::report::{Outcome, Refusal, Step, Trigger};
use crate::reload::roster::{Lost, Origin, Version};
use crate::reload::tell;

impl<P: PolicyPort> PolicyKeeper<P> {
    /// Tells the host what is in quarantine since an earlier life.
    pub(super) fn recall(&mut self) -> Result<(), Ended> {
        let quarantine = self.state.remembered().quarantine.clone();
        let recall = Commit {
            quarantine,
            ..Commit::default()
        };
        match self.port.commit(recall) {
            Ok(_) | Err(CommitError::Bind(_) | CommitError::Install { .. }) => Ok(()),
            Err(CommitError::Closed) => Err(Ended),
        }
    }

    /// Asks the host what it has; how many policies it has taken out.
    pub(super) fn ask_host(&mut self, pass: &mut Pass) -> Result<usize, Ended> {
        match self.port.commit(Commit::default()) {
            Ok(committed) => Ok(self.heed(committed, None, pass)),
            // There is nothing in it to be refused.
            Err(CommitError::Bind(_) | CommitError::Install { .. }) => Ok(0),
            Err(CommitError::Closed) => Err(Ended),
        }
    }

    /// Takes note of what the host says. Of the policies that are gone, those of `serving` should
    /// not be; where nobody says who does, those that are in quarantine. How many these are.
    pub(super) fn heed(
        &mut self,
        committed: Committed,
        serving: Option<&BTreeSet<u32>>,
        pass: &mut Pass,
    ) -> usize {
        let Committed {
            held,
            on_probation,
            shut,
            quarantine,
            dumps,
            retired,
            ..
        } = committed;
        self.roster.note_shut(shut);
        let before = std::mem::replace(&mut pass.cause, Trigger::Conduct);
        let is_listed = |version: &Version| {
            let fingerprint = version.source.fingerprint();
            quarantine.iter().any(|it| it.fingerprint == fingerprint)
        };
        let lost = self.roster.note(&held, |standing| match serving {
            Some(serving) => serving.contains(&standing.number),
            None => is_listed(&standing.version),
        });
        let n_lost = lost.len();
        for lost in lost {
            self.lose(lost, &quarantine, pass);
        }
        for (name, version) in self.roster.proven(&on_probation) {
            self.prove(&name, &version, pass);
        }
        if self.state.remembered().quarantine != quarantine {
            self.state.change(|state| state.quarantine = quarantine);
        }
        for dump in dumps {
            match serde_json::to_vec_pretty(&dump) {
                Ok(text) => self.state.keep_dump(&text),
                Err(error) => tell::no_dump(&error),
            }
        }
        pass.cause = before;
        // Here, where nobody waits: to free their memories takes its time.
        drop(retired);
        n_lost
    }

    /// The host has taken this one out.
    fn lose(&mut self, lost: Lost, quarantine: &[Quarantined], pass: &mut Pass) {
        let Lost {
            name,
            version,
            held,
        } = lost;
        let fingerprint = version.source.fingerprint();
        let listed = quarantine.iter().rev();
        let listed = listed.clone().find(|it| it.fingerprint == fingerprint);
        let why = listed
            .map_or("the host took it out", |entry| &entry.detail)
            .to_owned();
        let cause = listed.map(|entry| entry.cause);
        let digest = Some(version.source.digest());
        let known = self.roster.entry(&name);
        let place = version.place();
        let is_newest = known.version(place).is_some_and(|it| it.is_same(&version));
        known.do_without(&version);
        if is_newest {
            known.refusal = Some(Refusal {
                step: Step::Serve,
                why: why.clone(),
                digest,
                at: pass.at,
            });
        }
        if cause == Some(Cause::Faulted) && !held.is_empty() {
            self.leave_shut(&name, &version);
        }
        self.state.change(|state| {
            let good = state.good.get(&name);
            let is_it = |good: &crate::state::Good| {
                Some(good.digest) == digest && good.sidecar == version.sidecar
            };
            if good.is_some_and(is_it) {
                state.good.remove(&name);
            }
        });
        pass.open(&name).digest = digest;
        let outcome = match cause {
            Some(Cause::RolledBack) => Outcome::RolledBack { why },
            Some(Cause::Faulted) | None => Outcome::Dropped { why },
        };
        pass.finish(&name, outcome, None);
    }

    /// `version` has stood its probation: it is the last good one.
    fn prove(&mut self, name: &str, version: &Version, pass: &mut Pass) {
        let digest = version.source.digest();
        if let Origin::File(path) = &version.origin {
            let kept = self.state.code(digest);
            let code = kept.or_else(|| fs::read(path).ok());
            let code = code.filter(|code| pointsman_policy::Digest::of(code) == digest);
            // The file has changed meanwhile: what it is now will have its own probation.
            if let Some(code) = code {
                self.state.prove(name, &code, version.sidecar.clone());
            }
        }
        pass.open(name).digest = Some(digest);
        pass.finish(name, Outcome::Proven, None);
    }

    /// Whether `version` is in quarantine for its faults.
    pub(super) fn is_out_for_faults(&self, version: &Version) -> bool {
        let fingerprint = version.source.fingerprint();
        let mut listed = self.state.remembered().quarantine.iter();
        listed.any(|it| it.fingerprint == fingerprint && it.cause == Cause::Faulted)
    }
}
