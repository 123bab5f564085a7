//! The conversions of the hooks: what their questions pass, and their answers.

/// Part of [`conversions`]: what the questions of the hooks pass to the wire, and their answers from it.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions_of_hooks {
    () => {
        /// The hook of a decision; absent: the explanation's, which decides nothing.
        pub(crate) fn hook(hook: wire::lifecycle::Hook) -> Option<interface::Hook> {
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

        pub(crate) fn device_tokens(
            (device, tokens_total): (interface::DeviceId, u32),
            used: &[interface::TokensUsed],
        ) -> wire::budget::DeviceTokens {
            let used = used.iter().map(|used| wire::budget::TokensUsed {
                executor: used.executor.0,
                tokens: used.tokens,
            });
            wire::budget::DeviceTokens {
                device: device.0,
                tokens_total,
                used: used.collect(),
            }
        }

        pub(crate) fn shortage(shortage: &interface::Shortage) -> wire::preemption::Shortage {
            wire::preemption::Shortage {
                cause: match shortage.cause {
                    interface::ShortageCause::Slots => wire::preemption::Cause::Slots,
                    interface::ShortageCause::Blocks => wire::preemption::Cause::Blocks,
                    interface::ShortageCause::Models => wire::preemption::Cause::Models,
                },
                needy: shortage.needy.0,
                executor: shortage.executor.map(|id| id.0),
                blocks: shortage.blocks,
            }
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
