//! Policies that answer at random: valid, invalid, and nothing at all.

use fastrand::Rng;
use pointsman_core::rows::Cached;
use pointsman_core::{
    Allotment, Answer, DeviceId, EvictHow, Eviction, ExecutorId, FaultKind, Micros, Moment,
    Policies, PolicyFault, RequestId, Shortage, Victim, View, admission, routing,
};

/// Answers at random from a seed.
#[derive(Debug)]
pub struct Adversary {
    rng: Rng,
    /// Of 100 answers, about how many are meant to be in order.
    sanity: u32,
}

impl Adversary {
    /// The same seed gives the same answers to the same questions. Of 100 answers, about
    /// `sanity` are meant to be in order.
    #[must_use]
    pub fn new(seed: u64, sanity: u32) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            sanity,
        }
    }

    fn is_sane(&mut self) -> bool {
        self.rng.u32(0..100) < self.sanity
    }

    fn executor(&mut self, view: &View<'_>) -> ExecutorId {
        let executors: Vec<ExecutorId> = view.executors().collect();
        match self.rng.choice(executors) {
            Some(executor) if self.is_sane() => executor,
            _ => ExecutorId(self.rng.u32(0..64)),
        }
    }

    /// Some request there is or was, or will be.
    fn request(&mut self, newest: RequestId) -> RequestId {
        RequestId(self.rng.u64(0..newest.0 + 3))
    }

    /// Sometimes no answer, or a fault; otherwise what `make` says.
    fn answer<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Answer<T> {
        match self.rng.u32(0..20) {
            0 if !self.is_sane() => Answer {
                faults: vec![PolicyFault {
                    policy: 0,
                    kind: FaultKind::Trap,
                    detail: "at random".into(),
                }],
                ..Answer::unbound()
            },
            1 if !self.is_sane() => Answer::unbound(),
            _ => Answer::by(0, make(self)),
        }
    }

    /// The list, sometimes with something missing or something too much.
    fn mangle<T: Clone>(&mut self, mut list: Vec<T>) -> Vec<T> {
        if !self.is_sane() && !list.is_empty() {
            let idx = self.rng.usize(0..list.len());
            if self.rng.bool() {
                list.remove(idx);
            } else {
                list.push(list[idx].clone());
            }
        }
        list
    }

    fn routing_choice(&mut self, view: &View<'_>, at: Moment) -> routing::Choice {
        match self.rng.u32(0..20) {
            0 => routing::Choice::GiveUp,
            1..4 => {
                let later = at.now.after(Micros(self.rng.u64(0..5_000_000)));
                routing::Choice::Hold(self.rng.bool().then_some(later))
            }
            _ => {
                let n = self.rng.usize(0..4);
                routing::Choice::Place((0..n).map(|_| self.executor(view)).collect())
            }
        }
    }
}

impl Policies for Adversary {
    fn admit(
        &mut self,
        _: &View<'_>,
        _: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        self.answer(|adversary| {
            let verdicts = arrivals.iter().map(|arrival| {
                let choice = match adversary.rng.u32(0..20) {
                    0 => admission::Choice::Shed(adversary.rng.u32(0..9)),
                    1..3 => admission::Choice::Park,
                    3 => admission::Choice::Displace(adversary.request(*arrival)),
                    _ if room == 0 && adversary.is_sane() => admission::Choice::Park,
                    _ => admission::Choice::Admit,
                };
                admission::Verdict { choice, reason: 0 }
            });
            let verdicts = verdicts.collect();
            adversary.mangle(verdicts)
        })
    }

    fn order(&mut self, _: &View<'_>, _: Moment, requests: &[RequestId]) -> Answer<Vec<RequestId>> {
        self.answer(|adversary| {
            let mut order = requests.to_vec();
            adversary.rng.shuffle(&mut order);
            adversary.mangle(order)
        })
    }

    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>> {
        self.answer(|adversary| {
            let verdicts = requests.iter().map(|_| routing::Verdict {
                choice: adversary.routing_choice(view, at),
                reason: 0,
            });
            let verdicts = verdicts.collect();
            adversary.mangle(verdicts)
        })
    }

    fn evict(
        &mut self,
        view: &View<'_>,
        _: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>> {
        self.answer(|adversary| {
            if adversary.rng.u32(0..4) == 0 {
                return None;
            }
            let executor = match shortage.executor {
                Some(executor) if adversary.is_sane() => executor,
                _ => adversary.executor(view),
            };
            let n = adversary.rng.usize(0..4);
            let victims = (0..n).map(|_| Victim {
                request: adversary.request(shortage.needy),
                how: if adversary.is_sane() {
                    EvictHow::Recompute
                } else {
                    EvictHow::Swap
                },
            });
            Some(Eviction {
                executor,
                victims: victims.collect(),
                reason: 0,
            })
        })
    }

    fn allot(
        &mut self,
        view: &View<'_>,
        _: Moment,
        _: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>> {
        self.answer(|adversary| {
            let n = adversary.rng.usize(0..4);
            let allotments = (0..n).map(|_| Allotment {
                executor: adversary.executor(view),
                tokens_max: adversary.rng.u32(0..tokens_total + 1),
            });
            allotments.collect()
        })
    }
}
