//! The life of a runner's instance: dropped after a fault, and followed by a fresh one.
//!
//! A fresh instance runs the policy's `configure` and `restore`, and is told everything, for as long
//! as its limits allow, which may be seconds. [`Restarts`] says who waits for that.
//!
//! # Invariants
//! 1. Under [`Restarts::Elsewhere`] no question waits for an instance: until it is there the runner
//!    rests, and until it has been told what one `observe` does not tell (`host::tests::restarts`).

use std::mem;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use pointsman_component::{Fault, Instance, Limits};
use pointsman_core::{FaultKind, Feed, Micros};

use super::{Rows, Runner, Woken};
use crate::host::BriefedElsewhere;
use crate::policy::{Briefing, Fresh, Restored};

/// The place where a fresh instance is made and told everything after a fault, a strike or a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restarts {
    /// Made and told by the thread that asks the next question, so that a run is the same each time:
    /// in simulations, tests and replays.
    #[default]
    AtTheQuestion,
    /// Made by a thread of its own as soon as the last one is gone, and told by one once the back-off
    /// is over, if one `observe` does not tell it all. The next policy in line answers meanwhile.
    Elsewhere,
}

pub(super) enum Life {
    Up(Box<dyn Instance>),
    Down(Pause),
    /// Another runner has the instance: a shadow's.
    Lent,
}

/// A runner's time without an instance.
pub(super) struct Pause {
    /// End of the back-off.
    until: Micros,
    /// The next instance, on its way.
    coming: Option<Coming>,
}

/// The next instance, on its way.
enum Coming {
    /// A thread makes it, or tells it what there was once the back-off was over: all that changes
    /// during a long one may be more than is remembered. It tells no more once the token is gone.
    Underway(JoinHandle<Come>, Arc<()>),
    /// It is there, or could not be made.
    There(Come),
    /// The question that needs it has it made, and told this.
    Briefed(Box<Briefing>),
}

/// A fresh instance that has come, or the reason for which none has.
type Come = Result<Box<Informed>, Fault>;

/// A fresh instance, and the knowledge it has.
struct Informed {
    fresh: Fresh,
    /// Its position in the machine's changes; absent: it has not been told anything.
    feed: Option<Feed>,
    /// The end of the calls that told it: the fuel that a row took, or the fault.
    ended: Result<u64, Fault>,
}

impl Informed {
    fn untold(fresh: Fresh) -> Box<Self> {
        Box::new(Self {
            fresh,
            feed: None,
            ended: Ok(0),
        })
    }

    /// Tells the instance all of `briefing`, as long as it `is_wanted`.
    fn tell(&mut self, briefing: Briefing, limits: &Limits, is_wanted: impl Fn() -> bool) {
        let rows = u64::try_from(briefing.changes.len()).unwrap_or(u64::MAX);
        let told = briefing.tell(self.fresh.instance.as_mut(), limits, is_wanted);
        self.ended = told.map(|fuel| fuel / rows.max(1));
        self.feed = Some(briefing.feed);
    }
}

impl Coming {
    /// True if its thread has come to an end.
    fn is_finished(&self) -> bool {
        matches!(self, Self::Underway(thread, _) if thread.is_finished())
    }

    /// True if it is there, and nobody has told it anything.
    fn is_untold(&self) -> bool {
        matches!(self, Self::There(Ok(informed)) if informed.feed.is_none())
    }
}

impl Life {
    pub(super) fn down(until: Micros) -> Self {
        Self::Down(Pause {
            until,
            coming: None,
        })
    }
}

impl Pause {
    /// Takes the next instance from its thread, once that is finished.
    fn join(&mut self) {
        let finished = self.coming.take_if(|coming| coming.is_finished());
        if let Some(Coming::Underway(thread, _)) = finished {
            self.coming = Some(Coming::There(joined(thread)));
        }
    }

    /// The next instance, if it is there.
    fn into_instance(mut self) -> Option<Box<dyn Instance>> {
        self.join();
        match self.coming? {
            Coming::There(come) => come.ok().map(|informed| informed.fresh.instance),
            Coming::Underway(..) | Coming::Briefed(_) => None,
        }
    }
}

// === impl Runner ===

impl Runner {
    /// The end of its back-off; absent: it can be asked.
    pub(crate) fn down_until(&self) -> Option<Micros> {
        match &self.life {
            Life::Up(_) | Life::Lent => None,
            Life::Down(pause) => Some(pause.until),
        }
    }

    /// True while it is too early to ask it: while it [pauses](Self::pauses), and while its next instance
    /// is told `rows` elsewhere.
    pub(crate) fn rests(&mut self, now: Micros, rows: &dyn Rows) -> bool {
        self.pauses(now) || self.begin_telling(now, rows)
    }

    /// True during its back-off, while a thread makes its next instance or tells that what there is, and
    /// while another runner has its instance.
    pub(crate) fn pauses(&mut self, now: Micros) -> bool {
        self.begin_restart();
        let Life::Down(pause) = &mut self.life else {
            return matches!(self.life, Life::Lent);
        };
        if now < pause.until {
            return true;
        }
        pause.join();
        match &pause.coming {
            Some(Coming::Underway(..)) => true,
            Some(Coming::There(_) | Coming::Briefed(_)) => false,
            // A thread could not be had.
            None => self.restarts == Restarts::Elsewhere,
        }
    }

    /// Returns whether it has an instance. After a fault or a strike it has none until it is asked again,
    /// nor while a shadow has it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.life, Life::Up(_))
    }

    /// Returns whether a thread makes its next instance, or tells that what there is.
    #[must_use]
    pub fn is_underway(&self) -> bool {
        let Life::Down(pause) = &self.life else {
            return false;
        };
        let is_underway = |it: &Coming| matches!(it, Coming::Underway(..)) && !it.is_finished();
        pause.coming.as_ref().is_some_and(is_underway)
    }

    /// Has a thread make the next instance, where that is wanted and none does so yet.
    pub(super) fn begin_restart(&mut self) {
        let Life::Down(pause) = &mut self.life else {
            return;
        };
        if self.restarts == Restarts::AtTheQuestion || pause.coming.is_some() {
            return;
        }
        let (source, state) = (self.source.clone(), self.snapshots.last.clone());
        // Without a thread it is tried again at the next question.
        pause.coming = underway(move |_| source.warm(state.as_deref()).map(Informed::untold));
    }

    /// Has a thread tell the next instance what there is now, if nobody has and that is more than one
    /// call tells. Returns whether the question is too early then.
    fn begin_telling(&mut self, now: Micros, rows: &dyn Rows) -> bool {
        let Life::Down(pause) = &mut self.life else {
            return false;
        };
        let untold = pause.coming.take_if(|coming| coming.is_untold());
        let Some(Coming::There(Ok(mut informed))) = untold else {
            return false;
        };
        let (needs, limits) = (self.description.needs, *self.source.limits());
        let briefing = Briefing::of_rows(rows, now, needs);
        if briefing.changes.len() <= limits.rows_at_once() {
            pause.coming = Some(Coming::There(Ok(informed)));
            return false;
        }
        let told = briefing.told().unwrap_or_default();
        pause.coming = underway(move |token| {
            informed.tell(briefing, &limits, || token.strong_count() > 0);
            Ok(informed)
        });
        // Without a thread another instance is made at the next question.
        if pause.coming.is_some() {
            self.output.briefed = Some(BriefedElsewhere {
                generation: self.counters.generation.saturating_add(1),
                state: self.snapshots.last.clone(),
                needs,
                told,
            });
        }
        true
    }

    /// Has the next instance told `briefing` as soon as it is made, as one was that a thread made in
    /// the run that is repeated. Call it where there is no instance, after [`Self::restart`].
    pub fn brief_next(&mut self, briefing: Briefing) {
        if let Life::Down(pause) = &mut self.life {
            pause.coming = Some(Coming::Briefed(Box::new(briefing)));
        }
    }

    /// Takes the fresh instance, or makes one, where there is none. Returns the fuel of a row that it
    /// was told before the question.
    pub(super) fn wake(&mut self) -> Result<u64, Fault> {
        let coming = match &mut self.life {
            Life::Up(_) => return Ok(0),
            Life::Down(pause) => pause.coming.take(),
            Life::Lent => None,
        };
        let Informed { fresh, feed, ended } = *self.come(coming)?;
        self.counters.generation = self.counters.generation.saturating_add(1);
        let offered = self.snapshots.last.clone();
        if matches!(fresh.restored, Restored::Refused(_) | Restored::Faulted(_)) {
            self.snapshots.last = None;
        }
        self.life = Life::Up(fresh.instance);
        let was_briefed = feed.is_some();
        self.counters.briefed += u64::from(was_briefed);
        match feed {
            Some(feed) => self.feed = feed,
            None => self.feed.reset(),
        }
        self.output.woken = Some(Woken {
            generation: self.counters.generation,
            state: offered,
            restored: fresh.restored,
            was_briefed,
        });
        // It woke, and may have ended on what it was told.
        ended
    }

    /// The next instance, once it has come.
    fn come(&self, coming: Option<Coming>) -> Come {
        let warm = || self.source.warm(self.snapshots.last.as_deref());
        match coming {
            None => Ok(Informed::untold(warm()?)),
            Some(Coming::Underway(thread, _token)) => joined(thread),
            Some(Coming::There(come)) => come,
            Some(Coming::Briefed(briefing)) => {
                let mut informed = Informed::untold(warm()?);
                informed.tell(*briefing, self.source.limits(), || true);
                Ok(informed)
            }
        }
    }

    /// Checks that a question need not wait long for a fresh instance which took `row_fuel` for each
    /// row that it was told elsewhere, and has to be told `rows` more: while a slow one was told, all
    /// may have changed again.
    pub(super) fn check_pace(&self, row_fuel: u64, rows: usize) -> Result<(), Fault> {
        let limits = self.source.limits();
        let fuel = row_fuel.saturating_mul(u64::try_from(rows).unwrap_or(u64::MAX));
        let is_slow = rows > limits.rows_at_once() && fuel > limits.call_fuel_max;
        // A replay has this fault from its journal: it comes from the clock.
        if !is_slow || self.restarts == Restarts::AtTheQuestion {
            return Ok(());
        }
        let what = format!(
            "took too long to be told everything: {rows} rows changed meanwhile, and each takes it \
             {row_fuel} units of fuel"
        );
        Err(Fault::new(FaultKind::Deadline, what))
    }

    /// Books a fault and drops the instance: what it knows is not trusted any more.
    pub(crate) fn back_off(&mut self, now: Micros) {
        while let Some(first) = self.faults.front()
            && now.since(*first).0 >= self.patience.window_micros
        {
            self.faults.pop_front();
        }
        self.faults.push_back(now);
        let back_off = Micros(self.patience.back_off(self.faults.len()));
        self.drop_instance(now.after(back_off));
    }

    /// Lets a fresh instance take the place of this one, offered `state`.
    pub fn restart(&mut self, state: Option<Vec<u8>>, now: Micros) {
        self.snapshots.last = state;
        match &self.life {
            Life::Up(_) => self.drop_instance(now),
            Life::Down(_) | Life::Lent => self.remake(),
        }
    }

    /// Begins anew to make the next instance, where there is none: what it was offered or told is not
    /// what it has to know now.
    pub(crate) fn remake(&mut self) {
        if let Some(until) = self.down_until() {
            self.drop_instance(until);
        }
    }

    fn drop_instance(&mut self, until: Micros) {
        let dropped = match mem::replace(&mut self.life, Life::down(until)) {
            Life::Up(instance) => Some(instance),
            Life::Down(pause) => pause.into_instance(),
            Life::Lent => None,
        };
        self.output.retired.extend(dropped);
        self.begin_restart();
    }
}

/// Has a thread do `work` on the next instance, with a token that lasts as long as somebody wants that.
/// Absent: a thread could not be had.
fn underway(work: impl FnOnce(&Weak<()>) -> Come + Send + 'static) -> Option<Coming> {
    let token = Arc::new(());
    let weak = Arc::downgrade(&token);
    let thread = thread::Builder::new().name("policy-restart".to_owned());
    let thread = thread.spawn(move || work(&weak)).ok()?;
    Some(Coming::Underway(thread, token))
}

/// The instance that a thread has made, or the fault that it ended with.
fn joined(thread: JoinHandle<Come>) -> Come {
    thread.join().unwrap_or_else(|_panic| {
        Err(Fault::new(
            FaultKind::Start,
            "has no instance: the host panicked while it made one",
        ))
    })
}
