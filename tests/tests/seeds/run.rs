//! The run of a case, and what must hold in it.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use pointsman_core::Micros;
use pointsman_sim::Simulation;
use pointsman_sim::measure::RunReport;

use crate::case::Case;
use crate::policies::Swapped;
use crate::waits::Waits;

/// The time after the last arrival within which everything has ended.
const DRAIN: Micros = Micros(600_000_000);
/// Events of a run: a hundred times as many as there are.
const EVENTS_MAX: u32 = 1_000_000;

/// The standard to which a run is held, besides what no run may have.
#[derive(Clone, Copy)]
pub(crate) struct Standard<'a> {
    /// A flaw that must not be in a report.
    pub(crate) flaw: &'a (dyn Fn(&RunReport) -> Option<String> + Sync),
    /// The components that never fault and are never refused.
    pub(crate) vouched: Vouched,
    /// The longest time that a request may be without a place, of the machine's `wait-max`.
    pub(crate) wait_max: fn(Micros) -> Micros,
}

/// True of a component, by its name, that is vouched for.
pub(crate) type Vouched = fn(&str) -> bool;

impl Standard<'_> {
    /// The standard that all runs keep: what ships is vouched for.
    pub(crate) const SOUND: Self = Self {
        flaw: &|_| None,
        vouched: |name| !name.starts_with("test/"),
        wait_max: |most| most,
    };
}

/// Runs a case. Returns the report.
///
/// # Errors
/// An invariant or liveness bound that broke, a request that never ended or waited for too long without a
/// place, a component that did not keep what was vouched for, or the flaw that was looked for.
pub(crate) fn run(case: &Case, standard: Standard<'_>) -> Result<RunReport, String> {
    let report = watched(|| run_through(case, standard)).and_then(|ran| ran)?;
    (standard.flaw)(&report).map_or(Ok(report), Err)
}

thread_local! {
    /// The message of the panic that [`watched`] waits for.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Does something that may panic. The message of a panic is returned and not shown: a case that is shrunk
/// panics many times.
fn watched<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let show = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_WATCHED.get() {
                PANIC.set(Some(info.to_string()));
            } else {
                show(info);
            }
        }));
    });
    IS_WATCHED.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    IS_WATCHED.set(false);
    match done {
        Ok(done) => Ok(done),
        Err(_) => Err(PANIC.take().unwrap_or_default()),
    }
}

fn run_through(case: &Case, standard: Standard<'_>) -> Result<RunReport, String> {
    let plan = case.plan();
    let wait_max = (standard.wait_max)(plan.config.wait_max);
    let policies = Swapped::new(&case.policies, plan.config.bounds(), standard.vouched);
    let mut simulation = Simulation::new(plan, policies).map_err(|error| error.to_string())?;
    let waits = Waits::default();
    simulation.record_with(Box::new(waits.clone()));
    let last = case.requests.iter().map(|request| request.at).max();
    let end = Micros(last.unwrap_or(0) * 1000).after(DRAIN);
    let mut events = 0;
    while let Some(at) = simulation.next_at() {
        let (now, machine, policies) = simulation.parts();
        let changed = policies.change(at.max(now), machine);
        simulation.policies_changed(changed);
        let Some(progressed) = simulation.advance() else {
            break;
        };
        simulation.parts().2.check()?;
        events += 1;
        if progressed.now > end || events > EVENTS_MAX {
            let left = case.requests.len() as u64 - progressed.ended;
            let now = progressed.now;
            return Err(format!(
                "{left} requests never end: {now} us, {events} events"
            ));
        }
    }
    let mut records = simulation.records().iter();
    let never_ended = records.position(|it| it.ended.is_none() || it.outcome.is_none());
    if let Some(id) = never_ended {
        return Err(format!("request {id} never ended"));
    }
    waits.check(wait_max)?;
    Ok(simulation.finish().0)
}
