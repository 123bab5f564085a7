//! The log of one test, line by line.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of a line by their names, with its words as `message`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line(pub(crate) BTreeMap<&'static str, String>);

/// The lines that the crate logs on the thread of a test.
#[derive(Clone)]
pub(crate) struct Log {
    thread: ThreadId,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Log {
    /// Begins to keep what is logged on this thread; only one test of the process can do so. The subscriber is that of
    /// all threads: one without any would decide for the process that a place that logs is of no interest.
    pub(crate) fn begin() -> Self {
        let log = Self {
            thread: thread::current().id(),
            lines: Arc::default(),
        };
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        tracing::callsite::rebuild_interest_cache();
        log
    }

    /// The lines with this message so far.
    pub(crate) fn lines(&self, message: &str) -> Vec<Line> {
        let lines = self.lines.lock().unwrap();
        let is_it = |line: &&Line| line.0["message"] == message;
        lines.iter().filter(is_it).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pointsman_local")
    }

    fn event(&self, event: &Event<'_>) {
        if thread::current().id() == self.thread {
            let mut line = Line::default();
            event.record(&mut line);
            self.lines.lock().unwrap().push(line);
        }
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
