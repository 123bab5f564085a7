//! Every answer from a small alphabet: a script says which letter each question of an event gets.
//!
//! | question | good letters | bad ones |
//! |---|---|---|
//! | admission | let in, or park where the queue is full | too few verdicts |
//! | order | as they arrived, reversed | strangers and doubles |
//! | routing, for each request | either executor, whatever room it has; hold; hold on purpose | an executor that does not exist |
//! | preemption | nobody, any other request, from any executor, its KV dropped or moved | the needy one |
//! | the first of an event | | a fault, in this and all others of the event |
//!
//! In one event there is one bad answer at most; the questions after it get the first letter. Who waits by
//! decision is the same in any order, so requests in reversed order are placed.

use pointsman_core::{
    Answer, Asked, EvictHow, Eviction, ExecutorId, FaultKind, Micros, Policies, PolicyFault,
    Question, Reply, RequestId, Shortage, Victim, admission, routing,
};

use crate::world::{EXECUTORS, REQUESTS};

/// The letters that the questions of one event got, in their order. At most sixteen, of at most sixteen each.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Letters {
    packed: u64,
    n: u8,
}

impl Letters {
    fn get(self, idx: usize) -> Option<u8> {
        let letter = (self.packed >> (4 * idx)) & 15;
        (idx < usize::from(self.n)).then_some(u8::try_from(letter).expect("four bits"))
    }

    fn push(&mut self, letter: u8) {
        assert!(letter < 16 && self.n < 16, "more answers than a step holds");
        self.packed |= u64::from(letter) << (4 * self.n);
        self.n += 1;
    }
}

/// A policy that answers as a script says, and with the first letter where the script has ended.
pub(crate) struct Script {
    given: Letters,
    /// The letter of each question, with the number of letters that it could have had.
    picks: Vec<(u8, u8)>,
    /// The answers in words, if anybody wants them.
    words: Option<Vec<String>>,
    mood: Mood,
}

/// The effect of earlier answers of an event on later ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// All had the first letter.
    Fresh,
    /// All were good.
    Good,
    /// The requests were put in reversed order.
    Reversed,
    /// One was bad.
    Spoilt,
    /// The policy has failed.
    Failed,
}

/// A letter as the question has it that it answers.
enum Letter {
    Good(usize),
    Bad,
    Fault,
}

impl Script {
    /// A policy that answers with these letters.
    pub(crate) fn new(given: Letters) -> Self {
        Self {
            given,
            picks: Vec::new(),
            words: None,
            mood: Mood::Fresh,
        }
    }

    /// A policy that answers with these letters and says what they mean.
    pub(crate) fn in_words(given: Letters) -> Self {
        Self {
            words: Some(Vec::new()),
            ..Self::new(given)
        }
    }

    /// The letters that were used.
    pub(crate) fn letters(&self) -> Letters {
        let mut letters = Letters::default();
        for (letter, _) in &self.picks {
            letters.push(*letter);
        }
        letters
    }

    /// The letters of the next script: those up to the last question that has a letter left, with its next
    /// one. Absent: every script was had.
    pub(crate) fn next(mut self) -> Option<Letters> {
        while let Some((letter, letters)) = self.picks.pop() {
            if letter + 1 < letters {
                let mut next = self.letters();
                next.push(letter + 1);
                return Some(next);
            }
        }
        None
    }

    /// The answers in words, so far.
    pub(crate) fn said(self) -> Vec<String> {
        self.words.unwrap_or_default()
    }

    /// The letter of the next question, which has this many good ones.
    fn pick(&mut self, good: usize) -> Letter {
        let good = u8::try_from(good).expect("an alphabet is small");
        let letters = match self.mood {
            Mood::Failed => return Letter::Fault,
            Mood::Spoilt => 1,
            Mood::Good | Mood::Reversed => good,
            Mood::Fresh if self.picks.is_empty() => good + 2,
            Mood::Fresh => good + 1,
        };
        let letter = self.given.get(self.picks.len()).unwrap_or(0);
        self.picks.push((letter, letters));
        if letter < good {
            if self.mood == Mood::Fresh && letter > 0 {
                self.mood = Mood::Good;
            }
            Letter::Good(letter.into())
        } else if letter == good {
            self.mood = Mood::Spoilt;
            Letter::Bad
        } else {
            self.mood = Mood::Failed;
            self.say(|| "the policy faults".into());
            Letter::Fault
        }
    }

    fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(said) = &mut self.words {
            said.push(words());
        }
    }

    fn admission(&mut self, arrivals: usize, room: u32) -> Answer<Reply> {
        let has_room = room as usize >= arrivals;
        let choice = match self.pick(if has_room { 1 } else { 2 }) {
            Letter::Good(0) => admission::Choice::Admit,
            Letter::Good(_) => admission::Choice::Park,
            Letter::Bad => {
                self.say(|| "admission says too little".into());
                return Answer::by(0, Reply::Admission(Vec::new()));
            }
            Letter::Fault => return fault(),
        };
        self.say(|| format!("admission: {choice:?}"));
        let verdict = admission::Verdict { choice, reason: 0 };
        Answer::by(0, Reply::Admission(vec![verdict; arrivals]))
    }

    fn order(&mut self, requests: &[RequestId]) -> Answer<Reply> {
        let mut order = requests.to_vec();
        if order.len() < 2 {
            return Answer::by(0, Reply::Priority(order));
        }
        match self.pick(2) {
            Letter::Good(0) => {}
            Letter::Good(_) => {
                self.say(|| "in reversed order".into());
                self.mood = Mood::Reversed;
                order.reverse();
            }
            Letter::Bad => {
                self.say(|| "in an order of strangers".into());
                order.extend([RequestId(99), requests[0]]);
            }
            Letter::Fault => return fault(),
        }
        Answer::by(0, Reply::Priority(order))
    }

    fn routing(&mut self, asked: &Asked<'_>, requests: &[RequestId]) -> Answer<Reply> {
        let place = |executor| routing::Choice::Place(vec![ExecutorId(executor)]);
        let mut verdicts = Vec::with_capacity(requests.len());
        for id in requests {
            let good = if self.mood == Mood::Reversed { 2 } else { 3 };
            let (choice, words) = match self.pick(good) {
                Letter::Good(0) => (place(0), "to executor 0"),
                Letter::Good(1) => (place(1), "to executor 1"),
                Letter::Good(_) if id.0 % 2 == 0 => (routing::Choice::Hold(None), "is held"),
                Letter::Good(_) => {
                    let until = asked.at.now.after(Micros(2_000_000));
                    (routing::Choice::Hold(Some(until)), "is held for 2s")
                }
                Letter::Bad => (place(99), "to an executor that does not exist"),
                Letter::Fault => return fault(),
            };
            self.say(|| format!("request {id} {words}"));
            verdicts.push(routing::Verdict { choice, reason: 0 });
        }
        Answer::by(0, Reply::Routing(verdicts))
    }

    fn preemption(&mut self, shortage: &Shortage) -> Answer<Reply> {
        let evictions = evictions(shortage);
        let eviction = match self.pick(evictions.len()) {
            Letter::Good(letter) => evictions[letter].clone(),
            Letter::Bad => Some(eviction(shortage.needy, 0, EvictHow::Recompute)),
            Letter::Fault => return fault(),
        };
        self.say(|| match &eviction {
            None => "nobody gives way".into(),
            Some(Eviction {
                victims, executor, ..
            }) => {
                let Victim { request, how } = victims[0];
                format!("request {request} gives way on executor {executor} ({how:?})")
            }
        });
        Answer::by(0, Reply::Preemption(eviction))
    }
}

/// The good answers to a question for victims.
fn evictions(shortage: &Shortage) -> Vec<Option<Eviction>> {
    let mut evictions = vec![None];
    for executor in 0..u32::from(EXECUTORS) {
        if shortage.executor.is_some_and(|on| on.0 != executor) {
            continue;
        }
        for id in 0..u64::from(REQUESTS) {
            if id == shortage.needy.0 {
                continue;
            }
            for how in [EvictHow::Recompute, EvictHow::Swap] {
                evictions.push(Some(eviction(RequestId(id), executor, how)));
            }
        }
    }
    evictions
}

fn eviction(request: RequestId, executor: u32, how: EvictHow) -> Eviction {
    Eviction {
        executor: ExecutorId(executor),
        victims: vec![Victim { request, how }],
        reason: 0,
    }
}

fn fault() -> Answer<Reply> {
    Answer {
        faults: vec![PolicyFault {
            policy: 0,
            kind: FaultKind::Trap,
            detail: String::new(),
        }],
        ..Answer::unbound()
    }
}

impl Policies for Script {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let requests: Vec<RequestId> = asked.question.requests().collect();
        if let Question::Admission { room, .. } = asked.question {
            self.admission(requests.len(), room)
        } else if let Question::Priority(_) = asked.question {
            self.order(&requests)
        } else if let Question::Routing(_) = asked.question {
            self.routing(asked, &requests)
        } else if let Question::Preemption(shortage) = &asked.question {
            self.preemption(shortage)
        } else {
            Answer::unbound()
        }
    }
}
