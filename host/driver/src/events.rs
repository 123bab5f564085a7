//! The news of executors: what they report, and that one is lost.

use pointsman_core::rows::Health;
use pointsman_core::{
    ExecutorId, ExecutorUpdate, Incarnation, Input, Kept, Micros, RetryClass, SequenceRef,
};
use pointsman_executor::contract::{Event, Events, ServerChange};
use pointsman_executor::job::JobState;

use super::operator::Fate;
use super::requests::Remains;
use super::{Driver, record};

impl Driver {
    /// Takes in the news of an executor. News of an earlier life is ignored.
    pub fn events(&mut self, now: Micros, events: Events) {
        let Events {
            executor,
            incarnation,
            list,
        } = events;
        if !self.executors.is_current(executor, incarnation) {
            self.log_last_words(executor, &list);
            return;
        }
        self.executors.heard(executor, now);
        for event in list {
            if let Some(spans) = &mut self.spans {
                spans.event(now, &event);
            }
            match event {
                Event::Started(sequence) => self.input(now, Input::SequenceStarted(sequence)),
                Event::Stepped(report) => {
                    for made in report.progress.iter().filter(|made| made.is_one_token()) {
                        if let Some(after) = self.lives.generated(now, made.request) {
                            self.activity.first_token(now, after);
                        }
                    }
                    self.input(now, Input::StepFinished(report));
                }
                Event::PromptCounted(sequence, count) => {
                    self.input(now, Input::PromptCounted(sequence, count));
                }
                // For the spans alone.
                Event::Answered(..) => {}
                Event::Finished { sequence, stop } => {
                    self.requests.stopped(sequence.request, stop);
                    if let Some(session) = self.requests.session(sequence.request) {
                        let model = self.lives.of(sequence.request).and_then(|life| life.model);
                        let served_by = (sequence.executor, model);
                        self.sessions.served(now, session, served_by);
                    }
                    self.input(now, Input::SequenceFinished(sequence));
                }
                Event::Failed {
                    sequence,
                    retry,
                    why,
                    mut state,
                } => {
                    record::failed(sequence, &why);
                    if let Some(executors) = self.kept_to(state.as_deref_mut()) {
                        self.input(now, Input::KeptTo(sequence, executors));
                    }
                    let remains = self.requests.failed(sequence.request, state);
                    self.input(now, ended(sequence, remains, retry));
                }
                Event::Left {
                    sequence,
                    state,
                    swapped_tokens,
                } => {
                    self.requests.give_back(sequence.request, state);
                    let left = Input::SequenceLeft(sequence, swapped_tokens);
                    self.input(now, left);
                }
                Event::Lost { why } => {
                    record::lost(executor, &why);
                    self.lose(now, executor, incarnation);
                    self.revive(now, executor);
                }
                Event::Changed(change) => self.server_changed(now, executor, change),
            }
        }
    }

    /// Logs the reason why an executor is lost whose end was found before it was told.
    fn log_last_words(&self, executor: ExecutorId, list: &[Event]) {
        if self.executors.is_linked(executor) {
            return;
        }
        for event in list {
            if let Event::Lost { why } = event {
                record::lost(executor, why);
            }
        }
    }

    /// The executors that may go on with a sequence which one has given back; absent: any.
    fn kept_to(&self, state: Option<&mut JobState>) -> Option<Vec<ExecutorId>> {
        let state = state?;
        let longer = state.longer.take();
        match state.broken {
            Some(_) => Some(self.executors.going_on()),
            None => longer.map(|names| self.executors_named(&names)),
        }
    }

    /// Takes note of a change of a server elsewhere.
    fn server_changed(&mut self, now: Micros, executor: ExecutorId, change: ServerChange) {
        let update = match change {
            ServerChange::Availability(availability) => ExecutorUpdate::Availability(availability),
            ServerChange::Slots(slots) => ExecutorUpdate::SlotsTotal(slots.max(1)),
            ServerChange::TokensPerBlock(tokens) => ExecutorUpdate::TokensPerBlock(tokens),
            ServerChange::ModelsMax(max) => ExecutorUpdate::ModelsMax(max),
            ServerChange::Replaced => ExecutorUpdate::Replaced,
            ServerChange::Loaded(names) => ExecutorUpdate::Loaded(names.map(|names| {
                let names = names.iter();
                names.map(|name| self.machine.intern(now, name)).collect()
            })),
            ServerChange::BrokenStreams(part) => {
                self.executors.takes_part(executor, part);
                return;
            }
            ServerChange::Kv(report) => {
                if let Some(info) = self.machine.executor_info(executor) {
                    self.input(now, Input::KvReported(info.device, report));
                }
                return;
            }
        };
        self.update(now, executor, update);
    }

    /// Takes what ran on an executor from it, as far as the driver has the answers: the life
    /// `incarnation` has ended.
    pub(super) fn lose(&mut self, now: Micros, executor: ExecutorId, incarnation: Incarnation) {
        let mut kept = Vec::new();
        for (request, remains) in self.requests.take_from(executor) {
            match remains {
                Remains::Part(generated) => kept.push(Kept { request, generated }),
                // Its end was not heard of, or nobody can go on with it.
                Remains::Whole | Remains::Broken => {
                    let sequence = SequenceRef {
                        request,
                        executor,
                        incarnation,
                    };
                    self.input(now, ended(sequence, remains, RetryClass::Never));
                }
            }
        }
        let lost = Input::ExecutorLost {
            executor,
            incarnation,
            kept,
        };
        self.input(now, lost);
    }

    /// Begins the next life of an executor that has reported itself lost. One that has ended has none.
    fn revive(&mut self, now: Micros, executor: ExecutorId) {
        let Some(snapshot) = self.machine.executor_snapshot(executor) else {
            return;
        };
        if self.executors.drop_closed(executor) {
            record::closed(executor);
            return;
        }
        self.executors.reborn(executor, snapshot.incarnation);
        self.update(now, executor, ExecutorUpdate::Health(Health::Up));
        if self.executors.fate(executor) == Fate::Drains {
            self.update(now, executor, ExecutorUpdate::Health(Health::Draining));
        }
    }
}

/// The end of a sequence that its executor can do no more for, of whose answer this remains.
fn ended(sequence: SequenceRef, remains: Remains, retry: RetryClass) -> Input {
    let (retry, kept) = match remains {
        Remains::Whole => return Input::SequenceFinished(sequence),
        Remains::Part(kept) => (retry, kept),
        Remains::Broken => match retry {
            RetryClass::Elsewhere | RetryClass::TooLate => (RetryClass::TooLate, 0),
            RetryClass::Never | RetryClass::Anywhere => (RetryClass::Never, 0),
        },
    };
    Input::SequenceFailed {
        sequence,
        retry,
        kept,
    }
}
