//! The policies that are known: where each comes from, which version is wanted, and what the host
//! has of it.
//!
//! A policy is known by its name: that of its file without `.wasm`, or of the embedded default. It
//! has a current version, the one to put in force, and versions standing in the host: the one that
//! was put in force last and, behind it, the one that this displaced.
//!
//! # Invariants
//! 1. A plan that was carried out leaves nothing to do: where it does not, the host was asked
//!    for something else than it did (`tests/reload`).
//!
//! # Not here
//! Starting policies and talking to the host (`keeper`); who shall hold what (`binding`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_core::Hook;
use pointsman_policy::{HookSet, PolicySource};
use serde_json::{Map, Value};

use super::binding::{Bindings, Circumstances, Claim, Place, bind};
use super::prepare::Loaded;
use super::report::{PolicyReport, Refusal};

/// Where a policy's code comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is part of the server.
    Embedded,
    /// A file in the folder.
    File(PathBuf),
}

/// One version of a policy: code, settings and limits that started together.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) origin: Origin,
    pub(crate) source: PolicySource,
    pub(crate) settings: Map<String, Value>,
    /// What it exports.
    pub(crate) hooks: HookSet,
}

/// A version that the host has.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) number: u32,
    pub(crate) version: Arc<Version>,
    pub(crate) held: HookSet,
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
}

/// Every policy by name.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// Names of the embedded policies.
    defaults: Vec<&'static str>,
    known: BTreeMap<String, Known>,
}

/// What the host must do so that it is as it shall be.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) install: Vec<Wanted>,
    pub(crate) bind: Vec<(u32, HookSet)>,
    pub(crate) remove: Vec<u32>,
}

/// A version that the host lacks.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) version: Arc<Version>,
    /// What it shall hold.
    pub(crate) hooks: HookSet,
}

/// A version that the host has dropped by itself.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) name: String,
    pub(crate) version: Arc<Version>,
}

// === impl Version ===

impl Version {
    /// Whether putting `other` in force in its stead would change nothing.
    pub(crate) fn is_same(&self, other: &Version) -> bool {
        self.origin == other.origin
            && self.source.fingerprint() == other.source.fingerprint()
            && self.source.limits() == other.source.limits()
    }

    fn place(&self) -> Place {
        match self.origin {
            Origin::Embedded => Place::Embedded,
            Origin::File(_) => Place::Folder,
        }
    }
}

// === impl Known ===

impl Known {
    /// The version to put in force.
    pub(crate) fn current(&self) -> Option<&Arc<Version>> {
        let filed = self.file.as_ref().and_then(|file| file.version.as_ref());
        filed.or(self.embedded.as_ref())
    }

    /// The current version, where the host has it. Only the newest counts: an older one, though
    /// its code be the same, knows nothing of what its successors have learned.
    pub(crate) fn serving(&self) -> Option<&Standing> {
        let current = self.current()?;
        let newest = self.standing.last()?;
        newest.version.is_same(current).then_some(newest)
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

    fn is_serving(&self, standing: &Standing) -> bool {
        let serving = self.serving();
        serving.is_some_and(|serving| serving.number == standing.number)
    }

    /// Whether `standing` has no place behind the current version: its file is gone, or it would
    /// stay behind others, for hooks that the current version has given up.
    fn has_outgrown(&self, standing: &Standing) -> bool {
        let withdrawn = self.file.is_none() && standing.version.place() == Place::Folder;
        let given_up = self.current().is_some_and(|current| {
            let mut hooks = standing.version.hooks.iter();
            hooks.any(|hook| !current.hooks.contains(hook))
        });
        withdrawn || given_up
    }

    fn is_forgotten(&self) -> bool {
        self.current().is_none()
            && self.file.is_none()
            && self.standing.is_empty()
            && self.refusal.is_none()
    }
}

// === impl Roster ===

impl Roster {
    /// Nobody is known yet; the defaults will be called so.
    pub(crate) fn new(defaults: Vec<&'static str>) -> Self {
        Self {
            defaults,
            known: BTreeMap::new(),
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

    /// Who shall hold what, where the operator has `bound` some by name.
    pub(crate) fn bindings(&self, bound: &[(Hook, String)]) -> Bindings {
        let claims = self.iter().filter_map(|(name, known)| {
            let version = known.current()?;
            let claim = Claim {
                place: version.place(),
                hooks: version.hooks,
            };
            Some((name, claim))
        });
        bind(Circumstances {
            bound,
            defaults: &self.defaults,
            claims: &claims.collect(),
            holders: &self.holders(),
        })
    }

    /// What is missing for hooks to be held as `bindings` say.
    pub(crate) fn plan(&self, bindings: &Bindings) -> Plan {
        let mut plan = Plan::default();
        for (name, known) in self.iter() {
            let hooks = hooks_of(bindings, name);
            if !hooks.is_empty() {
                plan.give(name, known, hooks);
            }
            let gone = known.standing.iter().filter(|standing| {
                let mut held = standing.held.iter();
                let unwanted = held.any(|hook| !bindings.holders.contains_key(&hook));
                !known.is_serving(standing) && (unwanted || known.has_outgrown(standing))
            });
            plan.remove.extend(gone.map(|standing| standing.number));
        }
        plan
    }

    /// The policies of the host that serve as `bindings` say.
    pub(crate) fn serving(&self, bindings: &Bindings) -> BTreeSet<u32> {
        let holding = self
            .iter()
            .filter(|(name, _)| !hooks_of(bindings, name).is_empty());
        holding
            .filter_map(|(_, known)| Some(known.serving()?.number))
            .collect()
    }

    /// The host has taken `version` of `name` in.
    pub(crate) fn stand(&mut self, name: &str, number: u32, version: Arc<Version>) {
        self.entry(name).standing.push(Standing {
            number,
            version,
            held: HookSet::EMPTY,
        });
    }

    /// Takes note of what the host has: every policy left, with the hooks it holds. Those that
    /// are gone and should not be are lost.
    pub(crate) fn note(
        &mut self,
        held: &[(u32, HookSet)],
        should_be: impl Fn(u32) -> bool,
    ) -> Vec<Lost> {
        let held: BTreeMap<u32, HookSet> = held.iter().copied().collect();
        let mut lost = Vec::new();
        for (name, known) in &mut self.known {
            known.standing.retain_mut(|standing| {
                if let Some(hooks) = held.get(&standing.number) {
                    standing.held = *hooks;
                    return true;
                }
                if should_be(standing.number) {
                    lost.push(Lost {
                        name: name.clone(),
                        version: Arc::clone(&standing.version),
                    });
                }
                false
            });
        }
        lost
    }

    // === What is shown ===

    /// Every policy that can be put in force.
    pub(crate) fn reports(&self) -> impl Iterator<Item = PolicyReport> {
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
                held: held.collect(),
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

// === impl Plan ===

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.install.is_empty() && self.bind.is_empty() && self.remove.is_empty()
    }

    /// `hooks` for the current version of `known`.
    fn give(&mut self, name: &str, known: &Known, hooks: HookSet) {
        if let Some(serving) = known.serving() {
            let missing = hooks.iter().filter(|hook| !serving.held.contains(*hook));
            let missing: HookSet = missing.collect();
            if !missing.is_empty() {
                self.bind.push((serving.number, missing));
            }
        } else if let Some(version) = known.current() {
            self.install.push(Wanted {
                name: name.to_owned(),
                version: Arc::clone(version),
                hooks,
            });
        }
    }
}

/// What `bindings` give to the policy `name`.
fn hooks_of(bindings: &Bindings, name: &str) -> HookSet {
    let holders = bindings.holders.iter();
    let its = holders.filter(|(_, holder)| *holder == name);
    its.map(|(hook, _)| *hook).collect()
}
