//! The smallest case that fails as another one does.
//!
//! Whatever is in a case is left out as long as it still fails: first halves of a list, then smaller parts,
//! then single entries, again and again until nothing more can go. Then numbers are made rounder.

use pointsman_policy::Mode;

use crate::case::{Bounds, Case, Component, Executor, Fault, Policy, Request};

/// A smaller case for which `fails` holds as it does for this one.
pub(crate) fn shrink(mut case: Case, fails: &dyn Fn(&Case) -> bool) -> Case {
    loop {
        let before = case.clone();
        for drop_part in [drop_requests, drop_faults, drop_policies, drop_executors] {
            case = shrink_list(case, drop_part, fails);
        }
        case = simplify(case, fails);
        if case == before {
            return case;
        }
    }
}

/// Leaves out entries `from..to` of a list of the case; absent: there are none.
type DropPart = fn(&Case, usize, usize) -> Option<Case>;

fn shrink_list(mut case: Case, drop_part: DropPart, fails: &dyn Fn(&Case) -> bool) -> Case {
    let mut part = 32;
    while part > 0 {
        let mut from = 0;
        while let Some(smaller) = drop_part(&case, from, from + part) {
            if fails(&smaller) {
                case = smaller;
            } else {
                from += part;
            }
        }
        part /= 2;
    }
    case
}

/// Leaves out a part of a list, its last entries where `to` lies past them.
fn cut<T: Clone>(list: &[T], from: usize, to: usize) -> Option<Vec<T>> {
    let after = list.get(to..).unwrap_or_default();
    let before = list.get(..from).filter(|_| from < list.len())?;
    Some([before, after].concat())
}

fn drop_requests(case: &Case, from: usize, to: usize) -> Option<Case> {
    let requests = cut(&case.requests, from, to)?;
    let to = to.min(case.requests.len());
    let mut smaller = Case {
        requests,
        ..case.clone()
    };
    // The later ones have lower numbers now.
    smaller.faults.retain_mut(|fault| {
        let Some(request) = fault.request_mut() else {
            return true;
        };
        renumber(request, from as u64, to as u64)
    });
    Some(smaller)
}

fn drop_executors(case: &Case, from: usize, to: usize) -> Option<Case> {
    let executors = cut(&case.executors, from, to)?;
    if executors.is_empty() {
        // A fleet has one at least: the next smaller part is tried.
        return None;
    }
    let to = to.min(case.executors.len());
    let mut smaller = Case {
        executors,
        ..case.clone()
    };
    smaller.faults.retain_mut(|fault| {
        let Some(executor) = fault.executor_mut() else {
            return true;
        };
        let mut number = *executor as u64;
        let is_left = renumber(&mut number, from as u64, to as u64);
        *executor = usize::try_from(number).expect("it was one");
        is_left
    });
    Some(smaller)
}

/// Gives something its number after those from `from` to `to` are gone. False if it is one of them.
fn renumber(number: &mut u64, from: u64, to: u64) -> bool {
    if *number >= to {
        *number -= to - from;
        return true;
    }
    *number < from
}

fn drop_faults(case: &Case, from: usize, to: usize) -> Option<Case> {
    Some(Case {
        faults: cut(&case.faults, from, to)?,
        ..case.clone()
    })
}

fn drop_policies(case: &Case, from: usize, to: usize) -> Option<Case> {
    Some(Case {
        policies: cut(&case.policies, from, to)?,
        ..case.clone()
    })
}

/// Leaves the setting at this place to its default, if there is one.
fn drop_setting(component: &mut Component, at: usize) {
    let key = component.settings.keys().nth(at).cloned();
    key.and_then(|key| component.settings.remove(&key));
}

/// Makes bounds, requests, faults, executors and components plainer, one trait after another.
fn simplify(mut case: Case, fails: &dyn Fn(&Case) -> bool) -> Case {
    let longest = case
        .requests
        .len()
        .max(case.executors.len())
        .max(case.faults.len())
        .max(case.policies.len());
    let mut plainer = |change: &dyn Fn(&mut Case)| {
        let mut next = case.clone();
        change(&mut next);
        if next != case && fails(&next) {
            case = next;
        }
    };
    let changes: [fn(&mut Request); 7] = [
        |request| request.text = None,
        |request| request.patience = None,
        |request| request.model = None,
        |request| request.priority = 0,
        |request| request.tenant = 0,
        |request| request.output_tokens = request.output_tokens.div_ceil(2),
        |request| request.prompt_tokens = request.prompt_tokens.div_ceil(2),
    ];
    let changes_of_executors: [fn(&mut Executor); 3] = [
        |executor| executor.models_max = None,
        |executor| executor.model_load = 0,
        |executor| executor.queue = 0,
    ];
    // A component has five settings at most.
    let changes_of_components: [fn(&mut Component); 7] = [
        |component| component.mode = Mode::Enforce,
        |component| component.probation = None,
        |component| drop_setting(component, 4),
        |component| drop_setting(component, 3),
        |component| drop_setting(component, 2),
        |component| drop_setting(component, 1),
        |component| drop_setting(component, 0),
    ];
    let changes_of_bounds: [fn(&mut Bounds); 3] = [
        |bounds| bounds.parking_max = 0,
        |bounds| bounds.queue_max = bounds.queue_max.div_ceil(2),
        |bounds| bounds.queue_max = bounds.queue_max.saturating_sub(1).max(1),
    ];
    for change in changes_of_bounds {
        plainer(&|case| change(&mut case.bounds));
    }
    for idx in 0..longest {
        for change in changes {
            plainer(&|case| case.requests.get_mut(idx).into_iter().for_each(change));
        }
        for change in changes_of_executors {
            plainer(&|case| case.executors.get_mut(idx).into_iter().for_each(change));
        }
        for change in changes_of_components {
            plainer(&|case| {
                if let Some((_, Policy::Component(component))) = case.policies.get_mut(idx) {
                    change(component);
                }
            });
        }
        plainer(&|case| {
            let fault = case.faults.get_mut(idx);
            if let Some(executor) = fault.and_then(Fault::executor_mut) {
                *executor = 0;
            }
        });
    }
    case
}
