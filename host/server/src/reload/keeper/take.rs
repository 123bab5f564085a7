//! From what is in the folder to versions that can be put in force.

use std::sync::Arc;

use pointsman_core::{Hook, HookSet, Micros};
use pointsman_policy::OnFailure;

use super::PolicyKeeper;
use crate::embedded::EmbeddedPolicy;
use crate::metrics;
use crate::reload::attempt::{Attempt, Failure};
use crate::reload::folder::{Change, FolderId, Pair};
use crate::reload::pass::Pass;
use crate::reload::port::PolicyPort;
use crate::reload::prepare::{Job, Made, Ready, Setback, Task, Work};
use crate::reload::report::{Outcome, Refusal};
use crate::reload::roster::{Filed, Origin, Version};
use crate::reload::tell;

/// What is to be made ready.
#[derive(Debug)]
pub(super) enum Errand {
    /// The file, as it was seen.
    File(Pair),
    /// Its last good version, from the state folder.
    Kept,
}

/// What is being made ready.
#[derive(Debug)]
pub(super) struct InHand {
    name: String,
    of: Source,
    /// Something newer has come, or nothing is wanted any more.
    outdated: bool,
}

/// Where what is being made ready comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    File,
    Kept,
}

/// What is ready, and what has been done for it.
#[derive(Debug)]
pub(super) struct Finished {
    name: String,
    attempt: Attempt,
    ready: Ready,
}

impl<P: PolicyPort> PolicyKeeper<P> {
    // === What there is ===

    pub(super) fn take_embedded(&mut self, policy: EmbeddedPolicy, pass: &mut Pass) {
        let EmbeddedPolicy { name, wasm } = policy;
        match self.workshop.embedded(name, wasm, pass.open(name)) {
            Ok(ready) => {
                self.roster.entry(name).embedded = Some(Arc::clone(&ready.version));
                pass.keep(name, ready);
            }
            Err(failure) => self.refuse(name, failure, pass),
        }
    }

    pub(super) fn take_all(&mut self, changes: Vec<Change>, pass: &mut Pass) {
        for change in changes {
            match change {
                Change::Offered { name, pair } => self.queue(&name, Errand::File(pair)),
                Change::Withdrawn { name } => self.take_withdrawn(&name, pass),
            }
        }
    }

    fn queue(&mut self, name: &str, errand: Errand) {
        self.outdate(name);
        self.roster.entry(name).file.get_or_insert_default();
        self.line.insert(name.to_owned(), errand);
    }

    /// What is being made of `name` is not wanted any more.
    fn outdate(&mut self, name: &str) {
        self.line.remove(name);
        self.made.retain(|made| made.name != name);
        if let Some(in_hand) = &mut self.in_hand
            && in_hand.name == name
        {
            in_hand.outdated = true;
        }
    }

    fn take_withdrawn(&mut self, name: &str, pass: &mut Pass) {
        self.outdate(name);
        self.state.change(|state| {
            state.good.remove(name);
            state.modes.remove(name);
        });
        let known = self.roster.entry(name);
        if let Some(file) = known.file.take() {
            known.refusal = None;
            known.waits_for = None;
            known.shut = HookSet::EMPTY;
            let version = file.version.as_ref();
            pass.attempt(name).digest = version.map(|version| version.source.digest());
            pass.finish(name, Outcome::Removed, None);
        }
    }

    // === One after another ===

    /// Makes everything in the line ready, and waits for it.
    pub(super) fn make_all(&mut self, pass: &mut Pass) {
        self.make_next(pass);
        while self.in_hand.is_some() {
            let made = self.maker.wait();
            self.take_made(made, pass);
            self.make_next(pass);
        }
    }

    /// Begins with the next in the line that has something to be made, if nothing is in hand.
    pub(super) fn make_next(&mut self, pass: &mut Pass) {
        while self.in_hand.is_none()
            && let Some((name, errand)) = self.line.pop_first()
        {
            match errand {
                Errand::File(pair) => self.begin_file(&name, &pair, pass),
                Errand::Kept => self.begin_kept(&name, pass),
            }
        }
    }

    fn begin_file(&mut self, name: &str, pair: &Pair, pass: &mut Pass) {
        let Some(folder) = &self.path else {
            return;
        };
        let path = folder.join(format!("{name}.wasm"));
        let mut attempt = Attempt::new(&self.clock);
        let known = self.roster.entry(name);
        let filed = known.file.get_or_insert_default();
        let before = (filed.loaded.as_ref(), filed.version.as_deref());
        let task = self.workshop.file((name, path), pair, before, &mut attempt);
        match task {
            Ok(Task::Make(work)) => self.make((name, Source::File), *work, attempt),
            Ok(Task::Keep(version)) => {
                known.refusal = None;
                known.waits_for = None;
                self.adopt(name, version);
            }
            Err(Setback::Changed) => self.folder.unsettle(name, pass.at),
            Err(Setback::Waits(pinned)) => {
                known.waits_for = Some(pinned);
                known.refusal = None;
                pass.resume(name, attempt);
                pass.finish(name, Outcome::Waits { pinned }, None);
            }
            Err(Setback::Failed(failure)) => {
                pass.resume(name, attempt);
                self.refuse(name, failure, pass);
            }
        }
    }

    fn begin_kept(&mut self, name: &str, pass: &mut Pass) {
        let remembered = self.state.remembered();
        let (Some(folder), Some(good)) = (&self.path, remembered.good.get(name)) else {
            return;
        };
        let path = folder.join(format!("{name}.wasm"));
        let mut attempt = Attempt::new(&self.clock);
        attempt.digest = Some(good.digest);
        let bytes = self.state.code(good.digest);
        let work =
            bytes.map(|bytes| (self.workshop).kept((name, path), bytes, good.sidecar.clone()));
        match work {
            Some(Ok(work)) => self.make((name, Source::Kept), work, attempt),
            Some(Err(failure)) => {
                pass.resume(name, attempt);
                self.give_up_kept(name, &failure, pass);
            }
            None => {
                tell::kept_is_gone(name, good.digest);
                self.state.change(|state| state.good.remove(name));
            }
        }
    }

    fn make(&mut self, (name, of): (&str, Source), work: Work, attempt: Attempt) {
        self.in_hand = Some(InHand {
            name: name.to_owned(),
            of,
            outdated: false,
        });
        self.maker.begin(Job { work, attempt });
    }

    /// Something is ready, or has failed.
    pub(super) fn take_made(&mut self, made: Made, pass: &mut Pass) {
        let Some(in_hand) = self.in_hand.take() else {
            return;
        };
        if let Ok(done) = &made.done {
            self.workshop.take(done);
        }
        if in_hand.outdated {
            return;
        }
        let name = in_hand.name.as_str();
        let Made { attempt, done } = made;
        match done {
            Ok(done) => {
                let known = self.roster.entry(name);
                if in_hand.of == Source::File {
                    known.refusal = None;
                    known.waits_for = None;
                }
                known.shut = HookSet::EMPTY;
                if let Some(loaded) = done.loaded {
                    known.file.get_or_insert_default().loaded = Some(loaded);
                }
                self.adopt(name, Arc::clone(&done.ready.version));
                self.made.push(Finished {
                    name: in_hand.name,
                    attempt,
                    ready: done.ready,
                });
            }
            Err(failure) => {
                pass.resume(name, attempt);
                if in_hand.of == Source::Kept {
                    self.give_up_kept(name, &failure, pass);
                } else {
                    self.refuse(name, failure, pass);
                }
            }
        }
    }

    /// Lets the pass have what is ready.
    pub(super) fn present_made(&mut self, pass: &mut Pass) {
        for made in self.made.drain(..) {
            pass.resume(&made.name, made.attempt);
            pass.keep(&made.name, made.ready);
        }
    }

    /// `version` is the newest of `name` that is of use.
    fn adopt(&mut self, name: &str, version: Arc<Version>) {
        let digest = version.source.digest();
        let (mode, sidecar) = (version.mode, version.sidecar.clone());
        let filed = self.roster.entry(name).file.get_or_insert_default();
        let same = filed.version.as_ref();
        let same = same.is_some_and(|before| before.is_same(&version));
        filed.version = Some(version);
        self.state.change(|state| {
            // What was ordered was ordered in the place of what the file says no more.
            if state
                .modes
                .get(name)
                .is_some_and(|it| it.instead_of != mode)
            {
                state.modes.remove(name);
            }
            if let Some(good) = state.good.get_mut(name)
                && same
                && good.digest == digest
            {
                good.sidecar = sidecar;
            }
        });
    }

    // === What is of no use ===

    /// The newest of `name` is of no use.
    pub(super) fn refuse(&mut self, name: &str, failure: Failure, pass: &mut Pass) {
        let Failure { step, why } = failure;
        let refused = metrics::Transaction::Refused {
            step: step.as_str(),
        };
        self.metrics.policy_transaction(refused);
        let known = self.roster.entry(name);
        known.waits_for = None;
        known.refusal = Some(Refusal {
            step,
            why: why.clone(),
            digest: pass.attempt(name).digest,
            at: pass.at,
        });
        pass.finish(name, Outcome::Refused { step, why }, None);
    }

    /// A version of `name` could not be put in force.
    pub(super) fn refuse_version(
        &mut self,
        name: &str,
        version: &Version,
        failure: Failure,
        pass: &mut Pass,
    ) {
        self.roster.entry(name).do_without(version);
        match version.origin {
            Origin::Kept(_) => self.give_up_kept(name, &failure, pass),
            Origin::Embedded | Origin::File(_) => {
                if self.is_out_for_faults(version) {
                    self.leave_shut(name, version);
                }
                self.refuse(name, failure, pass);
            }
        }
    }

    /// The last good version of `name` is of no use any more: it is forgotten.
    fn give_up_kept(&mut self, name: &str, failure: &Failure, pass: &mut Pass) {
        let Failure { step, why } = failure.clone();
        self.state.change(|state| state.good.remove(name));
        pass.finish(name, Outcome::Refused { step, why }, None);
    }

    /// Leaves admission shut after `version`, if nobody may answer in its stead.
    pub(super) fn leave_shut(&mut self, name: &str, version: &Version) {
        let closes = version.on_failure == OnFailure::Closed;
        if closes && version.hooks.contains(Hook::Admission) {
            self.roster.entry(name).shut.insert(Hook::Admission);
        }
    }

    // === The last good ones ===

    /// Takes note of what the state folder remembers of the policy folder.
    pub(super) fn expect_remembered(&mut self, now: Micros) {
        let Some(path) = &self.path else {
            return;
        };
        let remembered = self.state.remembered();
        let seen = remembered.folder.as_ref();
        match seen.filter(|seen| seen.path == *path) {
            Some(seen) => {
                let names = remembered.good.keys().cloned();
                let (device, inode) = (seen.device, seen.inode);
                self.folder.expect(FolderId { device, inode }, names, now);
            }
            None => {
                // What is remembered is of other files.
                self.state.change(|state| state.good.clear());
            }
        }
    }

    /// The folder is not there: all of the last good versions.
    pub(super) fn fall_back_on_all(&mut self) {
        if self.path.is_none() {
            return;
        }
        let names: Vec<String> = self.state.remembered().good.keys().cloned().collect();
        for name in names {
            self.queue(&name, Errand::Kept);
        }
    }

    /// Where no version of a file is of use, its last good one; whether there is one to be made.
    pub(super) fn fall_back(&mut self) -> bool {
        let good = &self.state.remembered().good;
        let useless = |filed: &Filed| filed.version.is_none();
        let names = self.roster.iter().filter(|(name, known)| {
            known.file.as_ref().is_some_and(useless)
                && good.contains_key(*name)
                && !self.line.contains_key(*name)
                && self.in_hand.as_ref().is_none_or(|it| it.name != *name)
        });
        let names: Vec<String> = names.map(|(name, _)| name.to_owned()).collect();
        for name in &names {
            self.line.insert(name.clone(), Errand::Kept);
        }
        !names.is_empty()
    }
}
