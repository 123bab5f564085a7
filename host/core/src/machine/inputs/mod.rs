//! The door for inputs: [`Machine::handle`], and the inputs about names and requests.
//!
//! | file | inputs about |
//! |---|---|
//! | `fleet` | devices and executors |
//! | `sequences` | sequences: started, step, finished, failed, left |

mod fleet;
mod sequences;

use pointsman_events::changes::RowKey;
use pointsman_events::rows::NameKind;
use pointsman_events::{
    ExecutorId, ExpiredWhy, Fact, Handled, Input, InternedId, Micros, ModelId, NewRequest, Outcome,
    RequestId, TenantId,
};

use super::Machine;
use super::ledger::Step;
use super::requests::Request;
use super::timers::Timer;

impl Machine {
    /// Takes an input: the one way in which anything outside changes the machine. Time that runs
    /// backwards stands still.
    ///
    /// A message about a sequence that is not there (any more), or of an earlier incarnation of its
    /// executor, changes nothing: the event that ended the sequence has been counted.
    pub fn handle(&mut self, now: Micros, input: Input) -> Handled {
        self.out.pass(now);
        match input {
            Input::NameInterned { kind, text } => return self.take_name(kind, &text),
            Input::ModelLimitSet(id, max) => self.ledger.limit_model(id, max, &mut self.out),
            Input::TenantSet(id, weight, tokens) => {
                self.ledger.set_tenant(id, weight, tokens, &mut self.out);
            }
            Input::DeviceAttached(spec) => {
                let attached = self.attach_device(spec);
                return attached.map_or_else(Handled::Refused, Handled::Device);
            }
            Input::TokensPerStepSet(device, tokens) => {
                let ledger = &mut self.ledger;
                if let Err(why) = ledger.set_tokens_per_step(device, tokens, &mut self.out) {
                    return Handled::Refused(why);
                }
            }
            Input::KvReported(device, report) => {
                self.ledger.report_kv(device, report, &mut self.out);
            }
            Input::PrefixesReported(tier, event) => {
                self.ledger
                    .note_prefixes(tier, event, self.config.tier_blocks_max);
            }
            Input::ExecutorAttached(spec) => {
                let attached = self.attach_executor(spec);
                return attached.map_or_else(Handled::Refused, Handled::Executor);
            }
            Input::ExecutorUpdated(id, update) => {
                if let Err(why) = self.update_executor(id, update) {
                    return Handled::Refused(why);
                }
            }
            Input::ExecutorLost {
                executor,
                incarnation,
                kept,
            } => {
                let found = self.ledger.find(executor);
                if found.is_some_and(|found| found.incarnation == incarnation) {
                    self.lose_executor(executor, &kept);
                }
            }
            Input::RequestArrived(new) => return Handled::Request(self.arrive(*new)),
            Input::RequestCancelled(id) => self.end(id, Outcome::Cancelled),
            Input::SequenceStarted(sequence) if self.is_current(sequence) => self.started(sequence),
            Input::StepFinished(report) => self.step(&report),
            Input::PromptCounted(of, count) if self.is_current(of) => {
                self.prompt_counted(of, count)
            }
            Input::KeptTo(of, to) if self.is_current(of) => self.requests.keep_to(of.request, &to),
            Input::SequenceFinished(of) if self.is_current(of) => self.finished(of),
            Input::SequenceFailed {
                sequence,
                retry,
                kept,
            } if self.is_current(sequence) => self.failed(sequence, retry, kept),
            Input::SequenceLeft(of, swapped) if self.is_current(of) => self.left(of, swapped),
            Input::SequenceStarted(_)
            | Input::PromptCounted(..)
            | Input::KeptTo(..)
            | Input::SequenceFinished(_)
            | Input::SequenceFailed { .. }
            | Input::SequenceLeft(..) => {}
            Input::TimePassed => self.fire_timers(),
            Input::PolicyChanged(hook) => self.policy_changed(hook),
        }
        Handled::Done
    }
}

// === impl Machine: names ===

impl Machine {
    /// The id of a name, made at its first use.
    pub fn intern<I: InternedId>(&mut self, now: Micros, text: &str) -> I {
        I::from_number(self.handle(now, Input::name(I::KIND, text)).name())
    }

    /// Takes a name in. Devices and executors are named when they are attached.
    fn take_name(&mut self, kind: NameKind, text: &str) -> Handled {
        if matches!(kind, NameKind::Executor | NameKind::Device) {
            return Handled::Done;
        }
        let known = self.names.find(kind, text);
        let id = known.unwrap_or_else(|| self.name_new(kind, text));
        match kind {
            NameKind::Model => self.ledger.add_model(ModelId(id), &mut self.out),
            NameKind::Tenant => self.ledger.add_tenant(TenantId(id), &mut self.out),
            NameKind::Adapter | NameKind::Label | NameKind::Executor | NameKind::Device => {}
        }
        Handled::Name(id)
    }

    fn name_new(&mut self, kind: NameKind, text: &str) -> u32 {
        let id = self.names.push(kind, text);
        self.out.note(RowKey::Name(kind, id));
        id
    }
}

// === impl Machine: requests ===

impl Machine {
    /// Takes in a request. It is decided in the next round; one whose prompt and output bound can
    /// fit nowhere is refused at once.
    fn arrive(&mut self, new: NewRequest) -> RequestId {
        let request = Request::new(self.requests.next_id(), self.out.now(), new);
        let id = request.id();
        self.out.fact(Fact::Arrived {
            request: id,
            tenant: request.row.tenant,
            model: request.row.model,
            class: request.row.class,
            preferred: request.row.preferred,
        });
        let row = &request.row;
        self.ledger.count_waiting(row, Step::Up, &mut self.out);
        self.requests.arrive(request, &mut self.out);
        self.look_for_first_server(id);
        self.out.due = true;
        id
    }

    /// Ends a request that has run out of time. One that has waited for as long as it may is left to
    /// the round if an executor could take it now.
    pub(super) fn expire(&mut self, id: RequestId) {
        let Some(request) = self.requests.find(id) else {
            return;
        };
        let waited = Outcome::Expired(ExpiredWhy::Wait);
        match self.expiry(request) {
            Some(outcome) if outcome == waited && self.could_be_placed(request) => {
                self.requests.watch(id);
            }
            Some(outcome) => self.end(id, outcome),
            None => {}
        }
    }

    /// The outcome of a request one of whose bounds has run out.
    fn expiry(&self, request: &Request) -> Option<Outcome> {
        if request.is_gone() {
            return None;
        }
        let now = self.out.now();
        if request.row.deadline.is_some_and(|at| at <= now) {
            return Some(Outcome::Expired(ExpiredWhy::Deadline));
        }
        if self.has_waited_out(request.waiting()?) {
            return Some(Outcome::Expired(ExpiredWhy::Wait));
        }
        self.unserved(request).map(Outcome::Refused)
    }
}

// === impl Machine: time ===

impl Machine {
    /// Lets everything happen that has fallen due: deadlines and bounds on waiting run out, holds
    /// end, models cool.
    pub(super) fn fire_timers(&mut self) {
        while let Some(timer) = self.out.timers.pop_due(self.out.at.now) {
            match timer {
                Timer::Request(id) => self.fire_request(id),
                Timer::Executor(id) => self.fire_executor(id),
                Timer::Evict => {
                    self.out.timers.open_evict_gates();
                    self.out.due = true;
                }
                Timer::Allot(device) => {
                    self.ledger.allot(device);
                    self.out.due = true;
                }
            }
        }
    }

    fn fire_request(&mut self, id: RequestId) {
        self.expire(id);
        if self.requests.find(id).is_none() {
            return;
        }
        // A hold, a clock or a reservation: the round deals with it.
        self.out.due = true;
        let now = self.out.now();
        let reservation = self.requests[id].reservation();
        if reservation.is_some_and(|r| now.since(r.since) >= self.config.unplaced_max) {
            self.drop_reservations(&[id]);
        }
        if let Some(waiting) = self.requests.waiting_mut(id) {
            waiting.pass(now);
        }
        self.arm_request(id);
    }

    fn fire_executor(&mut self, id: ExecutorId) {
        self.ledger.cool_due(id, &mut self.out);
        let freed = self.ledger.end_rest(id, &self.config, &mut self.out);
        if let Some(freed) = freed {
            self.refill(freed);
        }
        self.out.due = true;
    }
}
