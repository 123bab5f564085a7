//! Every executor, with its place in the order or what stands in the way.

use pointsman_sdk::explain::{obstructed, seated};
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::types::NameKind;
use pointsman_sdk::{Executor, Seat};

use crate::choose::{Case, Found, Hurdle, Lead, Why};
use crate::rank::{Pool, tier};
use crate::roster::Scope;

/// The executors in attach order. The cost of one is its place in the order of choice; those that
/// cannot take the request all come after.
pub(crate) fn candidates(case: &Case<'_>, found: &Found, scope: &Scope) -> Vec<Candidate> {
    let lead = found.lead(case);
    let place = |executor: &Executor<'_>, seat| {
        let leading = lead.seated.iter();
        let leading = leading.take_while(|seated| seated.executor != executor.id());
        (leading.count(), case.choice(executor, seat).rank)
    };
    let seat_of = |executor: &Executor<'_>| match lead.seat_of(executor.id()) {
        Some(seat) => Ok(seat),
        None => case.seat(executor),
    };
    let placed: Vec<_> = case
        .mirror
        .executors()
        .map(|executor| {
            let seat = seat_of(&executor);
            let place = seat.map(|seat| (seat, place(&executor, seat)));
            (executor, place)
        })
        .collect();
    let in_scope = |executor: &Executor<'_>| scope.contains(executor.id());
    let mut order: Vec<_> = placed
        .iter()
        .filter(|(executor, _)| in_scope(executor))
        .filter_map(|(_, place)| Some(place.as_ref().ok()?.1))
        .collect();
    order.sort_unstable();

    placed
        .into_iter()
        .map(|(executor, place)| {
            let (eligible, cost, note) = match place {
                _ if !in_scope(&executor) && !is_pinned_elsewhere(case, &executor) => {
                    let note = format!("it is of group {}", executor.info.group);
                    (false, order.len(), note)
                }
                Ok((seat, place)) => {
                    let before = order.partition_point(|other| *other < place);
                    (true, before, eligible(case, &executor, seat, &lead))
                }
                Err(hurdle) => (false, order.len(), ineligible(case, &executor, hurdle)),
            };
            Candidate {
                executor: executor.id(),
                eligible,
                cost: i64::try_from(cost).unwrap_or(i64::MAX),
                note,
            }
        })
        .collect()
}

fn is_pinned_elsewhere(case: &Case<'_>, executor: &Executor<'_>) -> bool {
    let allowed = case.need.request.allowed.as_ref();
    allowed.is_some_and(|allowed| !allowed.contains(&executor.id()))
}

fn eligible(case: &Case<'_>, executor: &Executor<'_>, seat: Seat, lead: &Lead) -> String {
    let is_first = lead
        .seated
        .first()
        .is_some_and(|first| first.executor == executor.id());
    let why = match lead.why {
        Why::Session if is_first => "the session's; ",
        Why::Hash if is_first => "its session is hashed to it; ",
        Why::Waiver if is_first => "a warm hold is waived; ",
        Why::Rank | Why::Overlap | Why::Session | Why::Hash | Why::Waiver => "",
    };
    let load = executor.load;
    let slots = format!("{}/{} slots", load.slots_used, executor.info.slots_total);
    let memory = match Pool::of(case.mirror, case.placed, executor) {
        Some(pool) => format!(
            "tier {} ({} permille), {} blocks free",
            tier(pool.permille()),
            pool.permille(),
            pool.free
        ),
        None => "no paged KV".to_owned(),
    };
    let credit = case.view.weights.credit(case.asked, executor);
    let overlap = match credit.tokens() {
        0 => String::new(),
        tokens => format!("; holds {tokens} tokens of the prompt"),
    };
    format!(
        "{why}{}; {slots}, depth {}; {memory}; {} placed{overlap}",
        seated(executor, seat),
        executor.depth(),
        load.placed_total
    )
}

fn ineligible(case: &Case<'_>, executor: &Executor<'_>, hurdle: Hurdle) -> String {
    match hurdle {
        Hurdle::Obstacle(obstacle) => {
            let case = pointsman_sdk::Case {
                mirror: case.mirror,
                placed: case.placed,
                need: *case.need,
                cached: case.asked,
            };
            obstructed(&case, executor, obstacle)
        }
        Hurdle::Drained => {
            let model = case.view.drains.model_at(executor.id());
            let name = model.and_then(|model| case.mirror.name(NameKind::Model, model));
            let name = name.unwrap_or("another model");
            format!("kept free for {name}, which is warm nowhere")
        }
    }
}
