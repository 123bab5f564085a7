//! The policies that are known: where each comes from, which version is wanted, and what the host
//! has of it.
//!
//! A policy is known by its name: that of its file without `.wasm`, or of the embedded default. It
//! has a current version, the one to put in force, and versions standing in the host: the one that
//! was put in force last and, behind it, the one that this displaced.
//!
//! # Not here
//! What the host must do about it (`plan`); starting policies and talking to the host (`keeper`); who
//! shall hold what (`binding`).

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_core::{Hook, HookSet};
use pointsman_policy::{Digest, Mode, OnFailure, PolicySource};
use serde_json::{Map, Value};

use super::binding::{Bindings, Circumstances, Claim, Place, Trial, bind};
use super::prepare::Loaded;
use super::report::{PolicyReport, Refusal};
use crate::driver::message::Stand;
use crate::state::Remembered;
pub(crate) use plan::{Plan, Wanted};

/// Where a policy's code comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is part of the server.
    Embedded,
    /// A file in the folder.
    File(PathBuf),
    /// The state folder, which has the last good version of a file that is of no use.
    Kept(PathBuf),
}

/// One version of a policy: code, settings and limits that started together.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) origin: Origin,
    pub(crate) source: PolicySource,
    pub(crate) settings: Map<String, Value>,
    /// What it exports.
    pub(crate) hooks: HookSet,
    /// How far its answers count, where nothing else was ordered.
    pub(crate) mode: Mode,
    /// What happens to arrivals it does not answer for.
    pub(crate) on_failure: OnFailure,
    /// The text beside it, if there was any.
    pub(crate) sidecar: Option<String>,
}

/// A version that the host has.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) number: u32,
    pub(crate) version: Arc<Version>,
    /// As what it was put there.
    pub(crate) stand: Stand,
    /// The hooks for which it is in force.
    pub(crate) held: HookSet,
    /// It is on probation.
    pub(crate) proving: bool,
}

/// A policy's file.
#[derive(Debug, Default)]
pub(crate) struct Filed {
    /// The last version of it that is of use.
    pub(crate) version: Option<Arc<Version>>,
    /// The code it last had, whatever became of that.
    pub(crate) loaded: Option<Loaded>,
}

/// A policy.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) embedded: Option<Arc<Version>>,
    /// Absent: there is none.
    pub(crate) file: Option<Filed>,
    /// The newest last.
    pub(crate) standing: Vec<Standing>,
    /// Why the newest of it is not in force.
    pub(crate) refusal: Option<Refusal>,
    /// The file that its sidecar is about, if that is another one than there is.
    pub(crate) waits_for: Option<Digest>,
    /// Hooks that it has left shut, since it faulted too often and nobody may answer in its stead.
    pub(crate) shut: HookSet,
}

/// Every policy by name.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    // Immutable.
    /// Names of the embedded policies.
    defaults: Vec<&'static str>,
    /// What the configuration binds by name.
    bound: Vec<(Hook, String)>,
    // Owned state.
    known: BTreeMap<String, Known>,
    /// What the host does with arrivals that nobody answers for.
    on_failure: OnFailure,
    /// Hooks that the host keeps shut.
    shut: HookSet,
}

/// A version that the host has dropped by itself.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) name: String,
    pub(crate) version: Arc<Version>,
    pub(crate) held: HookSet,
}

// === impl Version ===

impl Version {
    /// Whether putting `other` in force in its stead would change nothing.
    pub(crate) fn is_same(&self, other: &Version) -> bool {
        self.place() == other.place()
            && self.source.fingerprint() == other.source.fingerprint()
            && self.source.limits() == other.source.limits()
    }

    pub(crate) fn place(&self) -> Place {
        match self.origin {
            Origin::Embedded => Place::Embedded,
            Origin::File(_) | Origin::Kept(_) => Place::Folder,
        }
    }
}

// === impl Known ===

impl Known {
    /// The newest version that is of use: of the file, or else the embedded one.
    pub(crate) fn current(&self) -> Option<&Arc<Version>> {
        self.version(Place::Folder).or(self.embedded.as_ref())
    }

    /// The newest version from `place` that is of use.
    pub(crate) fn version(&self, place: Place) -> Option<&Arc<Version>> {
        match place {
            Place::Embedded => self.embedded.as_ref(),
            Place::Folder => self.file.as_ref()?.version.as_ref(),
        }
    }

    /// The newest version from `place`, where the host has it. Only the newest counts: an older
    /// one, though its code be the same, knows nothing of what its successors have learned.
    fn standing(&self, place: Place) -> Option<&Standing> {
        let version = self.version(place)?;
        let mut standing = self.standing.iter().rev();
        let newest = standing.find(|standing| standing.version.place() == place)?;
        newest.version.is_same(version).then_some(newest)
    }

    /// The newest version from `place`, where it may hold hooks.
    fn enforcing(&self, place: Place) -> Option<&Standing> {
        let is_it = |standing: &&Standing| matches!(standing.stand, Stand::Enforce(_));
        self.standing(place).filter(is_it)
    }

    /// The newest version of the file, where it is tried as wanted.
    fn trying(&self, stand: &Stand) -> Option<&Standing> {
        let standing = self.standing(Place::Folder)?;
        (standing.stand == *stand).then_some(standing)
    }

    /// The current version, where the host has it.
    pub(crate) fn serving(&self) -> Option<&Standing> {
        self.standing(self.current()?.place())
    }

    /// How far the answers of the current version count.
    pub(crate) fn mode(&self, name: &str, remembered: &Remembered) -> Option<Mode> {
        let version = self.current()?;
        let order = remembered.modes.get(name);
        let order = order.filter(|order| order.instead_of == version.mode);
        Some(order.map_or(version.mode, |order| order.mode))
    }

    /// The version whose answers count, if there is one.
    fn claim(&self, name: &str, remembered: &Remembered) -> Option<Claim> {
        let version = match self.mode(name, remembered)? {
            Mode::Enforce => self.current(),
            Mode::Shadow | Mode::Canary(_) => self.embedded.as_ref(),
        }?;
        Some(Claim {
            place: version.place(),
            hooks: version.hooks,
        })
    }

    /// How it is tried, if it is.
    fn trial(&self, name: &str, remembered: &Remembered) -> Option<Trial> {
        let version = self.version(Place::Folder)?;
        let mode = self.mode(name, remembered)?;
        (mode != Mode::Enforce).then_some(Trial {
            mode,
            hooks: version.hooks,
        })
    }

    /// Does without `failed`: the last version of the file that the host still has is current
    /// again, or the embedded one.
    pub(crate) fn do_without(&mut self, failed: &Version) {
        if let Some(file) = &mut self.file
            && file
                .version
                .as_ref()
                .is_some_and(|version| version.is_same(failed))
        {
            let mut standing = self.standing.iter().rev().map(|standing| &standing.version);
            let older = standing.find(|it| it.place() == Place::Folder && !it.is_same(failed));
            file.version = older.cloned();
        }
        self.embedded.take_if(|embedded| embedded.is_same(failed));
    }

    /// Whether `standing`, which is not wanted for anything, has no place behind what is: its file
    /// is gone, it was tried and is not any more, or it would stay behind others, for hooks that
    /// the current version has given up.
    fn has_outgrown(&self, standing: &Standing) -> bool {
        if self.is_default(standing) {
            return false;
        }
        let withdrawn = self.file.is_none() && standing.version.place() == Place::Folder;
        let tried = match standing.stand {
            Stand::Enforce(_) => false,
            Stand::Canary(..) | Stand::Shadow(_) => true,
        };
        let given_up = self.current().is_some_and(|current| {
            let mut hooks = standing.version.hooks.iter();
            hooks.any(|hook| !current.hooks.contains(hook))
        });
        withdrawn || tried || given_up
    }

    /// Whether `standing` is the embedded version.
    fn is_default(&self, standing: &Standing) -> bool {
        let embedded = self.embedded.as_ref();
        embedded.is_some_and(|embedded| embedded.is_same(&standing.version))
    }

    fn is_forgotten(&self) -> bool {
        self.current().is_none()
            && self.file.is_none()
            && self.standing.is_empty()
            && self.refusal.is_none()
            && self.waits_for.is_none()
    }
}

// === impl Roster ===

impl Roster {
    /// Nobody is known yet; the `defaults` will be called so, and the configuration has `bound`
    /// these hooks by name.
    pub(crate) fn new(defaults: Vec<&'static str>, bound: Vec<(Hook, String)>) -> Self {
        Self {
            defaults,
            bound,
            ..Self::default()
        }
    }

    /// The policy of that name, made known if it is not.
    pub(crate) fn entry(&mut self, name: &str) -> &mut Known {
        self.known.entry(name.to_owned()).or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Known)> {
        self.known
            .iter()
            .map(|(name, known)| (name.as_str(), known))
    }

    /// Every version that the host has, with the name of its policy.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&str, &Standing)> {
        self.iter()
            .flat_map(|(name, known)| known.standing.iter().map(move |it| (name, it)))
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Who holds what.
    pub(crate) fn holders(&self) -> BTreeMap<Hook, &str> {
        self.standing()
            .flat_map(|(name, standing)| standing.held.iter().map(move |hook| (hook, name)))
            .collect()
    }

    /// Who is a canary for what.
    fn canaries(&self) -> BTreeMap<Hook, &str> {
        let tried = self
            .standing()
            .filter_map(|(name, standing)| match standing.stand {
                Stand::Canary(hooks, _) => Some((name, hooks)),
                Stand::Enforce(_) | Stand::Shadow(_) => None,
            });
        let tried = tried.flat_map(|(name, hooks)| hooks.iter().map(move |hook| (hook, name)));
        // Of each the newest, which comes last.
        tried.collect()
    }

    /// Who shall hold what, where an operator has ordered what is `remembered`.
    pub(crate) fn bindings(&self, remembered: &Remembered) -> Bindings {
        let claims = self
            .iter()
            .filter_map(|(name, known)| Some((name, known.claim(name, remembered)?)));
        let trials = self
            .iter()
            .filter_map(|(name, known)| Some((name, known.trial(name, remembered)?)));
        let embedded = self
            .iter()
            .filter_map(|(name, known)| Some((name, known.embedded.as_ref()?.hooks)));
        let shut = self
            .iter()
            .flat_map(|(name, known)| known.shut.iter().map(move |hook| (hook, name)));
        bind(Circumstances {
            ordered: &remembered.bindings,
            bound: &self.bound,
            defaults: &self.defaults,
            claims: &claims.collect(),
            embedded: &embedded.collect(),
            trials: &trials.collect(),
            shut: &shut.collect(),
            holders: &self.holders(),
            canaries: &self.canaries(),
        })
    }

    /// The policies of the host that serve as `bindings` say.
    pub(crate) fn serving(&self, bindings: &Bindings) -> BTreeSet<u32> {
        let mut serving = BTreeSet::new();
        for (name, known) in self.iter() {
            let places = [Place::Folder, Place::Embedded].into_iter();
            let places = places.filter(|place| !bindings.held_by(name, *place).is_empty());
            let holding = places.filter_map(|place| known.enforcing(place));
            let trial = bindings.trials.get(name);
            let trying = trial.and_then(|trial| known.trying(&trial.stand()));
            serving.extend(holding.chain(trying).map(|standing| standing.number));
        }
        serving
    }

    /// The host has taken `version` of `name` in.
    pub(crate) fn stand(&mut self, number: u32, wanted: Wanted) {
        self.entry(&wanted.name).standing.push(Standing {
            number,
            version: wanted.version,
            stand: wanted.stand,
            held: HookSet::EMPTY,
            proving: false,
        });
    }

    /// The host keeps these hooks shut.
    pub(crate) fn note_shut(&mut self, shut: HookSet) {
        self.shut = shut;
    }

    /// The host does so with arrivals that nobody answers for.
    pub(crate) fn note_on_failure(&mut self, on_failure: OnFailure) {
        self.on_failure = on_failure;
    }

    /// Takes note of what the host has: every policy left, with the hooks it holds. Those that
    /// are gone and should not be are lost.
    pub(crate) fn note(
        &mut self,
        held: &[(u32, HookSet)],
        should_be: impl Fn(&Standing) -> bool,
    ) -> Vec<Lost> {
        let held: BTreeMap<u32, HookSet> = held.iter().copied().collect();
        let mut lost = Vec::new();
        for (name, known) in &mut self.known {
            known.standing.retain_mut(|standing| {
                if let Some(hooks) = held.get(&standing.number) {
                    standing.held = *hooks;
                    return true;
                }
                if should_be(standing) {
                    lost.push(Lost {
                        name: name.clone(),
                        version: Arc::clone(&standing.version),
                        held: standing.held,
                    });
                }
                false
            });
        }
        lost
    }

    /// Those of the `put` that are on probation begin it.
    pub(crate) fn note_probation(&mut self, on_probation: &[u32], put: &[u32]) {
        for standing in self.known.values_mut().flat_map(|it| &mut it.standing) {
            let number = standing.number;
            standing.proving |= put.contains(&number) && on_probation.contains(&number);
        }
    }

    /// Those that were on probation, still stand, and are on it no more.
    pub(crate) fn proven(&mut self, on_probation: &[u32]) -> Vec<(String, Arc<Version>)> {
        let mut proven = Vec::new();
        for (name, known) in &mut self.known {
            for standing in &mut known.standing {
                if standing.proving && !on_probation.contains(&standing.number) {
                    standing.proving = false;
                    proven.push((name.clone(), Arc::clone(&standing.version)));
                }
            }
        }
        proven
    }

    // === Questions ===

    /// Whether the newest of `name` stands so; where it is to be in force, for at least those
    /// hooks.
    pub(crate) fn stands(&self, name: &str, stand: Stand) -> bool {
        let standing = self.get(name).and_then(Known::serving);
        standing.is_some_and(|standing| match (stand, standing.stand) {
            (Stand::Enforce(hooks), Stand::Enforce(_)) => {
                let mut hooks = hooks.iter();
                hooks.all(|hook| standing.held.contains(hook))
            }
            (wanted, stands) => wanted == stands,
        })
    }

    /// Whose state the next version of `name` may take over: that of the newest one that answers
    /// in earnest, or else of whoever holds one of its `hooks`.
    pub(crate) fn predecessor(&self, name: &str, hooks: HookSet) -> Option<u32> {
        let standing = self.get(name).map_or(&[][..], |known| &known.standing);
        let mut in_earnest = standing.iter().rev().filter(|it| match it.stand {
            Stand::Enforce(_) | Stand::Canary(..) => true,
            Stand::Shadow(_) => false,
        });
        let of_its_name = in_earnest.next();
        let displaced = || {
            let mut holders = self.standing().map(|(_, standing)| standing);
            holders.find(|it| it.held.iter().any(|hook| hooks.contains(hook)))
        };
        of_its_name
            .or_else(displaced)
            .map(|standing| standing.number)
    }

    /// The policies of which a version with that code is not in force for a reason.
    pub(crate) fn refused(&self, digest: Digest) -> Vec<String> {
        let refused = self.iter().filter(|(_, known)| {
            let refusal = known.refusal.as_ref();
            refusal.is_some_and(|refusal| refusal.digest == Some(digest))
        });
        refused.map(|(name, _)| name.to_owned()).collect()
    }

    // === What is shown ===

    /// Every policy that can be put in force.
    pub(crate) fn reports(&self, remembered: &Remembered) -> impl Iterator<Item = PolicyReport> {
        self.iter().filter_map(|(name, known)| {
            let version = known.current()?;
            let number = known.serving().map(|serving| serving.number);
            let numbers = known.standing.iter().map(|standing| standing.number);
            let held = known
                .standing
                .iter()
                .flat_map(|standing| standing.held.iter());
            Some(PolicyReport {
                name: name.to_owned(),
                origin: version.origin.clone(),
                digest: version.source.digest(),
                fingerprint: version.source.fingerprint(),
                settings: version.settings.clone(),
                hooks: version.hooks,
                mode: known.mode(name, remembered).unwrap_or_default(),
                held: held.collect(),
                waits_for: known.waits_for,
                number,
                earlier: numbers.filter(|it| Some(*it) != number).collect(),
            })
        })
    }

    /// Every policy whose newest version is not in force, with the reason.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (String, Refusal)> {
        self.iter()
            .filter_map(|(name, known)| Some((name.to_owned(), known.refusal.clone()?)))
    }

    /// Forgets policies of which nothing is left.
    pub(crate) fn forget(&mut self) {
        self.known.retain(|_, known| !known.is_forgotten());
    }
}
