//! The order: tenants take turns until every request has had its turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use pointsman_sdk::Mirror;
use pointsman_sdk::wire::types::AskedRequest;

use crate::accounts::Accounts;
use crate::settings::Settings;

/// A tenant and its requests that have had no turn yet.
#[derive(Debug)]
struct Line {
    counter: i128,
    /// Requests placed before, and by this answer.
    running: u32,
    weight: u32,
    /// Requests, the latest first.
    requests: Vec<Entry>,
}

/// A request of a line, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    arrived: u64,
    id: u64,
    prompt_tokens: u32,
}

/// The turn of a tenant's next request; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    counter_aged: i128,
    running: u32,
    arrived: u64,
    id: u64,
    tenant: u32,
}

/// Orders requests. Each turn costs its tenant the request's prompt, as serving it will.
pub(crate) fn order(
    mirror: &Mirror,
    settings: &Settings,
    accounts: &Accounts,
    requests: &[AskedRequest],
) -> Vec<u64> {
    let mut lines = lines(mirror, settings, accounts, requests);
    let mut turns: BinaryHeap<_> = lines
        .iter()
        .filter_map(|(&tenant, line)| line.turn(settings, tenant))
        .map(Reverse)
        .collect();
    let mut order = Vec::with_capacity(requests.len());
    while let Some(Reverse(turn)) = turns.pop() {
        order.push(turn.id);
        if let Some(line) = lines.get_mut(&turn.tenant) {
            line.take(settings);
            turns.extend(line.turn(settings, turn.tenant).map(Reverse));
        }
    }
    order
}

fn lines(
    mirror: &Mirror,
    settings: &Settings,
    accounts: &Accounts,
    requests: &[AskedRequest],
) -> BTreeMap<u32, Line> {
    let mut lines = BTreeMap::new();
    for request in requests
        .iter()
        .filter_map(|asked| mirror.request(asked.request))
    {
        let line = lines.entry(request.tenant).or_insert_with(|| {
            let row = mirror.tenant(request.tenant);
            Line {
                counter: accounts.counter(mirror, settings, request.tenant),
                running: row.map_or(0, |row| row.running),
                weight: row.map_or(1, |row| row.weight),
                requests: Vec::new(),
            }
        });
        line.requests.push(Entry {
            arrived: request.arrived,
            id: request.id,
            prompt_tokens: request.prompt_tokens,
        });
    }
    for line in lines.values_mut() {
        line.requests.sort_unstable_by_key(|&entry| Reverse(entry));
    }
    lines
}

// === impl Line ===

impl Line {
    fn turn(&self, settings: &Settings, tenant: u32) -> Option<Turn> {
        let next = self.requests.last()?;
        Some(Turn {
            counter_aged: self.counter + settings.lateness(next.arrived),
            running: self.running,
            arrived: next.arrived,
            id: next.id,
            tenant,
        })
    }

    fn take(&mut self, settings: &Settings) {
        if let Some(taken) = self.requests.pop() {
            self.counter += settings.prompt(taken.prompt_tokens, self.weight);
            self.running = self.running.saturating_add(1);
        }
    }
}
