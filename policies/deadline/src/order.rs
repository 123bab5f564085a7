//! The order: by the latest start that still makes the deadline.

use pointsman_sdk::Mirror;
use pointsman_sdk::wire::types::{AskedRequest, Request};

use crate::pace::{Paces, Timeliness, output_tokens};
use crate::settings::Settings;
use crate::table::Table;

/// The place of one request; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    timeliness: Timeliness,
    latest_start: u64,
    arrived: u64,
    id: u64,
}

/// Orders requests by their latest start.
pub(crate) fn order(
    (mirror, table): (&Mirror, &Table),
    settings: &Settings,
    now: u64,
    requests: &[AskedRequest],
) -> Vec<u64> {
    let mut paces = Paces::default();
    let known = requests
        .iter()
        .filter_map(|asked| mirror.request(asked.request));
    let mut ranking: Vec<Rank> = known
        .map(|request| {
            let micros = paces
                .best((mirror, table), request.model)
                .micros(output_tokens(settings, request));
            rank(settings, now, request, micros)
        })
        .collect();
    ranking.sort_unstable();
    ranking.into_iter().map(|rank| rank.id).collect()
}

fn rank(settings: &Settings, now: u64, request: &Request, micros: u64) -> Rank {
    let latest_start = match request.deadline {
        Some(deadline) => deadline.saturating_sub(micros),
        None => request.arrived.saturating_add(settings.patience_micros()),
    };
    Rank {
        timeliness: Timeliness::of(request, now, micros),
        latest_start,
        arrived: request.arrived,
        id: request.id,
    }
}
