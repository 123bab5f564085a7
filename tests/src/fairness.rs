//! Simulations of ServeGen's clients under the default policies, one of which floods: how soon the others' requests begin.
//! Logical time, so a test can hold it to its numbers.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::simulated::report;

/// The fewest requests of a client whose p95 says something.
const REQUESTS_MIN: u64 = 20;

/// The ends of each client's requests, and how soon they began.
#[derive(Debug, Default)]
pub struct Clients {
    /// The p95 of TTFT, in milliseconds, of clients with enough requests to have one.
    ttft_p95: BTreeMap<String, f64>,
    /// Requests that finished, and all.
    finished: BTreeMap<String, [u64; 2]>,
}

/// The effect of one client's flood on the others: on those that have a p95 without it.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Requests of all clients, that of the flood too.
    pub requests: u64,
    /// Requests of the others.
    pub others: u64,
    /// The part of them that was served to its end.
    pub others_finished: u64,
    /// The p95 of TTFT with the flood as a multiple of that without it: of the client in the middle.
    pub median: f64,
    /// The same of the worst client.
    pub worst: f64,
}

impl Clients {
    /// Simulates them with these words: the workload, and further ones.
    ///
    /// # Errors
    /// As the simulation has them.
    pub fn simulated(words: &str) -> Result<Self> {
        let report = report(words)?;
        let mut clients = Self::default();
        for tenant in report["tenants"].as_array().context("no tenants")? {
            let name = tenant["name"].as_str().context("no name")?;
            let count = |key: &str| tenant[key].as_u64().context("no count");
            let [finished, requests] = [count("finished")?, count("requests")?];
            clients
                .finished
                .insert(name.to_owned(), [finished, requests]);
            // Where nobody is served there is none.
            let p95 = tenant["ttft_ms"]["p95"].as_f64();
            if let Some(p95) = p95.filter(|_| requests >= REQUESTS_MIN) {
                clients.ttft_p95.insert(name.to_owned(), p95);
            }
        }
        Ok(clients)
    }

    /// Compares these clients, one of which floods, with the others `alone`.
    ///
    /// # Errors
    /// If none of the others has enough requests.
    pub fn beside(&self, alone: &Self) -> Result<Flood> {
        let slower = |(name, alone): (&String, &f64)| {
            // Of a client that is not served at all no multiple is too great.
            let flooded = self.ttft_p95.get(name).copied();
            flooded.unwrap_or(f64::INFINITY) / alone
        };
        let mut slower: Vec<f64> = alone.ttft_p95.iter().map(slower).collect();
        slower.sort_by(f64::total_cmp);
        let others = self.finished.iter();
        let others = others.filter(|(name, _)| alone.ttft_p95.contains_key(*name));
        let others: Vec<[u64; 2]> = others.map(|(_, counts)| *counts).collect();
        let few = "no client with enough requests";
        Ok(Flood {
            requests: self.finished.values().map(|[_, requests]| requests).sum(),
            others: others.iter().map(|[_, requests]| requests).sum(),
            others_finished: others.iter().map(|[finished, _]| finished).sum(),
            median: *slower.get(slower.len() / 2).context(few)?,
            worst: *slower.last().context(few)?,
        })
    }
}
