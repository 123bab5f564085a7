//! Where a request would go, and why: asked of throw-away copies, so that nothing changes.
//!
//! # Invariants
//! 1. Neither the machine nor a policy in force is changed (`driver::tests`).

use std::collections::BTreeMap;

use pointsman_core::rows::NameKind;
use pointsman_core::{
    ExecutorId, LabelId, Micros, ModelId, Moment, NewRequest, PlacedIn, Probe, RefusalCause,
    TenantId, routing,
};
use pointsman_policy::Candidate;

use super::Driver;
use super::decisions::Case;
use super::message::{Hints, TicketId};
use super::operator::{
    Cases, Contender, EXECUTORS_SHOWN, Explained, NoTenant, Outlook, Prospect, Teller, Would,
};

/// What a request refers to, by id.
pub(super) struct Referents {
    pub(super) tenant: TenantId,
    pub(super) model: Option<ModelId>,
    pub(super) labels: Vec<LabelId>,
}

/// A verdict, and whose it is.
struct Told {
    by: Teller,
    verdict: routing::Choice,
}

impl Driver {
    /// A request as the machine takes it.
    pub(super) fn described(
        &self,
        now: Micros,
        hints: Hints,
        referents: Referents,
        (prompt_tokens, output_tokens_max): (u32, u32),
    ) -> NewRequest {
        let allowed = hints.allowed.map(|names| {
            let ids = names.iter().filter_map(|name| self.names.get(name));
            ids.copied().collect()
        });
        NewRequest {
            model: referents.model,
            session: hints.session,
            class: hints.class,
            priority: hints.priority,
            head_start: hints.head_start,
            labels: referents.labels,
            deadline: hints.deadline.map(|after| now.after(after)),
            may_wait: hints.may_wait,
            output_tokens_expected: hints.output_tokens_expected,
            group: hints.group,
            allowed,
            ..NewRequest::new(referents.tenant, prompt_tokens, output_tokens_max)
        }
    }

    /// Where `prospect` would go if it were the next to be routed.
    pub(super) fn outlook(&self, now: Micros, prospect: &Prospect) -> Result<Outlook, NoTenant> {
        let id = |kind, name: &str| self.machine.id_of(kind, name);
        let tenant = id(NameKind::Tenant, &prospect.tenant);
        let labels = prospect.hints.labels.iter();
        let referents = Referents {
            tenant: TenantId(tenant.ok_or_else(|| NoTenant(prospect.tenant.clone()))?),
            model: id(NameKind::Model, &prospect.model).map(ModelId),
            // A label that nobody has used is one that no policy knows.
            labels: labels
                .filter_map(|label| self.labels.known.get(label).copied())
                .collect(),
        };
        let tokens = (prospect.prompt_tokens, prospect.output_tokens_max);
        let new = self.described(now, prospect.hints.clone(), referents, tokens);
        let probe = self.machine.probe(now, new);
        let told = self.told(now, &probe);
        let said = self.said(now, &probe);
        let candidates = probe.executors.iter().take(EXECUTORS_SHOWN);
        let contender = |(executor, interlock): &(ExecutorId, Result<PlacedIn, RefusalCause>)| {
            let mut said = said.iter().flatten();
            Contender {
                executor: self.name_of(NameKind::Executor, executor.0),
                interlock: interlock.map(place).map_err(|cause| cause.to_string()),
                said: said.find(|said| said.executor == *executor).cloned(),
            }
        };
        let named = match &told.verdict {
            routing::Choice::Place(executors) => executors.as_slice(),
            routing::Choice::Hold(_) | routing::Choice::GiveUp => &[],
        };
        let named = named.iter().take(EXECUTORS_SHOWN);
        Ok(Outlook {
            would: self.would(&probe, &told.verdict),
            by: told.by,
            named: named
                .map(|executor| self.name_of(NameKind::Executor, executor.0))
                .collect(),
            candidates: candidates.map(contender).collect(),
            executors_total: probe.executors.len(),
            unexplained: said.err(),
        })
    }

    fn moment(&self, now: Micros) -> Moment {
        Moment {
            now,
            round: self.machine.round(),
        }
    }

    /// What whoever routes would answer.
    fn told(&self, now: Micros, probe: &Probe) -> Told {
        let (at, view) = (self.moment(now), self.machine.view());
        let rehearsed = self
            .policies
            .dry_run(&view, at, &probe.request, &probe.cached);
        let built_in = |by| Told {
            by,
            verdict: routing::Choice::Place(
                probe
                    .executors
                    .iter()
                    .map(|(executor, _)| *executor)
                    .collect(),
            ),
        };
        let Some(rehearsal) = rehearsed else {
            return built_in(Teller::BuiltIn);
        };
        let number = rehearsal.policy;
        match rehearsal.verdict {
            Err(fault) => built_in(Teller::Faulted {
                policy: self.policy_name(number),
                detail: fault.to_string(),
            }),
            Ok(verdict) => {
                let reason = self.policies.reason(number, verdict.reason);
                Told {
                    by: Teller::Policy {
                        name: self.policy_name(number),
                        number,
                        reason: reason.unwrap_or_default().to_owned(),
                    },
                    verdict: verdict.choice,
                }
            }
        }
    }

    /// What the interlock would make of an answer: the first that is in order.
    fn would(&self, probe: &Probe, verdict: &routing::Choice) -> Would {
        let takes = |executor: &&ExecutorId| {
            let mut asked = probe.executors.iter();
            asked.any(|(id, interlock)| id == *executor && interlock.is_ok())
        };
        match verdict {
            routing::Choice::Place(executors) => match executors.iter().find(takes) {
                Some(executor) => Would::Place(self.name_of(NameKind::Executor, executor.0)),
                None => Would::Wait,
            },
            routing::Choice::Hold(until) => Would::Hold(*until),
            routing::Choice::GiveUp => Would::GiveUp,
        }
    }

    /// What the policy that routes says to each executor, or why it does not.
    fn said(&self, now: Micros, probe: &Probe) -> Result<Vec<Candidate>, String> {
        let (at, view) = (self.moment(now), self.machine.view());
        let explained = self
            .policies
            .explain(&view, at, &probe.request, &probe.cached);
        match explained {
            Ok(explanation) => Ok(explanation.candidates),
            Err(error) => Err(error.to_string()),
        }
    }

    fn policy_name(&self, number: u32) -> String {
        let said = self.policies.description(number);
        said.map_or_else(String::new, |said| said.name.clone())
    }

    /// How the request of `ticket` was decided, and what is to be said to it as things are now.
    pub(super) fn explained(&self, now: Micros, ticket: TicketId) -> Option<Explained> {
        let case = self.decisions.of(ticket)?.clone();
        let candidates = match &case.row {
            Some(row) => {
                let (at, view) = (self.moment(now), self.machine.view());
                let explained = self.policies.explain(&view, at, row, &case.cached(row.id));
                explained.map_err(|error| error.to_string())
            }
            None => Err("it allows too many executors to be remembered whole".to_owned()),
        };
        let by = candidates.as_ref().ok();
        Some(Explained {
            by: by.map(|explanation| self.policy_name(explanation.policy)),
            candidates: candidates.map(|explanation| {
                let candidates = explanation.candidates.into_iter().take(EXECUTORS_SHOWN);
                candidates
                    .map(|said| (self.name_of(NameKind::Executor, said.executor.0), said))
                    .collect()
            }),
            cases: self.named(vec![case]),
        })
    }

    /// Cases, with the names of the executors in them.
    pub(super) fn named(&self, list: Vec<Case>) -> Cases {
        let mut names = BTreeMap::new();
        for executor in list.iter().flat_map(Case::executors) {
            names
                .entry(executor)
                .or_insert_with(|| self.name_of(NameKind::Executor, executor.0));
        }
        Cases { list, names }
    }
}

fn place(into: PlacedIn) -> &'static str {
    match into {
        PlacedIn::Slot => "a slot is free",
        PlacedIn::Queue => "its queue has room",
    }
}
