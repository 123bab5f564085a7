//! The executors that served sessions last.
//!
//! A session is remembered from the end of an answer until it has been idle for as long as the
//! operator says. The machine is told the executor with the session's next request; a policy decides
//! what that is worth.
//!
//! # Bounds
//! At most [`Sessions::new`]'s number of sessions are remembered: the one idle for longest makes room.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use pointsman_interface::{ExecutorId, Micros, ModelId, SessionKey};

/// The sessions that are not forgotten.
#[derive(Debug)]
pub struct Sessions {
    // Immutable.
    idle_max: Micros,
    sessions_max: usize,
    // Owned state: the same sessions in both.
    known: BTreeMap<SessionKey, Session>,
    by_use: BTreeSet<(Micros, SessionKey)>,
    /// The number of sessions of each model; absent ones have none.
    by_model: BTreeMap<Option<ModelId>, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    executor: ExecutorId,
    /// The model that the session's last request asked for; absent: any.
    model: Option<ModelId>,
    used: Micros,
}

impl Sessions {
    /// Remembers at most `sessions_max` sessions, each until it has been idle for `idle_max`.
    pub fn new(sessions_max: u32, idle_max: Micros) -> Self {
        Self {
            idle_max,
            sessions_max: usize::try_from(sessions_max).unwrap_or(usize::MAX),
            known: BTreeMap::new(),
            by_use: BTreeSet::new(),
            by_model: BTreeMap::new(),
        }
    }

    /// The executor that served a session last; absent: the session is not known.
    pub fn executor(&self, now: Micros, session: SessionKey) -> Option<ExecutorId> {
        let found = self.known.get(&session)?;
        (found.used.after(self.idle_max) > now).then_some(found.executor)
    }

    /// Notes that an executor has served a request of a session to its end, with the model that it asked
    /// for.
    pub fn served(
        &mut self,
        now: Micros,
        session: SessionKey,
        (executor, model): (ExecutorId, Option<ModelId>),
    ) {
        self.forget_idle(now);
        self.forget(session);
        if self.known.len() >= self.sessions_max
            && let Some((_, oldest)) = self.by_use.first().copied()
        {
            self.forget(oldest);
        }
        if self.sessions_max == 0 {
            return;
        }
        let used = now;
        let found = Session {
            executor,
            model,
            used,
        };
        self.known.insert(session, found);
        self.by_use.insert((used, session));
        *self.by_model.entry(model).or_default() += 1;
    }

    /// The number of sessions that are not forgotten at `now`.
    pub fn tracked(&mut self, now: Micros) -> usize {
        self.forget_idle(now);
        self.known.len()
    }

    /// The number of sessions of a model, those that have been idle for too long since the last look
    /// included.
    pub fn of_model(&self, model: ModelId) -> usize {
        self.by_model.get(&Some(model)).copied().unwrap_or_default()
    }

    /// Forgets the sessions of an executor that is gone.
    pub fn detached(&mut self, executor: ExecutorId) {
        let known = self.known.iter();
        let there = known.filter(|(_, session)| session.executor == executor);
        for session in there.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.forget(session);
        }
    }

    fn forget_idle(&mut self, now: Micros) {
        while let Some((used, session)) = self.by_use.first().copied()
            && used.after(self.idle_max) <= now
        {
            self.forget(session);
        }
    }

    fn forget(&mut self, session: SessionKey) {
        if let Some(found) = self.known.remove(&session) {
            self.by_use.remove(&(found.used, session));
            if let Entry::Occupied(mut count) = self.by_model.entry(found.model) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Option<ModelId> = Some(ModelId(3));
    const LEFT: ExecutorId = ExecutorId(0);
    const RIGHT: ExecutorId = ExecutorId(1);
    const A: SessionKey = SessionKey(1);
    const B: SessionKey = SessionKey(2);
    const C: SessionKey = SessionKey(3);

    fn sessions() -> Sessions {
        let mut sessions = Sessions::new(2, Micros(10));
        sessions.served(Micros(0), A, (LEFT, MODEL));
        sessions.served(Micros(5), B, (RIGHT, MODEL));
        sessions
    }

    #[test]
    fn a_session_is_known_until_it_was_idle_for_long() {
        let mut sessions = sessions();
        assert_eq!(sessions.executor(Micros(9), A), Some(LEFT));
        assert_eq!(sessions.executor(Micros(10), A), None);
        sessions.served(Micros(9), A, (RIGHT, MODEL));
        assert_eq!(sessions.executor(Micros(18), A), Some(RIGHT));
        assert_eq!(sessions.executor(Micros(18), B), None);
    }

    #[test]
    fn the_session_idle_for_longest_makes_room() {
        let mut sessions = sessions();
        sessions.served(Micros(6), A, (LEFT, MODEL));
        sessions.served(Micros(7), C, (LEFT, MODEL));
        let known = [A, B, C].map(|key| sessions.executor(Micros(8), key));
        assert_eq!(known, [Some(LEFT), None, Some(LEFT)]);
        assert_eq!(sessions.known.len(), sessions.by_use.len());
        let mut none = Sessions::new(0, Micros(10));
        none.served(Micros(0), A, (LEFT, MODEL));
        assert_eq!(none.executor(Micros(0), A), None);
    }

    #[test]
    fn an_executor_that_is_gone_is_nobodys() {
        let mut sessions = sessions();
        sessions.detached(LEFT);
        let known = [A, B].map(|key| sessions.executor(Micros(6), key));
        assert_eq!(known, [None, Some(RIGHT)]);
        assert_eq!(sessions.by_use.len(), 1);
    }

    #[test]
    fn idle_sessions_take_no_memory_for_ever() {
        let mut sessions = sessions();
        sessions.served(Micros(100), C, (LEFT, MODEL));
        assert_eq!((sessions.known.len(), sessions.by_use.len()), (1, 1));
        assert_eq!(sessions.of_model(ModelId(3)), 1);
        assert_eq!(sessions.tracked(Micros(110)), 0);
        assert!(sessions.by_model.is_empty());
    }
}
