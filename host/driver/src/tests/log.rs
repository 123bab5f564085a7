//! Lines that the driver logs, on the thread of a test.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use super::*;
use crate::finished::LINES_MAX;

/// The fields of a line by their names, with its words as `message`.
#[derive(Default)]
struct Line(BTreeMap<&'static str, String>);

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// The subscriber of all threads, each of which keeps its own lines: a thread without any would decide for the process
/// that a place that logs is of no interest.
struct ThreadLog;

/// Begins to keep what is logged on this thread.
fn listen() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        tracing::subscriber::set_global_default(ThreadLog).unwrap();
        tracing::callsite::rebuild_interest_cache();
    });
    LINES.set(Vec::new());
}

/// The values of a field in the lines with this message so far.
fn said(message: &str, field: &str) -> Vec<String> {
    LINES.with_borrow(|lines| {
        let lines = lines.iter().filter(|line| line.0["message"] == message);
        lines.map(|line| line.0[field].clone()).collect()
    })
}

impl Subscriber for ThreadLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pointsman")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        LINES.with_borrow_mut(|lines| lines.push(line));
    }

    // Nothing is said of spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[test]
fn the_reason_why_an_executor_gave_up_is_logged_though_its_end_was_found_before() {
    for is_found_before in [false, true] {
        listen();
        let mut stage = Stage::new();
        stage.commands.close();
        if is_found_before {
            stage.settle();
        }
        let why = "given up".to_owned();
        stage.says(0, vec![Event::Lost { why }]);
        assert_eq!(said("executor lost its sequences", "why"), ["given up"]);
        let ended =
            "executor has ended; remove it and add it again, at /admin/executors, to bring it back";
        assert_eq!(said(ended, "executor"), ["0"], "{is_found_before}");
    }
}

#[test]
fn the_bound_on_labels_is_told_once_when_it_is_met() {
    listen();
    let mut stage = Stage::new();
    let mut submit = |labels: &[&str]| {
        stage.submit_with(Hints {
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            ..Hints::default()
        })
    };
    let mut kept = vec![submit(&["team=a"])];
    assert!(said(LABELS_FULL, "max").is_empty());
    kept.push(submit(&["team=b", "team=c"]));
    kept.push(submit(&["team=d"]));
    assert_eq!(said(LABELS_FULL, "max"), ["2"]);
    drop(kept);
}

#[test]
fn lines_that_the_access_log_lacks_at_the_end_are_told_of() {
    listen();
    let mut stage = Stage::new();
    let lines = stage.driver.log_access();
    let requests: Vec<_> = (0..LINES_MAX + 3)
        .map(|_| stage.hand_in(Hints::default()))
        .collect();
    stage.driver.abandon(AT);
    let lacks = "the access log lacks requests that ended with the server";
    assert_eq!(said(lacks, "lines_lost"), ["3"]);
    drop((lines, requests));
}
