//! Tenants in the format of ServeGen (Alibaba), cut to a line of JSON for each client: its rate and
//! the spread of its gaps in each ten minutes, and the quantiles of its prompt and answer lengths.
//!
//! Each client is a tenant with draws of its own, so that one client's rate moves no other's
//! requests.

use pointsman_core::Micros;
use serde::Deserialize;

use super::{Arrival, Listed, PromptText, Roll, TraceError};
use crate::draws::Draws;
use crate::numbers::{float_len, from_secs, whole_at_least};

/// The requests to make of a file of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ServegenPlan {
    /// The seed of all draws.
    pub seed: u64,
    /// Requests in a second of all clients together, over the whole time; absent: as many as the
    /// clients had.
    pub rate: Option<f64>,
    /// The length of the part that is taken, from the beginning, in seconds.
    pub secs: f64,
    /// A client that sends more than it had: its place in the file, and how many times as much. 0:
    /// nothing.
    pub flood: Option<(u32, f64)>,
}

/// A client's line.
#[derive(Debug, Deserialize)]
struct Client {
    client: u64,
    /// Start in seconds, rate, coefficient of variation, distribution, shape and scale of gaps.
    slots: Vec<(f64, f64, f64, Gaps, f64, f64)>,
    input_tokens_q: Vec<f64>,
    output_tokens_q: Vec<f64>,
}

/// A distribution of the gaps between requests.
#[derive(Clone, Copy, Debug, Deserialize)]
enum Gaps {
    Gamma,
    Weibull,
}

/// The length of a slot in seconds.
const SLOT_SECS: f64 = 600.0;

/// Makes the requests of a file of clients.
///
/// # Errors
/// If a line is not of the format, or no request comes of it.
pub fn servegen(text: &str, plan: &ServegenPlan) -> Result<Listed, TraceError> {
    let clients = parse(text)?;
    let slower = match plan.rate {
        Some(rate) => mean_rate(&clients, plan.secs) / rate.max(1e-9),
        None => 1.0,
    };
    let mut arrivals = Vec::new();
    for (place, client) in (0..).zip(&clients) {
        let flood = plan.flood.filter(|(flooding, _)| *flooding == place);
        let more = flood.map_or(1.0, |(_, more)| more);
        if more > 0.0 {
            let mut draws = Draws::part(plan.seed, u64::from(place));
            client.ask((place, slower / more), plan.secs, &mut draws, &mut arrivals);
        }
    }
    if arrivals.is_empty() {
        return Err(TraceError::Empty);
    }
    let names = clients.iter().map(|it| format!("client-{}", it.client));
    Ok(Listed::new(Roll::of_tenants(names), arrivals))
}

fn parse(text: &str) -> Result<Vec<Client>, TraceError> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let client = |(idx, line): (usize, &str)| {
        let client: Client =
            serde_json::from_str(line).map_err(|why| TraceError::line(idx, why))?;
        if client.input_tokens_q.is_empty() || client.output_tokens_q.is_empty() {
            return Err(TraceError::line(idx, "there are no quantiles of lengths"));
        }
        Ok(client)
    };
    lines.map(client).collect()
}

/// Requests in a second of all clients together.
fn mean_rate(clients: &[Client], secs: f64) -> f64 {
    let slots = clients.iter().flat_map(|client| &client.slots);
    let requests = slots.map(|(start, rate, ..)| {
        let taken = (secs - start).clamp(0.0, SLOT_SECS);
        rate * taken
    });
    requests.sum::<f64>() / secs.max(1e-9)
}

impl Client {
    /// Adds the client's requests, with gaps so many times as long as they were.
    fn ask(
        &self,
        (place, slower): (u32, f64),
        secs: f64,
        draws: &mut Draws,
        arrivals: &mut Vec<Arrival>,
    ) {
        for &(start, rate, _, gaps, shape, scale) in &self.slots {
            if rate <= 0.0 {
                continue;
            }
            let end = (start + SLOT_SECS).min(secs);
            let mut at = start;
            loop {
                let gap = match gaps {
                    Gaps::Gamma => draws.gamma(shape, scale),
                    Gaps::Weibull => draws.weibull(shape, scale),
                };
                // Where requests come in one instant there is no end of them.
                at += (gap * slower).max(1e-6);
                if at >= end {
                    break;
                }
                let prompt = whole_at_least(quantile(&self.input_tokens_q, draws.unit()), 1);
                let output = whole_at_least(quantile(&self.output_tokens_q, draws.unit()), 1);
                let at: Micros = from_secs(at);
                let arrival = Arrival::new(at, PromptText::unlike_others(prompt), output);
                arrivals.push(Arrival {
                    tenant: place,
                    ..arrival
                });
            }
        }
    }
}

/// The value at a share of a distribution whose quantiles are in the middle of equal parts.
fn quantile(quantiles: &[f64], share: f64) -> f64 {
    let place = share * float_len(quantiles.len()) - 0.5;
    let last = quantiles.len() - 1;
    let below = usize::try_from(crate::numbers::whole(place - 0.5)).unwrap_or(0);
    let below = below.min(last);
    let above = (below + 1).min(last);
    let part = (place - float_len(below)).clamp(0.0, 1.0);
    quantiles[below] + (quantiles[above] - quantiles[below]) * part
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    const CLIENTS: &str = r#"
{"client":4,"slots":[[0,2.0,1.0,"Gamma",1.0,0.5],[600,1.0,1.0,"Weibull",1.0,1.0]],"input_tokens_q":[10,20,30,40],"output_tokens_q":[5]}
{"client":9,"slots":[[600,4.0,1.0,"Gamma",0.5,0.5]],"input_tokens_q":[100],"output_tokens_q":[7]}
"#;

    fn counts(plan: &ServegenPlan) -> [usize; 2] {
        let mut made = servegen(CLIENTS, plan).unwrap();
        let arrivals: Vec<Arrival> = std::iter::from_fn(|| made.pop()).collect();
        assert!(arrivals.iter().is_sorted_by_key(|arrival| arrival.at));
        [0, 1].map(|tenant| arrivals.iter().filter(|it| it.tenant == tenant).count())
    }

    fn plan() -> ServegenPlan {
        ServegenPlan {
            seed: 1,
            rate: None,
            secs: 1200.0,
            flood: None,
        }
    }

    #[test]
    fn each_client_sends_at_its_rate() {
        let [first, second] = counts(&plan());
        assert!((1600..2000).contains(&first), "{first} of about 1800");
        assert!((2100..2700).contains(&second), "{second} of about 2400");
    }

    #[test]
    fn rates_are_scaled_together_and_a_flooding_client_alone() {
        let scaled = ServegenPlan {
            rate: Some(0.35),
            ..plan()
        };
        let [first, second] = counts(&scaled);
        assert!((130..230).contains(&first), "{first} of about 180");
        let flood = ServegenPlan {
            flood: Some((1, 10.0)),
            ..scaled.clone()
        };
        let flooded = counts(&flood);
        assert_eq!(flooded[0], first, "the others send what they sent");
        assert!(flooded[1] > 6 * second, "{flooded:?}");
        let none = ServegenPlan {
            flood: Some((1, 0.0)),
            ..scaled
        };
        assert_eq!(counts(&none), [first, 0]);
    }

    #[test]
    fn lengths_are_between_the_quantiles() {
        let quantiles = [10.0, 20.0, 30.0, 40.0];
        let at = [0.0, 0.125, 0.25, 0.5, 0.875, 1.0].map(|share| quantile(&quantiles, share));
        assert_eq!(at, [10.0, 10.0, 15.0, 25.0, 40.0, 40.0]);
    }

    #[test]
    fn a_line_that_is_no_client_is_named() {
        let said = servegen("\n{\"client\":1}", &plan())
            .unwrap_err()
            .to_string();
        assert!(said.starts_with("line 2: missing field `slots`"), "{said}");
    }
}
