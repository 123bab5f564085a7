//! Policies that answer at random: valid, invalid, and nothing at all.

use fastrand::Rng;
use pointsman_core::rows::{self, AskedRequest, Change, SequenceState};
use pointsman_core::{
    Allotment, Allotments, Answer, Arrangement, Asked, EvictHow, Eviction, ExecutorId, FaultKind,
    Micros, Moment, Policies, PolicyFault, Question, Reply, RequestId, RowKinds, Shortage, Victim,
    View, admission, routing,
};

/// An answerer at random, from a seed.
#[derive(Debug)]
pub struct Adversary {
    rng: Rng,
    /// About how many of 100 answers are meant to be in order.
    sanity: u32,
}

impl Adversary {
    /// Makes an adversary. The same seed gives the same answers to the same questions. Of 100
    /// answers, about `sanity` are meant to be in order.
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

    /// A request that is there, was there or will be.
    fn request(&mut self, newest: RequestId) -> RequestId {
        RequestId(self.rng.u64(0..newest.0 + 3))
    }

    /// Sometimes no answer, or a fault; otherwise the answer that `make` makes.
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
        match self.rng.u32(0..100) {
            0 => routing::Choice::GiveUp,
            1..16 => {
                let later = at.now.after(Micros(self.rng.u64(0..5_000_000)));
                routing::Choice::Hold(self.rng.bool().then_some(later))
            }
            _ => {
                let n = self.rng.usize(0..4);
                routing::Choice::Place((0..n).map(|_| self.executor(view)).collect())
            }
        }
    }

    fn admissions(&mut self, arrivals: &[AskedRequest], room: u32) -> Vec<admission::Verdict> {
        let verdicts = arrivals.iter().map(|arrival| {
            let choice = match self.rng.u32(0..100) {
                0 => admission::Choice::Shed(self.rng.u32(0..9)),
                1..11 => admission::Choice::Park,
                11..13 => admission::Choice::Displace(admission::Displacement {
                    request: self.request(arrival.request),
                    retry_after: self.rng.u32(0..9),
                }),
                _ if room == 0 && self.is_sane() => admission::Choice::Park,
                _ => admission::Choice::Admit,
            };
            admission::Verdict { choice, reason: 0 }
        });
        let verdicts = verdicts.collect();
        self.mangle(verdicts)
    }

    fn order(&mut self, requests: &[AskedRequest]) -> Vec<RequestId> {
        let mut order: Vec<RequestId> = requests.iter().map(|asked| asked.request).collect();
        self.rng.shuffle(&mut order);
        self.mangle(order)
    }

    fn routes(&mut self, view: &View<'_>, at: Moment, requests: usize) -> Vec<routing::Verdict> {
        let verdicts = (0..requests).map(|_| routing::Verdict {
            choice: self.routing_choice(view, at),
            reason: 0,
        });
        let verdicts = verdicts.collect();
        self.mangle(verdicts)
    }

    fn eviction(&mut self, view: &View<'_>, shortage: &Shortage) -> Option<Eviction> {
        if self.rng.u32(0..4) == 0 {
            return None;
        }
        let (executor, requests) = if self.is_sane() {
            self.running_beside(view, shortage)?
        } else {
            let n = self.rng.usize(0..4);
            let anybody = (0..n).map(|_| self.request(shortage.needy)).collect();
            (self.executor(view), anybody)
        };
        let victims = requests.into_iter().map(|request| Victim {
            request,
            how: if self.rng.bool() {
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
    }

    /// Requests that run where the needy one does or could, in any order: one at least, until they
    /// free as many blocks as are missing.
    fn running_beside(
        &mut self,
        view: &View<'_>,
        shortage: &Shortage,
    ) -> Option<(ExecutorId, Vec<RequestId>)> {
        let rows = view.rows(RowKinds::ALL).into_iter();
        let sequences = rows.filter_map(|row| {
            if let Change::Sequence(row) = row {
                Some(row)
            } else {
                None
            }
        });
        let mut sequences: Vec<rows::Sequence> = sequences.collect();
        self.rng.shuffle(&mut sequences);
        let of_needy = sequences.iter().find(|row| row.request == shortage.needy);
        let executor = of_needy.map(|row| row.executor).or(shortage.executor);
        let executor = executor.or_else(|| sequences.first().map(|row| row.executor))?;
        let others = sequences.iter().filter(|row| {
            let is_running = row.state == SequenceState::Running;
            is_running && row.executor == executor && row.request != shortage.needy
        });
        let mut freed = 0;
        let enough = others.enumerate().take_while(|(before, row)| {
            let is_short = *before == 0 || freed < shortage.blocks;
            freed += row.blocks_exclusive;
            is_short
        });
        let requests = enough.map(|(_, row)| row.request);
        Some((executor, requests.collect()))
    }

    fn arrangement(&mut self, sequences: &[RequestId]) -> Arrangement {
        let mut first = sequences.to_vec();
        self.rng.shuffle(&mut first);
        first.truncate(self.rng.usize(0..sequences.len() + 1));
        Arrangement {
            prefill_max: self.rng.bool().then(|| self.rng.u32(0..64)),
            first: self.mangle(first),
        }
    }

    fn allotments(&mut self, view: &View<'_>, at: Moment, tokens_total: u32) -> Allotments {
        let n = self.rng.usize(0..4);
        let engines = (0..n).map(|_| Allotment {
            executor: self.executor(view),
            tokens_max: self.rng.u32(0..tokens_total + 1),
        });
        let engines = engines.collect();
        let later = at.now.after(Micros(self.rng.u64(0..500_000)));
        Allotments {
            engines,
            again: self.rng.bool().then_some(later),
        }
    }
}

impl Policies for Adversary {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Asked { view, at, question } = asked;
        self.answer(|adversary| match question {
            Question::Admission { arrivals, room } => {
                Reply::Admission(adversary.admissions(arrivals, *room))
            }
            Question::Priority(requests) => Reply::Priority(adversary.order(requests)),
            Question::Routing(requests) => {
                Reply::Routing(adversary.routes(view, *at, requests.len()))
            }
            Question::Preemption(shortage) => Reply::Preemption(adversary.eviction(view, shortage)),
            Question::Budget { tokens_total, .. } => {
                Reply::Budget(adversary.allotments(view, *at, *tokens_total))
            }
            Question::Arrangement { sequences, .. } => {
                Reply::Arrangement(adversary.arrangement(sequences))
            }
        })
    }
}
