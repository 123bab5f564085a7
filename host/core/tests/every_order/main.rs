//! Every order of events in a small world, and every answer from a small alphabet: the machine keeps its
//! invariants and its liveness bounds in each state that can be reached.
//!
//! | file | has |
//! |---|---|
//! | `world`, `sequence`, `event` | two engines that share a memory, their clients, and everything that can happen to them |
//! | `answers` | the alphabet of answers |
//! | `explorer`, `digest` | the search, and what makes two states the same |
//! | `check` | what must hold in a state |

mod answers;
mod check;
mod digest;
mod event;
mod explorer;
mod sequence;
mod world;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Mutex;

use explorer::{Explored, Met, explore, successors};
use world::{REQUESTS, World};

/// Steps that are looked ahead, by the number of failures and deaths on the way.
const DEPTHS: [usize; 3] = [10, 8, 7];

/// Tells how far a search came, to be seen of a test that passes too, and fails where it found something.
fn assert_right(explored: &Explored) {
    let Explored {
        states,
        steps,
        levels,
        ..
    } = explored;
    let told = writeln!(
        io::stderr(),
        "{states} distinct states by {steps} steps; at each distance {levels:?}"
    );
    told.expect("there is a place for errors");
    if let Some(way) = &explored.wrong {
        panic!("{way}");
    }
}

#[test]
fn a_million_states_of_three_requests_keep_the_invariants_and_the_liveness_bounds() {
    // To let every state come to its end would take many times as long.
    let claim = |world: &World, met| {
        if met == Met::First && world.digest().is_multiple_of(64) {
            world.check_end()
        } else {
            Ok(())
        }
    };
    let explored = explore(World::new(REQUESTS, 2), &DEPTHS, &claim);
    assert_right(&explored);
    assert!(explored.states >= 1_000_000, "{}", explored.states);
}

#[test]
fn every_state_of_two_requests_comes_to_its_end() {
    let claim = |world: &World, met| match met {
        Met::First => world.check_end(),
        Met::Again => Ok(()),
    };
    let explored = explore(World::new(2, 0), &[usize::MAX], &claim);
    assert_right(&explored);
    assert!(explored.is_whole);
}

#[test]
fn states_with_one_digest_have_the_same_future() {
    let futures = Mutex::new(BTreeMap::new());
    let claim = |world: &World, _| {
        let future = successors(world);
        let mut futures = futures.lock().expect("no claim has panicked");
        let known = futures.insert(world.digest(), future.clone());
        match known {
            Some(known) if known != future => Err("this state has two futures".to_owned()),
            _ => Ok(()),
        }
    };
    let explored = explore(World::new(2, 1), &[9, 6], &claim);
    assert_right(&explored);
    assert!(explored.steps > explored.states * 2, "states are met again");
}

#[test]
fn a_planted_flaw_is_found_by_a_shortest_way() {
    let claim = |world: &World, _| match world.evicted() {
        Some(kind) => Err(format!("{} gives way", event::name(kind))),
        None => Ok(()),
    };
    let way = explore(World::new(2, 0), &[usize::MAX], &claim).wrong;
    let way = way.expect("requests give way").to_string();
    let shortest = [
        "the bulky request gives way",
        "The shortest way there:",
        "  1. the bulky request arrives, as request 0",
        "  2. the urgent request arrives, as request 1",
        "  3. round, admission: Admit, request 0 to executor 0, request 1 to executor 1",
        "  4. the bulky request is taken up",
        "  5. the bulky request gets a token",
        "  6. the urgent request is taken up",
        "  7. the urgent request gets a token",
        "  8. round, request 0 gives way on executor 1 (Recompute)",
    ];
    assert_eq!(way.lines().collect::<Vec<_>>(), shortest);
}
