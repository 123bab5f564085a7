//! Sessions of agents and people: each turn's prompt is all that was said before and something new,
//! and comes a while after the answer before has ended.
//!
//! The defaults are those of AIPerf's synthetic sessions "inference-day": a prompt that all sessions
//! share, a part that groups share, and turns that follow each other quickly (agents) or slowly
//! (people).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use pointsman_core::Micros;

use super::open::Lengths;
use super::{Arrival, PromptText, Roll, Workload};
use crate::draws::{Draws, mix, place_of, zipf};
use crate::numbers::{from_secs, narrow_len};

/// The sessions to make.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentsPlan {
    /// The seed of all draws.
    pub seed: u64,
    /// Sessions in all.
    pub sessions: u32,
    /// Sessions that begin in a second.
    pub rate: f64,
    /// The mean number of turns.
    pub turns: f64,
    /// New tokens in a turn's prompt.
    pub new_tokens: Lengths,
    /// Tokens of an answer.
    pub output: Lengths,
    /// Tokens that all prompts begin with.
    pub shared_tokens: u32,
    /// Groups of sessions, with shares by Zipf's law.
    pub groups: u32,
    /// The exponent of the groups' shares.
    pub groups_zipf: f64,
    /// Tokens that the prompts of a group go on with.
    pub group_tokens: u32,
    /// The part of turns that follow quickly.
    pub quick_share: f64,
    /// Mean and median of the time before a quick turn, in seconds.
    pub quick_secs: (f64, f64),
    /// Mean and median of the time before another turn, in seconds.
    pub slow_secs: (f64, f64),
    /// The longest prompt; a session that reaches it ends.
    pub context_max: u32,
    /// Tenants, of equal shares.
    pub tenants: u32,
}

impl Default for AgentsPlan {
    fn default() -> Self {
        Self {
            seed: 0,
            sessions: 1000,
            rate: 1.0,
            turns: 8.0,
            new_tokens: Lengths {
                mean: 6000.0,
                median: 4000.0,
                max: 32_000,
            },
            output: Lengths {
                mean: 1000.0,
                median: 800.0,
                max: 8000,
            },
            shared_tokens: 32_000,
            groups: 100,
            groups_zipf: 0.6,
            group_tokens: 10_000,
            quick_share: 0.7,
            quick_secs: (5.0, 2.0),
            slow_secs: (30.0, 15.0),
            context_max: 128_000,
            tenants: 1,
        }
    }
}

/// Tokens of a piece of a prompt.
const PIECE: u32 = 64;

/// A session under way.
#[derive(Debug)]
struct Session {
    draws: Draws,
    tenant: u32,
    turns_left: u32,
    /// The pieces of all that was said.
    pieces: Vec<u64>,
    tokens: u32,
    /// Tokens of the answer that is being given.
    answering: u32,
}

/// A workload of sessions.
#[derive(Debug)]
pub struct Agents {
    plan: AgentsPlan,
    roll: Roll,
    group_shares: Vec<f64>,
    sessions: BTreeMap<u64, Session>,
    /// The next turn of each session that waits for none.
    due: BinaryHeap<Reverse<(Micros, u64)>>,
}

impl Agents {
    /// Makes a workload by a plan.
    #[must_use]
    pub fn new(plan: AgentsPlan) -> Self {
        let roll = Roll::of_tenants((0..plan.tenants.max(1)).map(|n| format!("tenant-{n}")));
        let mut agents = Self {
            roll,
            group_shares: zipf(plan.groups, plan.groups_zipf),
            sessions: BTreeMap::new(),
            due: BinaryHeap::new(),
            plan,
        };
        let mut draws = Draws::new(agents.plan.seed);
        let mut at = 0.0;
        for key in 0..u64::from(agents.plan.sessions) {
            at += draws.exponential(1.0 / agents.plan.rate.max(1e-9));
            let session = agents.begin(key);
            agents.sessions.insert(key, session);
            agents.due.push(Reverse((from_secs(at), key)));
        }
        agents
    }

    fn begin(&self, key: u64) -> Session {
        let plan = &self.plan;
        let mut draws = Draws::part(plan.seed, key + 1);
        let group = place_of(&self.group_shares, draws.unit()) as u64;
        let mut session = Session {
            tenant: crate::numbers::narrow(draws.below(u64::from(plan.tenants.max(1)))),
            turns_left: 1,
            pieces: Vec::new(),
            tokens: 0,
            answering: 0,
            draws,
        };
        // The number of turns is geometric: each may be the last.
        let last = 1.0 / plan.turns.max(1.0);
        while !session.draws.chance(last) {
            session.turns_left += 1;
        }
        session.say(0, plan.shared_tokens);
        session.say(mix(group + 1), plan.group_tokens);
        session
    }
}

impl Session {
    /// Adds tokens to all that was said. The pieces stand for all before them, so the names of the
    /// speech suffice to tell them apart.
    fn say(&mut self, speech: u64, tokens: u32) {
        let before = self.tokens;
        self.tokens = self.tokens.saturating_add(tokens);
        // A piece that two speeches share is named by the one that ends it.
        for n in before / PIECE..self.tokens / PIECE {
            self.pieces.push(mix(mix(speech) ^ u64::from(n)));
        }
    }

    fn prompt(&self) -> PromptText {
        PromptText::of_pieces(self.tokens, PIECE, self.pieces.iter().copied())
    }
}

impl Workload for Agents {
    fn roll(&self) -> &Roll {
        &self.roll
    }

    fn next_at(&self) -> Option<Micros> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn pop(&mut self) -> Option<Arrival> {
        let Reverse((at, key)) = self.due.pop()?;
        let session = self.sessions.get_mut(&key)?;
        let new = self.plan.new_tokens.draw(&mut session.draws);
        session.say(mix(key).wrapping_add(1), new);
        session.answering = self.plan.output.draw(&mut session.draws);
        session.turns_left -= 1;
        Some(Arrival {
            tenant: session.tenant,
            session: Some(mix(key)),
            ticket: Some(key),
            ..Arrival::new(at, session.prompt(), session.answering)
        })
    }

    fn ended(&mut self, ticket: u64, at: Micros) {
        let Some(session) = self.sessions.get_mut(&ticket) else {
            return;
        };
        let answered = session.answering;
        session.say(mix(ticket).wrapping_add(2), answered);
        if session.turns_left == 0 || session.tokens >= self.plan.context_max {
            self.sessions.remove(&ticket);
            return;
        }
        let is_quick = session.draws.chance(self.plan.quick_share);
        let (mean, median) = if is_quick {
            self.plan.quick_secs
        } else {
            self.plan.slow_secs
        };
        let pause = from_secs(session.draws.lognormal(mean, median));
        self.due.push(Reverse((at.after(pause), ticket)));
    }

    fn total(&self) -> Option<u64> {
        // How many turns fit in the context is not known before.
        None
    }
}

impl Agents {
    /// Sessions that go on.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        narrow_len(self.sessions.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> AgentsPlan {
        AgentsPlan {
            seed: 2,
            sessions: 200,
            rate: 10.0,
            turns: 4.0,
            shared_tokens: 640,
            group_tokens: 320,
            groups: 4,
            ..AgentsPlan::default()
        }
    }

    /// Runs the sessions with answers that take a second each.
    fn run(plan: AgentsPlan) -> Vec<Arrival> {
        let mut agents = Agents::new(plan);
        let mut arrivals = Vec::new();
        while let Some(arrival) = agents.pop() {
            agents.ended(arrival.ticket.unwrap(), arrival.at.after(Micros(1_000_000)));
            arrivals.push(arrival);
        }
        assert_eq!(agents.sessions(), 0);
        arrivals
    }

    #[test]
    fn a_turn_comes_after_the_answer_and_begins_with_all_that_was_said() {
        let arrivals = run(plan());
        let n = arrivals.len();
        assert!(
            (640..960).contains(&n),
            "{n} turns of 200 sessions of about 4"
        );
        let mut last: BTreeMap<u64, &Arrival> = BTreeMap::new();
        for arrival in &arrivals {
            let key = arrival.session.unwrap();
            if let Some(before) = last.insert(key, arrival) {
                assert!(arrival.at > before.at.after(Micros(1_000_000)));
                let (old, new) = (before.prompt.blocks(64), arrival.prompt.blocks(64));
                assert!(new.hashes.starts_with(&old.hashes));
                assert!(arrival.prompt.tokens > before.prompt.tokens + before.output_tokens);
            }
        }
    }

    #[test]
    fn all_sessions_share_a_beginning_and_groups_share_more() {
        let arrivals = run(plan());
        let parts = |n: usize| {
            let blocks = arrivals.iter().map(|it| it.prompt.blocks(64).hashes[n]);
            blocks.collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!(
            (parts(9), parts(14)),
            (1, 4),
            "640 and 960 tokens are 10 and 15 blocks"
        );
    }

    #[test]
    fn a_session_ends_where_its_context_does() {
        let arrivals = run(AgentsPlan {
            turns: 1e6,
            sessions: 3,
            context_max: 20_000,
            ..plan()
        });
        assert!(arrivals.iter().all(|it| it.prompt.tokens < 20_000 + 32_000));
    }
}
