//! The explorer: breadth first through all states of a small world, so that the first way to a wrong state is
//! a shortest one.
//!
//! Of a state that was seen, its digest is kept, and the step that led there. The world itself is made again
//! when its turn comes, from the one before it: neighbours in the order of the search share most of their way.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::answers::{Letters, Script};
use crate::event::Event;
use crate::world::World;

/// An event, with the answers that policies gave in it.
#[derive(Clone, Copy)]
struct Step {
    event: Event,
    letters: Letters,
}

/// A state that was seen.
struct Seen {
    /// Faults on the way there.
    faults: usize,
    /// The place of the state before it.
    before: u32,
    step: Step,
}

/// The acquaintance of the search with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// The state is new.
    First,
    /// The state was reached before by another way.
    Again,
}

/// Something that must hold in every state, whenever it is met.
pub(crate) type Claim<'a> = &'a dyn Fn(&World, Met) -> Result<(), String>;

/// The result of a search.
pub(crate) struct Explored {
    /// Distinct states that were visited and checked.
    pub(crate) states: usize,
    /// Steps that were made.
    pub(crate) steps: usize,
    /// The number of states at each distance from the beginning.
    pub(crate) levels: Vec<usize>,
    /// True if no state is left that was not visited.
    pub(crate) is_whole: bool,
    /// A shortest way to a state that is wrong.
    pub(crate) wrong: Option<Way>,
}

/// A way to a wrong state, in words.
#[derive(Debug)]
pub(crate) struct Way {
    /// The events, each with what was answered in it.
    pub(crate) steps: Vec<String>,
    /// The matter with the state at its end.
    pub(crate) wrong: String,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nThe shortest way there:", self.wrong)?;
        for (n, step) in (1..).zip(&self.steps) {
            writeln!(f, "{n:>3}. {step}")?;
        }
        Ok(())
    }
}

/// The states seen so far, and the place of the search among them.
struct Search<'a> {
    claim: Claim<'a>,
    depths: &'a [usize],
    digests: BTreeSet<u64>,
    seen: Vec<Seen>,
    /// The worlds from the beginning to the state whose turn it is, each with its place in `seen`.
    way: Vec<(u32, World)>,
    steps: usize,
}

/// Visits every state that is at most so many steps from `beginning`, by the number of faults on the way there,
/// and checks each, the `claim` included.
pub(crate) fn explore(beginning: World, depths: &[usize], claim: Claim<'_>) -> Explored {
    let mut search = Search {
        claim,
        depths,
        digests: BTreeSet::from([beginning.digest()]),
        seen: vec![Seen {
            faults: 0,
            before: 0,
            step: Step {
                event: Event::Round,
                letters: Letters::default(),
            },
        }],
        way: vec![(0, beginning)],
        steps: 0,
    };
    let mut levels = vec![1];
    let mut level = 0..1;
    let mut wrong = None;
    while !level.is_empty() && wrong.is_none() {
        let end = level.end;
        let depth = levels.len() - 1;
        wrong = level.clone().find_map(|place| search.visit(place, depth));
        level = end..search.seen.len();
        levels.push(level.len());
    }
    Explored {
        states: search.seen.len(),
        steps: search.steps,
        is_whole: level.is_empty() && wrong.is_none(),
        levels,
        wrong,
    }
}

impl Search<'_> {
    /// Makes every step from a state. Returns the way to a wrong one, if there is one.
    fn visit(&mut self, place: usize, depth: usize) -> Option<Way> {
        if depth >= self.depths[self.seen[place].faults] {
            return None;
        }
        let place = u32::try_from(place).expect("a place has 32 bits");
        self.go_to(place);
        let (_, world) = self.way.last().expect("the search is somewhere");
        let world = world.clone();
        for event in world.events() {
            let mut letters = Some(Letters::default());
            while let Some(given) = letters {
                let mut script = Script::new(given);
                let mut next = world.clone();
                let checked = catch_unwind(AssertUnwindSafe(|| {
                    next.happen(event, &mut script);
                    self.note(&next)
                }));
                self.steps += 1;
                let letters_used = script.letters();
                letters = script.next();
                let seen = Seen {
                    faults: next.faults(),
                    before: place,
                    step: Step {
                        event,
                        letters: letters_used,
                    },
                };
                match checked.unwrap_or_else(|_| Err("the machine panicked".into())) {
                    Ok(Met::Again) => {}
                    Ok(Met::First) => self.seen.push(seen),
                    Err(wrong) => return Some(self.describe(&seen, wrong)),
                }
            }
        }
        None
    }

    /// Checks a state.
    fn note(&mut self, world: &World) -> Result<Met, String> {
        let met = if self.digests.insert(world.digest()) {
            world.check()?;
            Met::First
        } else {
            Met::Again
        };
        (self.claim)(world, met)?;
        Ok(met)
    }

    /// Brings the way to a state that was seen.
    fn go_to(&mut self, place: u32) {
        let mut ahead = Vec::new();
        let mut at = place;
        // Places count up along a way.
        while self.way.last().is_some_and(|(last, _)| *last != at) {
            if self.way.last().is_some_and(|(last, _)| *last > at) {
                self.way.pop();
            } else {
                ahead.push(at);
                at = self.seen[at as usize].before;
            }
        }
        for at in ahead.into_iter().rev() {
            let (_, world) = self.way.last().expect("every way has the beginning");
            let mut world = world.clone();
            let Step { event, letters } = self.seen[at as usize].step;
            world.happen(event, &mut Script::new(letters));
            self.way.push((at, world));
        }
    }

    /// The way to a wrong state, which is the last one that was seen.
    fn describe(&mut self, last: &Seen, wrong: String) -> Way {
        let mut steps = vec![last.step];
        let mut at = last.before;
        while at != 0 {
            let seen = &self.seen[at as usize];
            steps.push(seen.step);
            at = seen.before;
        }
        self.go_to(0);
        let mut world = self.way[0].1.clone();
        let steps = steps.into_iter().rev().map(|Step { event, letters }| {
            let mut script = Script::in_words(letters);
            // The last step may be one that panics.
            let happened = catch_unwind(AssertUnwindSafe(|| world.happen(event, &mut script)));
            let mut words = vec![event.to_string()];
            if let Event::Arrives(kind) = event {
                let id = world.clients[usize::from(kind)].id;
                words.extend(id.map(|id| format!("as request {id}")));
            }
            words.extend(script.said());
            words.extend(happened.is_err().then(|| "panic".to_owned()));
            words.join(", ")
        });
        Way {
            steps: steps.collect(),
            wrong,
        }
    }
}

/// The digests of all states that are a step away, in the order of the steps.
pub(crate) fn successors(world: &World) -> Vec<(Event, u64)> {
    let mut digests = Vec::new();
    for event in world.events() {
        let mut letters = Some(Letters::default());
        while let Some(given) = letters {
            let mut script = Script::new(given);
            let mut next = world.clone();
            next.happen(event, &mut script);
            digests.push((event, next.digest()));
            letters = script.next();
        }
    }
    digests
}
