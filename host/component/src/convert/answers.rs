//! The half of the conversions that leads from the wire to the core.

/// Part of [`conversions`]: the answers of a policy.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions_of_answers {
    () => {
        pub(crate) fn description(said: wire::lifecycle::Description) -> $crate::PolicyDescription {
            let mut needs = interface::Needs::default();
            for need in said.needs {
                let kinds = row_kinds(need.feed);
                let kept = match hook(need.hook) {
                    Some(hook) => &mut needs.decisions[hook],
                    None => &mut needs.explanation,
                };
                *kept = kept.union(kinds);
            }
            $crate::PolicyDescription {
                name: said.name,
                version: said.version,
                summary: said.summary,
                needs,
                reasons: said.reasons,
                state_version: said.state_version,
                orders_one: said.orders_one,
                settings: said.settings.into_iter().map(setting).collect(),
            }
        }

        fn setting(said: wire::lifecycle::Setting) -> $crate::SettingSchema {
            use wire::lifecycle::{SettingValues, TimeUnit};
            $crate::SettingSchema {
                key: said.key,
                about: said.about,
                values: match said.values {
                    SettingValues::Number(range) => {
                        $crate::SettingRange::Number(range.least..=range.most)
                    }
                    SettingValues::Duration(range) => {
                        let unit = match range.unit {
                            TimeUnit::Micros => $crate::TimeUnit::Micros,
                            TimeUnit::Millis => $crate::TimeUnit::Millis,
                            TimeUnit::Seconds => $crate::TimeUnit::Seconds,
                        };
                        $crate::SettingRange::Duration(unit, range.least..=range.most)
                    }
                    SettingValues::YesOrNo => $crate::SettingRange::YesOrNo,
                    SettingValues::Choice(texts) => $crate::SettingRange::Choice(texts),
                    SettingValues::Other(words) => $crate::SettingRange::Other(words),
                },
                default: said.default,
            }
        }

        /// The hook of a decision; absent: the explanation's, which decides nothing.
        fn hook(hook: wire::lifecycle::Hook) -> Option<interface::Hook> {
            use wire::lifecycle::Hook;
            match hook {
                Hook::Admission => Some(interface::Hook::Admission),
                Hook::Priority => Some(interface::Hook::Priority),
                Hook::Routing => Some(interface::Hook::Routing),
                Hook::Preemption => Some(interface::Hook::Preemption),
                Hook::Budget => Some(interface::Hook::Budget),
                Hook::Explanation => None,
            }
        }

        fn row_kinds(feed: wire::lifecycle::Feed) -> interface::RowKinds {
            use interface::RowKind;
            use wire::lifecycle::Feed;
            let flags = [
                (Feed::NAMES, RowKind::Name),
                (Feed::EXECUTORS, RowKind::Executor),
                (Feed::LOADS, RowKind::Load),
                (Feed::RESIDENCIES, RowKind::Residency),
                (Feed::DEVICES, RowKind::Device),
                (Feed::MODELS, RowKind::Model),
                (Feed::TENANTS, RowKind::Tenant),
                (Feed::WAITING, RowKind::Waiting),
                (Feed::SEQUENCES, RowKind::Sequence),
                (Feed::COMPLETED, RowKind::Completion),
            ];
            // Both generators define these two operators, and only one defines `contains`.
            let wanted = flags.into_iter().filter(|(flag, _)| feed & *flag == *flag);
            wanted.map(|(_, kind)| kind).collect()
        }

        pub(crate) fn admission_verdict(
            verdict: wire::admission::Verdict,
        ) -> interface::admission::Verdict {
            use interface::admission::Choice;
            interface::admission::Verdict {
                choice: match verdict.choice {
                    wire::admission::Choice::Admit => Choice::Admit,
                    wire::admission::Choice::Park => Choice::Park,
                    wire::admission::Choice::Shed(seconds) => Choice::Shed(seconds),
                    wire::admission::Choice::Displace(displaced) => {
                        Choice::Displace(interface::admission::Displacement {
                            request: interface::RequestId(displaced.request),
                            retry_after: displaced.retry_after,
                        })
                    }
                },
                reason: verdict.reason,
            }
        }

        pub(crate) fn routing_verdict(
            verdict: wire::routing::Verdict,
        ) -> interface::routing::Verdict {
            use interface::routing::Choice;
            interface::routing::Verdict {
                choice: match verdict.choice {
                    wire::routing::Choice::Place(executors) => {
                        Choice::Place(executors.into_iter().map(interface::ExecutorId).collect())
                    }
                    wire::routing::Choice::Hold(until) => {
                        Choice::Hold(until.map(interface::Micros))
                    }
                    wire::routing::Choice::GiveUp => Choice::GiveUp,
                },
                reason: verdict.reason,
            }
        }

        pub(crate) fn eviction(eviction: wire::preemption::Eviction) -> interface::Eviction {
            let victim = |victim: wire::preemption::Victim| interface::Victim {
                request: interface::RequestId(victim.request),
                how: match victim.how {
                    wire::preemption::How::Recompute => interface::EvictHow::Recompute,
                    wire::preemption::How::Swap => interface::EvictHow::Swap,
                },
            };
            interface::Eviction {
                executor: interface::ExecutorId(eviction.executor),
                victims: eviction.victims.into_iter().map(victim).collect(),
                reason: eviction.reason,
            }
        }

        pub(crate) fn allotments(said: wire::budget::Allotments) -> interface::Allotments {
            let allotment = |allotment: wire::budget::Allotment| interface::Allotment {
                executor: interface::ExecutorId(allotment.executor),
                tokens_max: allotment.tokens_max,
            };
            interface::Allotments {
                engines: said.engines.into_iter().map(allotment).collect(),
                again: said.again.map(interface::Micros),
            }
        }

        pub(crate) fn arrangement(said: wire::budget::Arrangement) -> interface::Arrangement {
            interface::Arrangement {
                prefill_max: said.prefill_max,
                first: said.first.into_iter().map(interface::RequestId).collect(),
            }
        }

        pub(crate) fn candidate(candidate: wire::explanation::Candidate) -> $crate::Candidate {
            $crate::Candidate {
                executor: interface::ExecutorId(candidate.executor),
                eligible: candidate.eligible,
                cost: candidate.cost,
                note: candidate.note,
            }
        }
    };
}
