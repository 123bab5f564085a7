//! The explorer: breadth first through all states of a small world, so that the first way to a wrong state is
//! a shortest one.
//!
//! Of a state that was seen, its digest is kept, and the step that led there. The world itself is made again
//! when its turn comes, from the one before it: neighbours in the order of the search share most of their way.
//!
//! Two threads go on from the states at one distance, a few neighbours at a time. What they find is joined in the order of
//! the states, so that the result is that of one thread.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use crate::answers::{Letters, Script};
use crate::event::Event;
use crate::world::World;

/// Threads that search.
const THREADS: usize = 2;
/// Neighbours that a thread goes on from at a time.
const NEIGHBOURS: usize = 64;

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
    /// The state is new, at least among those nearer to the beginning and those that this thread has just found.
    First,
    /// The state was reached before by another way.
    Again,
}

/// Something that must hold in every state, whenever it is met.
pub(crate) type Claim<'a> = &'a (dyn Fn(&World, Met) -> Result<(), String> + Sync);

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

/// The states seen so far.
struct Search<'a> {
    claim: Claim<'a>,
    depths: &'a [usize],
    beginning: World,
    digests: BTreeSet<u64>,
    seen: Vec<Seen>,
    steps: usize,
}

/// A state that is new, unless it was found from other neighbours, too.
struct Found {
    seen: Seen,
    /// Its digest, or the matter with it.
    checked: Result<u64, String>,
}

/// The states that a thread has found from some neighbours, and the steps it made.
#[derive(Default)]
struct Finds {
    found: Vec<Found>,
    digests: BTreeSet<u64>,
    steps: usize,
}

/// The worlds from the beginning to the state whose turn it is, each with its place in `seen`.
struct Walk<'a> {
    search: &'a Search<'a>,
    way: Vec<(u32, World)>,
}

/// Visits every state that is at most so many steps from `beginning`, by the number of faults on the way there,
/// and checks each, the `claim` included.
pub(crate) fn explore(beginning: World, depths: &[usize], claim: Claim<'_>) -> Explored {
    let mut search = Search {
        claim,
        depths,
        digests: BTreeSet::from([beginning.digest()]),
        beginning,
        seen: vec![Seen {
            faults: 0,
            before: 0,
            step: Step {
                event: Event::Round,
                letters: Letters::default(),
            },
        }],
        steps: 0,
    };
    let mut levels = vec![1];
    let mut level = 0..1;
    let mut wrong = None;
    while !level.is_empty() && wrong.is_none() {
        let end = level.end;
        let depth = levels.len() - 1;
        let finds = search.go_on(level, depth);
        wrong = finds.into_iter().find_map(|finds| search.join(finds));
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
    /// Makes every step from the states at one distance. Returns the finds in the order of the states.
    fn go_on(&self, level: Range<usize>, depth: usize) -> Vec<Finds> {
        let starts = level.clone().step_by(NEIGHBOURS);
        let starts = Mutex::new(starts.enumerate());
        let search = || {
            let mut walk = Walk::new(self);
            let mut all = Vec::new();
            loop {
                let next = starts.lock().expect("no thread has panicked").next();
                let Some((turn, start)) = next else {
                    return all;
                };
                let end = level.end.min(start + NEIGHBOURS);
                let mut finds = Finds::default();
                (start..end).for_each(|place| walk.visit(place, depth, &mut finds));
                all.push((turn, finds));
            }
        };
        let mut all = thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(search));
            let finds = threads.map(|thread| thread.join().expect("no thread has panicked"));
            finds.into_iter().flatten().collect::<Vec<_>>()
        });
        all.sort_by_key(|(turn, _)| *turn);
        all.into_iter().map(|(_, finds)| finds).collect()
    }

    /// Adds what was found from some neighbours. Returns the way to a wrong state, if there is one.
    fn join(&mut self, finds: Finds) -> Option<Way> {
        self.steps += finds.steps;
        for Found { seen, checked } in finds.found {
            match checked {
                Ok(digest) if self.digests.insert(digest) => self.seen.push(seen),
                Ok(_) => {}
                Err(wrong) => return Some(self.describe(&seen, wrong)),
            }
        }
        None
    }

    /// Checks a state. Returns its digest if it is new.
    fn note(&self, world: &World, finds: &mut Finds) -> Result<Option<u64>, String> {
        let digest = world.digest();
        let is_new = !self.digests.contains(&digest) && finds.digests.insert(digest);
        if is_new {
            world.check()?;
            (self.claim)(world, Met::First)?;
        } else {
            (self.claim)(world, Met::Again)?;
        }
        Ok(is_new.then_some(digest))
    }

    /// The way to a wrong state, which is the last one that was seen.
    fn describe(&self, last: &Seen, wrong: String) -> Way {
        let mut steps = vec![last.step];
        let mut at = last.before;
        while at != 0 {
            let seen = &self.seen[at as usize];
            steps.push(seen.step);
            at = seen.before;
        }
        let mut world = self.beginning.clone();
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

impl<'a> Walk<'a> {
    fn new(search: &'a Search<'a>) -> Self {
        Self {
            search,
            way: vec![(0, search.beginning.clone())],
        }
    }

    /// Makes every step from a state, until one leads to a wrong one.
    fn visit(&mut self, place: usize, depth: usize, finds: &mut Finds) {
        let search = self.search;
        if depth >= search.depths[search.seen[place].faults] {
            return;
        }
        let place = u32::try_from(place).expect("a place has 32 bits");
        self.go_to(place);
        let (_, world) = self.way.last().expect("the walk is somewhere");
        for event in world.events() {
            let mut letters = Some(Letters::default());
            while let Some(given) = letters {
                let mut script = Script::new(given);
                let mut next = world.clone();
                let noted = catch_unwind(AssertUnwindSafe(|| {
                    next.happen(event, &mut script);
                    search.note(&next, finds)
                }));
                finds.steps += 1;
                let seen = Seen {
                    faults: next.faults(),
                    before: place,
                    step: Step {
                        event,
                        letters: script.letters(),
                    },
                };
                letters = script.next();
                let noted = noted.unwrap_or_else(|_| Err("the machine panicked".into()));
                let is_wrong = noted.is_err();
                if let Some(checked) = noted.transpose() {
                    finds.found.push(Found { seen, checked });
                }
                if is_wrong {
                    return;
                }
            }
        }
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
                at = self.search.seen[at as usize].before;
            }
        }
        for at in ahead.into_iter().rev() {
            let (_, world) = self.way.last().expect("every way has the beginning");
            let mut world = world.clone();
            let Step { event, letters } = self.search.seen[at as usize].step;
            world.happen(event, &mut Script::new(letters));
            self.way.push((at, world));
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
