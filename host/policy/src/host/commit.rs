//! Changes of the policies in force between two rounds: all that a commit asks for, or nothing.
//!
//! The reconciler of a server makes commits, and its driver hands them to [`PolicyHost::commit`].
//!
//! # Not here
//! The choice of the policies (`pointsman-server`).

use pointsman_component::Digest;
use pointsman_core::{Hook, HookSet, Micros};

use super::canary::check_by_request;
use super::shadow::SHADOWS_MAX;
use super::{
    BindError, Canary, FaultDump, OnFailure, PolicyHost, Probation, Quarantined, Retired,
    check_exports,
};

use crate::mode::{CanaryShare, Mode};
use crate::runner::Runner;

/// A change of the policies in force.
#[derive(Debug, Default)]
pub struct Commit {
    /// Policies that are not to be taken in, as an earlier life of the server knew.
    pub quarantine: Vec<Quarantined>,
    /// Fingerprints of policies that may be taken in again.
    pub release: Vec<Digest>,
    /// Policies that go as if they had failed their probation, each with the reason.
    pub roll_back: Vec<(u32, String)>,
    /// Policies to take in.
    pub install: Vec<Install>,
    /// Policies that are there already, each with hooks that it shall hold as well.
    pub bind: Vec<(u32, HookSet)>,
    /// Policies that go. The built-in rule has the hooks that no other policy gets.
    pub remove: Vec<u32>,
    /// Hooks that only their embedded default shall hold, or nobody.
    pub eject: HookSet,
    /// The fate of arrivals that no policy answers for; absent: as before.
    pub on_failure: Option<OnFailure>,
    /// Hooks to close, where they fail closed.
    pub close: HookSet,
}

/// A policy to take in.
#[derive(Debug)]
pub struct Install {
    /// An instance that is ready to be asked.
    pub policy: Runner,
    /// The hooks it gets, and how far its answers count.
    pub assignment: Assignment,
    /// Hooks whose embedded default it is.
    pub default_of: HookSet,
    /// Terms of its probation, if it has to prove itself and its answers count.
    pub probation: Option<Probation>,
}

/// The hooks of a policy, and how far its answers count there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// The policy holds the hooks.
    Enforce(HookSet),
    /// The policy answers for a share of the tenants, beside the holder of each hook.
    Canary(HookSet, CanaryShare),
    /// The policy is asked what the holders are asked, and its answers are only compared.
    Shadow(HookSet),
}

/// The policies in force after a commit.
#[derive(Debug, Default)]
pub struct Committed {
    /// The numbers of the installed policies, in order.
    pub installed: Vec<u32>,
    /// Every policy that is left, with the hooks it holds.
    pub held: Vec<(u32, HookSet)>,
    /// Hooks that nobody answers for before another policy is bound.
    pub closed: HookSet,
    /// Policies that have not proven themselves yet.
    pub on_probation: Vec<u32>,
    /// Policies that are not taken in, oldest first.
    pub quarantine: Vec<Quarantined>,
    /// The dumps of the faults since the last commit.
    pub dumps: Vec<FaultDump>,
    /// The time for which the commit held the host up; set by the caller, who has a clock.
    pub pause: Micros,
    /// Policies that have lost their last hook, to be dropped by the receiver.
    pub retired: Retired,
}

/// The reason why a commit was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A policy was not taken in.
    #[error("{error}")]
    Install {
        /// The place of the policy in [`Commit::install`].
        at: usize,
        /// The host's reason.
        error: BindError,
    },
    /// Something was wanted of a policy that the host has, and refused.
    #[error(transparent)]
    Bind(#[from] BindError),
}

// === impl Commit, Install and Assignment ===

impl Commit {
    /// True if the commit changes nothing. Its answer still says what is in force.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.quarantine.is_empty()
            && self.release.is_empty()
            && self.roll_back.is_empty()
            && self.install.is_empty()
            && self.bind.is_empty()
            && self.remove.is_empty()
            && self.eject.is_empty()
            && self.on_failure.is_none()
            && self.close.is_empty()
    }
}

impl Install {
    /// Refuses hooks that the policy cannot have in this way.
    fn check(&self) -> Result<(), BindError> {
        let wanted = self.assignment.hooks().union(self.default_of);
        check_exports(&self.policy, wanted)?;
        match self.assignment {
            Assignment::Canary(hooks, _) => check_by_request(hooks),
            Assignment::Enforce(_) | Assignment::Shadow(_) => Ok(()),
        }
    }
}

impl Assignment {
    /// The assignment of `hooks` to a policy in `mode`.
    #[must_use]
    pub fn new(mode: Mode, hooks: HookSet) -> Self {
        match mode {
            Mode::Enforce => Self::Enforce(hooks),
            Mode::Canary(share) => Self::Canary(hooks, share),
            Mode::Shadow => Self::Shadow(hooks),
        }
    }

    /// The assigned hooks.
    #[must_use]
    pub fn hooks(self) -> HookSet {
        match self {
            Self::Enforce(hooks) | Self::Canary(hooks, _) | Self::Shadow(hooks) => hooks,
        }
    }
}

// === impl PolicyHost ===

impl PolicyHost {
    /// Makes the whole commit, or nothing of it. Call it between two rounds.
    ///
    /// # Errors
    /// If the host refuses a policy; then nothing has changed.
    pub fn commit(&mut self, now: Micros, commit: Commit) -> Result<Committed, CommitError> {
        self.check(&commit)?;
        self.restore_quarantine(commit.quarantine);
        for fingerprint in commit.release {
            self.release(fingerprint);
        }
        let installed = self.install(now, commit.install)?;
        for (policy, why) in commit.roll_back {
            // It is gone by now if it faulted once too often at the snapshot for whoever displaces it.
            drop(self.rollback(now, policy, why));
        }
        for (policy, hooks) in commit.bind {
            self.put(now, policy, hooks);
        }
        // Not before: whoever has lost its last hook to one policy may have got another hook since.
        self.retire(now);
        for policy in commit.remove {
            self.remove(now, policy);
        }
        for hook in commit.eject.iter() {
            self.eject(now, hook);
        }
        if let Some(on_failure) = commit.on_failure {
            let set = self.set_on_failure(Hook::Admission, on_failure);
            set.expect("admission can fail closed");
        }
        for hook in commit.close.iter() {
            self.close(hook);
        }
        Ok(Committed {
            installed,
            ..self.present()
        })
    }

    fn present(&mut self) -> Committed {
        let numbers = || self.numbers();
        Committed {
            held: numbers().map(|it| (it, self.in_force(it))).collect(),
            on_probation: numbers().filter(|it| self.is_on_probation(*it)).collect(),
            closed: self.closed(),
            quarantine: self.quarantined().cloned().collect(),
            dumps: std::iter::from_fn(|| self.poll_dump()).collect(),
            retired: self.poll_retired().unwrap_or_default(),
            ..Committed::default()
        }
    }

    /// Takes policies in and gives them their hooks, all or none.
    fn install(&mut self, now: Micros, installs: Vec<Install>) -> Result<Vec<u32>, CommitError> {
        let mut installed = Vec::new();
        for (at, install) in installs.into_iter().enumerate() {
            let Install {
                policy,
                assignment,
                default_of,
                probation,
            } = install;
            let added = self.add(policy).and_then(|number| {
                installed.push((number, assignment, default_of, probation));
                // A shadow needs a thread, which may not be had.
                match assignment {
                    Assignment::Shadow(hooks) => self.begin_shadow(now, number, hooks),
                    Assignment::Enforce(_) | Assignment::Canary(..) => Ok(()),
                }
            });
            if let Err(error) = added {
                for (number, ..) in installed {
                    self.remove(now, number);
                }
                return Err(CommitError::Install { at, error });
            }
        }
        for (policy, assignment, default_of, probation) in &installed {
            let policy = *policy;
            self.put_default(policy, *default_of);
            match *assignment {
                Assignment::Enforce(hooks) => {
                    self.put(now, policy, hooks);
                    if let Some(terms) = probation {
                        self.begin_probation(now, policy, *terms)?;
                    }
                }
                Assignment::Canary(hooks, share) => {
                    self.put_canary(now, Canary { policy, share }, hooks);
                }
                Assignment::Shadow(_) => {}
            }
        }
        Ok(installed.into_iter().map(|(number, ..)| number).collect())
    }

    /// Refuses what would make a step fail half way through.
    fn check(&self, commit: &Commit) -> Result<(), CommitError> {
        for (at, install) in commit.install.iter().enumerate() {
            let checked = install.check();
            checked.map_err(|error| CommitError::Install { at, error })?;
        }
        for (policy, hooks) in &commit.bind {
            self.check_exported(*policy, *hooks)?;
            if commit.roll_back.iter().any(|(gone, _)| gone == policy) {
                return Err(BindError::Unknown(*policy).into());
            }
        }
        for (policy, _) in &commit.roll_back {
            self.hooks(*policy).ok_or(BindError::Unknown(*policy))?;
        }
        self.check_shadows(commit)
    }

    /// Refuses the first shadow to install for which there is no place. Shadows that the same commit
    /// removes make place.
    fn check_shadows(&self, commit: &Commit) -> Result<(), CommitError> {
        let installs = commit.install.iter().enumerate();
        let mut shadows = installs.filter(|(_, install)| match install.assignment {
            Assignment::Shadow(_) => true,
            Assignment::Enforce(_) | Assignment::Canary(..) => false,
        });
        match shadows.nth(self.shadow_places(&commit.remove)) {
            Some((at, _)) => {
                let error = BindError::TooManyShadows(SHADOWS_MAX);
                Err(CommitError::Install { at, error })
            }
            None => Ok(()),
        }
    }
}
