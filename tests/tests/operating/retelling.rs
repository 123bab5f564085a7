//! Journals retold: which rounds a machine goes through that is given what was recorded.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use pointsman_core::{Config, Machine, Micros, Stamped};
use pointsman_journal::{Blob, Entry, Header, Keyframe, Located, Roster};
use pointsman_replay::{ReplayError, Retelling, Rounds};

/// The number of rounds in which a machine decided.
#[derive(Debug, Default)]
struct RoundCount(u64);

impl Rounds for RoundCount {
    fn before(&mut self, _: Micros, _: &Machine, _: &Roster) {}

    fn after(&mut self, _: &Machine, _: &[Stamped]) {
        self.0 += 1;
    }
}

/// The number of rounds that are retold of a journal with these entries.
pub(crate) fn retold(entries: impl IntoIterator<Item = Located>) -> Result<u64, ReplayError> {
    let (mut retelling, mut rounds) = (Retelling::new(), RoundCount::default());
    for located in entries {
        retelling.take(located, &mut rounds).unwrap();
    }
    retelling.finish(&mut rounds).map(|_| rounds.0)
}

fn header(started_unix_ms: u64) -> Entry<'static> {
    Entry::Header(Header {
        pointsman: env!("CARGO_PKG_VERSION").to_owned(),
        wasmtime: String::new(),
        started_unix_ms,
        file: 0,
    })
}

/// A round after a keyframe of run 1 and a header of `run`.
fn entries(run: u64) -> [Entry<'static>; 4] {
    let machine = Machine::new(Config::default()).unwrap();
    let (now, round) = (Micros(1), machine.round());
    let keyframe = Keyframe {
        now,
        round,
        machine: Blob::of(&machine).unwrap(),
        roster: Roster::default(),
    };
    [
        header(1),
        Entry::Keyframe(Box::new(keyframe)),
        header(run),
        Entry::Round { now, round },
    ]
}

#[test]
fn a_run_is_told_from_its_own_keyframe_on() {
    let retold_of = |run| {
        let located = entries(run).map(|entry| Located {
            file: Path::new("journal.pmj").into(),
            offset: 0,
            entry,
        });
        retold(located).unwrap()
    };
    assert_eq!(retold_of(1), 1, "another file of the run");
    assert_eq!(retold_of(2), 0, "another run");
}
