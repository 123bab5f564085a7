//! Policies that lack one property each, and one that has them all.

use pointsman_sdk as sdk;
use sdk::wire::lifecycle::{Description, Feed};
use sdk::wire::routing::{Choice, Verdict as Route};
use sdk::wire::types::{Cached, Change};
use sdk::{Mirror, Moment, Need, Tentative, fit};
use serde_json::{Map, Value};

use super::*;

fn plan() -> Plan {
    Plan {
        runs: 4,
        events: 60,
        restart_every: 4,
        ..Plan::default()
    }
}

/// The sentences of what failed, for the policy `fickle` with this habit.
fn failed(habit: &str) -> Vec<(Property, String)> {
    let mut settings = Map::new();
    settings.insert("habit".to_owned(), Value::from(habit));
    let suite = check(&Subject::native("fickle", instance, &settings), &plan()).unwrap();
    assert_eq!(suite.name, "fickle (native)");
    let cases = Property::ALL.into_iter().zip(suite.cases);
    let failed = cases.filter_map(|(property, case)| match case.verdict {
        Verdict::Failed(problem) => Some((property, problem.summary)),
        Verdict::Passed(_) | Verdict::Skipped(_) => None,
        Verdict::Broken(problem) => panic!("{habit}: {problem:?}"),
    });
    failed.collect()
}

fn check_fails(habit: &str, property: Property, said: &str) {
    let failed = failed(habit);
    let of = failed.iter().find(|(failed, _)| *failed == property);
    let summary = of.map_or("", |(_, summary)| summary);
    assert!(summary.starts_with("seed "), "{habit}: {failed:?}");
    assert!(summary.contains(said), "{habit}: {failed:?}");
}

#[test]
fn a_policy_without_bad_habits_has_every_property() {
    assert_eq!(failed("none"), []);
}

#[test]
fn a_policy_that_names_no_executor_there_is_is_refused() {
    check_fails(
        "nowhere",
        Property::NeverRefused,
        "the interlock refuses routing",
    );
}

#[test]
fn a_policy_that_panics_fails() {
    check_fails(
        "panics",
        Property::NeverRefused,
        "it fails at routing: Trap",
    );
}

#[test]
fn a_policy_that_forgets_what_it_counted_is_another_after_a_restart() {
    check_fails(
        "counts",
        Property::SurvivesRestart,
        "routing is answered otherwise",
    );
}

#[test]
fn a_policy_that_goes_by_the_first_row_depends_on_their_order() {
    let failed = failed("first-row");
    let properties: Vec<Property> = failed.iter().map(|(property, _)| *property).collect();
    assert!(
        properties.contains(&Property::IgnoresRowOrder),
        "{failed:?}"
    );
}

#[test]
fn a_policy_that_holds_for_ever_starves() {
    check_fails("holds", Property::StarvesNobody, "was Unplaced");
}

#[test]
fn the_same_plan_gives_the_same_report() {
    let subject = Subject::native("fickle", instance, &Map::new());
    assert_eq!(check(&subject, &plan()), check(&subject, &plan()));
}

// === The policy `fickle` ===

/// Places where there is room, as its habit has it.
struct Fickle {
    habit: Habit,
    asked: usize,
    /// As they were told.
    executors: Vec<u32>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Habit {
    #[default]
    None,
    Nowhere,
    Panics,
    Counts,
    FirstRow,
    Holds,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    habit: Habit,
}

impl sdk::Policy for Fickle {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "fickle".into(),
            version: "1".into(),
            summary: "Routes by its habit.".into(),
            feed: Feed::WAITING,
            reasons: vec!["so".into()],
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            habit: settings.habit,
            asked: 0,
            executors: Vec::new(),
        })
    }

    fn cleared(&mut self) {
        self.executors.clear();
    }

    fn changed(&mut self, _: &Mirror, change: &Change) {
        if let Change::Executor(row) = change
            && !self.executors.contains(&row.id)
        {
            self.executors.push(row.id);
        }
    }
}

impl Fickle {
    fn verdict(&mut self, mirror: &Mirror, placed: &mut Tentative, at: Moment, id: u64) -> Route {
        self.asked += 1;
        match self.habit {
            Habit::Nowhere => return route(Choice::Place(vec![u32::MAX])),
            Habit::Panics => panic!("out of habit"),
            Habit::Holds => return route(Choice::Hold(None)),
            Habit::None | Habit::Counts | Habit::FirstRow => {}
        }
        let Some(request) = mirror.request(id) else {
            return route(Choice::Hold(None));
        };
        let need = Need::new(mirror, placed, request, at.now);
        let open = mirror.executors().filter_map(|executor| {
            let seat = fit(mirror, placed, &need, &executor).ok()?;
            Some((executor, seat))
        });
        let mut open: Vec<_> = open.collect();
        let turn = self.asked % open.len().max(1);
        match self.habit {
            Habit::Counts => open.rotate_left(turn),
            Habit::FirstRow => {
                let told = &self.executors;
                open.sort_by_key(|(executor, _)| told.iter().position(|id| *id == executor.id()));
            }
            Habit::None | Habit::Nowhere | Habit::Panics | Habit::Holds => {}
        }
        let Some((executor, seat)) = open.first() else {
            return route(Choice::Hold(None));
        };
        placed.place(mirror, &need, executor, *seat);
        route(Choice::Place(vec![executor.id()]))
    }
}

fn route(choice: Choice) -> Route {
    Route { choice, reason: 0 }
}

impl sdk::Routing for Fickle {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Route> {
        let ids = requests.iter().map(|asked| asked.request);
        ids.map(|id| self.verdict(mirror, placed, at, id)).collect()
    }
}

sdk::export!(Fickle: routing);
