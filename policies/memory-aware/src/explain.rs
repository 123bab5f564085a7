//! Every executor, with its place in the order or what stands in the way.

use pointsman_sdk::explain::{obstructed, seated};
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::types::NameKind;
use pointsman_sdk::{Executor, Place};

use crate::credit::{self, Credit};
use crate::rank::Pool;
use crate::search::{Hurdle, Lead, MayLook, Search, Why};
use crate::waits::WHOLE_PERMILLE;

/// Lists the executors in attach order. The cost of one is its place in the order of choice; those
/// that cannot take the request all come after.
pub(crate) fn candidates(search: Search<'_>) -> Vec<Candidate> {
    let (search, choice) = search.choose(MayLook::Yes);
    let (lead, held_for) = match choice {
        Ok(choice) => (choice.lead, None),
        Err(blocked) => (Lead::default(), blocked.held_for),
    };
    let scope = search.scope();
    let in_scope = |executor: &Executor<'_>| scope.contains(executor.id());
    let executors: Vec<_> = search.case.fleet.mirror.executors().collect();
    let places = executors.iter().map(|executor| {
        let place = match lead.place_on(executor) {
            Some(place) => place,
            None => search.place_on(*executor)?,
        };
        let ahead = lead.ahead_of(executor);
        Ok((place, (ahead, search.key(&place))))
    });
    let places: Vec<Result<_, Hurdle>> = places.collect();
    let mut order: Vec<_> = places
        .iter()
        .flatten()
        .filter(|(place, _)| in_scope(&place.executor))
        .map(|(_, ranked)| *ranked)
        .collect();
    order.sort_unstable();
    let candidate = |(executor, place): (&Executor<'_>, &Result<_, Hurdle>)| {
        let (cost, note) = match (place, held_for) {
            _ if !in_scope(executor) && !is_pinned_elsewhere(&search, executor) => {
                (None, format!("it is of group {}", executor.info.group))
            }
            (Ok((place, ranked)), None) => {
                let before = order.partition_point(|other| other < ranked);
                (Some(before), eligible(&search, place, &lead))
            }
            (Ok(_), Some(held_for)) => (None, waits_for(&search, held_for)),
            (Err(hurdle), _) => (None, ineligible(&search, executor, *hurdle)),
        };
        Candidate {
            executor: executor.id(),
            eligible: cost.is_some(),
            cost: i64::try_from(cost.unwrap_or(order.len())).unwrap_or(i64::MAX),
            note,
        }
    };
    executors.iter().zip(&places).map(candidate).collect()
}

fn is_pinned_elsewhere(search: &Search<'_>, executor: &Executor<'_>) -> bool {
    let allowed = search.request().allowed.as_ref();
    allowed.is_some_and(|allowed| !allowed.contains(&executor.id()))
}

fn eligible(search: &Search<'_>, place: &Place<'_>, lead: &Lead<'_>) -> String {
    let (case, executor) = (search.case, &place.executor);
    let is_first = lead.ahead_of(executor) == 0 && !lead.places.is_empty();
    let why = match lead.why {
        Why::Session if is_first => "the session's; ",
        Why::Hash if is_first => "its session is hashed to it; ",
        Why::Waiver if is_first => "a warm hold is waived; ",
        Why::Loaded if is_first => "its model is loaded; ",
        Why::Rank | Why::Overlap | Why::Loaded | Why::Session | Why::Hash | Why::Waiver => "",
    };
    let load = executor.load;
    let slots = format!("{}/{} slots", load.slots_used, executor.info.slots_total);
    let (settings, waits) = (search.settings, &search.policy.waits);
    let memory = match Pool::of(case.fleet, executor) {
        Some(pool) => format!(
            "tier {} ({} permille), load {} blocks, {} blocks free",
            settings.tier(pool.permille()),
            pool.permille(),
            credit::load(settings, waits, case.fleet, executor) / 1000,
            pool.free
        ),
        None => "no paged KV".to_owned(),
    };
    let pending = match waits.weight_permille(executor) {
        WHOLE_PERMILLE => String::new(),
        weight => format!("; pending prefill counts {weight} permille"),
    };
    let overlap = match Credit::of(settings, case, executor).tokens {
        0 => String::new(),
        tokens => format!("; holds {tokens} tokens of the prompt"),
    };
    format!(
        "{why}{}; {slots}, depth {}; {memory}{pending}; {} placed{overlap}",
        seated(executor, place.seat),
        executor.depth(),
        load.placed_total
    )
}

/// The obstacle to a request that is held for another executor.
fn waits_for(search: &Search<'_>, executor: u32) -> String {
    match search.case.fleet.mirror.name(NameKind::Executor, executor) {
        Some(name) => format!("the request waits for {name}"),
        None => format!("the request waits for executor {executor}"),
    }
}

fn ineligible(search: &Search<'_>, executor: &Executor<'_>, hurdle: Hurdle) -> String {
    match hurdle {
        Hurdle::Obstacle(obstacle) => obstructed(search.case, executor, obstacle),
        Hurdle::Drained => {
            let model = search.drains.model_at(executor.id());
            let mirror = search.case.fleet.mirror;
            let name = model.and_then(|model| mirror.name(NameKind::Model, model));
            let name = name.unwrap_or("another model");
            format!("kept free for {name}, which is warm nowhere")
        }
        Hurdle::Reserved => {
            "what is left there is kept free of tenants beyond their share".to_owned()
        }
        Hurdle::Prefilling => {
            let pending = credit::pending_tokens(search.case.fleet, executor);
            format!("{pending} tokens of other prompts are prefilled there first")
        }
        Hurdle::Loading => "its model is not loaded, and is being loaded".to_owned(),
    }
}
