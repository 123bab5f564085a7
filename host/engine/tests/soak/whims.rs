//! A policy that answers every question at random, mostly in order: it has anybody give way, in any way, and
//! takes every executor for as good as another.

use fastrand::Rng;
use pointsman_core::rows::{self, Change, SequenceState};
use pointsman_core::{
    Allotment, Allotments, Answer, Arrangement, Asked, DeviceId, EvictHow, Eviction, ExecutorId,
    Micros, Policies, Question, Reply, RequestId, RowKinds, Shortage, Victim, View, admission,
    routing,
};

pub(crate) struct Whims(pub(crate) Rng);

impl Whims {
    fn one_in(&mut self, n: u32) -> bool {
        self.0.u32(0..n) == 0
    }

    fn admission(&mut self) -> admission::Verdict {
        let choice = match self.0.u32(0..100) {
            0 => admission::Choice::Shed(1),
            1..4 => admission::Choice::Park,
            _ => admission::Choice::Admit,
        };
        admission::Verdict { choice, reason: 0 }
    }

    fn routing(&mut self, asked: &Asked<'_>) -> routing::Verdict {
        let mut executors: Vec<ExecutorId> = asked.view.executors().collect();
        self.0.shuffle(&mut executors);
        let choice = match self.0.u32(0..1000) {
            0 => routing::Choice::GiveUp,
            1..50 => {
                let later = Micros(self.0.u64(0..2_000_000));
                routing::Choice::Hold(Some(asked.at.now.after(later)))
            }
            _ => routing::Choice::Place(executors),
        };
        routing::Verdict { choice, reason: 0 }
    }

    /// Has any sequences of the device give way, until there is enough or nobody left.
    fn eviction(&mut self, view: &View<'_>, shortage: &Shortage) -> Option<Eviction> {
        let rows = view.rows(RowKinds::ALL).into_iter();
        let sequences = rows.filter_map(|row| {
            if let Change::Sequence(row) = row {
                Some(row)
            } else {
                None
            }
        });
        let is_needy = |row: &rows::Sequence| row.request == shortage.needy;
        let (needy, mut others): (Vec<_>, Vec<_>) = sequences.partition(is_needy);
        let executor = needy.first().map(|row| row.executor).or(shortage.executor);
        let executor = executor.or_else(|| others.first().map(|row| row.executor))?;
        others.retain(|row| row.executor == executor && row.state == SequenceState::Running);
        self.0.shuffle(&mut others);
        let mut freed = 0;
        let victims = others.iter().map_while(|row| {
            let is_enough = freed >= shortage.blocks;
            freed += row.blocks_exclusive;
            let how = match self.0.bool() {
                true => EvictHow::Swap,
                false => EvictHow::Recompute,
            };
            let request = row.request;
            (!is_enough).then_some(Victim { request, how })
        });
        let victims = victims.collect();
        (!self.one_in(8)).then_some(Eviction {
            executor,
            victims,
            reason: 0,
        })
    }

    fn budget(&mut self, asked: &Asked<'_>, device: DeviceId, tokens_total: u32) -> Allotments {
        let rows = asked.view.rows(RowKinds::ALL).into_iter();
        let there = rows.filter_map(|row| {
            if let Change::Executor(row) = row {
                (row.device == device).then_some(row.id)
            } else {
                None
            }
        });
        let mut left = tokens_total;
        let engines = there.map(|executor| {
            let tokens_max = self.0.u32(0..=left);
            left -= tokens_max;
            Allotment {
                executor,
                tokens_max,
            }
        });
        let engines = engines.collect();
        let later = asked.at.now.after(Micros(self.0.u64(0..500_000)));
        Allotments {
            engines,
            again: Some(later),
        }
    }

    fn arrangement(&mut self, sequences: &[RequestId]) -> Arrangement {
        let mut first = sequences.to_vec();
        self.0.shuffle(&mut first);
        first.truncate(self.0.usize(0..=sequences.len()));
        Arrangement {
            prefill_max: self.0.bool().then(|| self.0.u32(0..24)),
            first,
        }
    }
}

impl Policies for Whims {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        if self.one_in(50) {
            return Answer::unbound();
        }
        let reply = match &asked.question {
            Question::Admission { arrivals, .. } => {
                Reply::Admission(arrivals.iter().map(|_| self.admission()).collect())
            }
            Question::Priority(requests) => {
                let mut order: Vec<RequestId> = requests.iter().map(|it| it.request).collect();
                self.0.shuffle(&mut order);
                Reply::Priority(order)
            }
            Question::Routing(requests) => {
                Reply::Routing(requests.iter().map(|_| self.routing(asked)).collect())
            }
            Question::Preemption(shortage) => {
                Reply::Preemption(self.eviction(&asked.view, shortage))
            }
            Question::Budget {
                device,
                tokens_total,
                ..
            } => Reply::Budget(self.budget(asked, *device, *tokens_total)),
            Question::Arrangement { sequences, .. } => {
                Reply::Arrangement(self.arrangement(sequences))
            }
        };
        Answer::by(0, reply)
    }
}
