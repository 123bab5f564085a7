//! `policy status`: the policies in force in a running server.

use std::time::Duration;

use anyhow::Result;
use pointsman_core::Hook;
use pointsman_notation::Time;
use serde_json::Value;

use super::Done;
use super::server::{Answer, Format, ServerArgs};
use super::table::Columns;
use pointsman_notation::grouped;

/// The most transactions shown.
const TRANSACTIONS: usize = 8;

/// Arguments of `policy status`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    Ok(match args.server.get("/admin/policies")? {
        Answer::Refused(why) => Done::not_good(format!("{why}\n")),
        Answer::Done(told) => Done::good(match args.server.format {
            Format::Json => format!("{told:#}\n"),
            Format::Human => text(&told),
        }),
    })
}

/// The answer of `/admin/policies`, for people.
pub(super) fn text(told: &Value) -> String {
    let mut text = hooks(told);
    text.push('\n');
    text.push_str(&policies(told));
    for (title, part) in [
        ("claimed and not held", denied(told)),
        ("canaries", canaries(told)),
        ("shadows", shadows(told)),
        ("quarantine", quarantine(told)),
        ("to be sorted out", trouble(told)),
        ("latest transactions", transactions(told)),
    ] {
        if !part.is_empty() {
            text.push_str(&format!("\n{title}\n{part}"));
        }
    }
    text
}

/// The holder of each hook, with which every order is answered.
fn hooks(told: &Value) -> String {
    let mut columns = Columns::new(&["decision", "policy", "digest", "by"]);
    for hook in Hook::ALL.map(Hook::as_str) {
        let holder = &told["hooks"][hook];
        let policy = holder["policy"].as_str().unwrap_or("built-in rule");
        let by = match holder["by"].as_str().unwrap_or("-") {
            "order" => "order; `policy bind` without a policy undoes it",
            "ejection" => "EJECTED by order; `policy bind` without a policy undoes it",
            "configuration" => "[policies.bind]",
            "folder" => "its file",
            "default" => "default",
            other => other,
        };
        columns.add([hook, policy, short(text_of(&holder["digest"])), by]);
    }
    columns.text()
}

/// The mode of a policy, with how far its probation is.
fn mode(policy: &Value, at: &Value) -> String {
    let mode = text_of(&policy["mode"]);
    let probation = &policy["running"]["probation"];
    let Some(questions) = probation["questions"].as_u64() else {
        return mode.to_owned();
    };
    let wanted = probation["questions_wanted"].as_u64().unwrap_or(0);
    let until = probation["until_micros"].as_u64().unwrap_or(0);
    let left = until.saturating_sub(at.as_u64().unwrap_or(0));
    let seconds = Duration::from_secs(left.div_ceil(1_000_000));
    let left = match left {
        0 => String::new(),
        _ => format!(", {} to go", Time(seconds)),
    };
    let (questions, wanted) = (grouped(questions), grouped(wanted));
    format!("{mode}, on probation ({questions} of {wanted} questions{left})")
}

/// Canaries, each with what was its to decide.
fn canaries(told: &Value) -> String {
    let canaries = list(&told["policies"]).filter_map(|policy| {
        let mode = policy["mode"].as_str()?.strip_prefix("canary ")?;
        let name = text_of(&policy["name"]);
        let seen = &policy["running"]["canary"];
        let count = |key: &str| seen[key].as_u64().unwrap_or(0);
        let (tried, others) = (count("tried"), count("others"));
        let share = match mode.split_once(" of ") {
            Some(_) => mode.to_owned(),
            None => format!("{mode} of tenants"),
        };
        let (of, all) = (grouped(tried), grouped(tried + others));
        let hint = match (tried, others) {
            (0, 1..) => {
                "; it tries nobody so far: `canary N% of sessions` or `of requests` divides otherwise"
            }
            (0, 0) => "; nothing was asked yet",
            _ => "",
        };
        Some(format!("  {name}: {share}, {of} of {all} requests asked about{hint}\n"))
    });
    canaries.collect()
}

/// The hooks that policies claim and do not hold.
fn denied(told: &Value) -> String {
    let policies = list(&told["policies"]);
    let denied = policies.flat_map(|policy| {
        let hooks = policy["denied"].as_object().into_iter().flatten();
        hooks
            .map(|(hook, why)| format!("  {}: {hook} {}\n", text_of(&policy["name"]), text_of(why)))
    });
    denied.collect()
}

fn policies(told: &Value) -> String {
    let mut columns = Columns::new(&[
        "policy",
        "mode",
        "decides",
        "generation",
        "answers",
        "refused",
        "faults",
        "p99",
    ]);
    for policy in list(&told["policies"]) {
        let running = &policy["running"];
        let held = words(&policy["holds"]);
        let sum = |of: &Value| {
            let counts = of.as_object().into_iter().flatten();
            let total: u64 = counts.filter_map(|(_, count)| count.as_u64()).sum();
            grouped(total)
        };
        let hooks = running["latency_nanos"].as_object().into_iter().flatten();
        let p99 = hooks.filter_map(|(_, spread)| spread["p99"].as_u64()).max();
        columns.add([
            text_of(&policy["name"]),
            &mode(policy, &told["at_micros"]),
            if held.is_empty() { "-" } else { &held },
            &running["generation"]
                .as_u64()
                .map_or("-".to_owned(), grouped),
            &sum(&running["answers"]),
            &sum(&running["refusals"]),
            &sum(&running["faults"]),
            &measured(p99.map(Duration::from_nanos)),
        ]);
    }
    columns.text()
}

fn shadows(told: &Value) -> String {
    let mut columns = Columns::new(&[
        "policy",
        "decision",
        "compared",
        "agreement",
        "but for fallbacks",
        "dropped",
    ]);
    for shadow in list(&told["shadows"]) {
        for (hook, seen) in shadow["hooks"].as_object().into_iter().flatten() {
            let count = |key: &str| seen[key].as_u64().unwrap_or(0);
            let share = share(seen).unwrap_or("-".to_owned());
            columns.add([
                text_of(&shadow["policy"]),
                hook,
                &grouped(count("compared")),
                &share,
                &grouped(count("fallbacks")),
                &grouped(shadow["dropped"].as_u64().unwrap_or(0)),
            ]);
        }
    }
    columns.unless_empty()
}

/// The share of the compared decisions in which a shadow agrees; absent: none was compared.
pub(super) fn share(seen: &Value) -> Option<String> {
    let count = |key: &str| seen[key].as_u64().unwrap_or(0);
    let permille = (count("agreed") * 1000).checked_div(count("compared"))?;
    Some(format!("{}.{} %", permille / 10, permille % 10))
}

fn quarantine(told: &Value) -> String {
    let mut columns = Columns::new(&["policy", "fingerprint", "why"]);
    for entry in list(&told["quarantine"]) {
        columns.add([
            text_of(&entry["name"]),
            short(text_of(&entry["fingerprint"])),
            first_line(&entry["why"]),
        ]);
    }
    columns.unless_empty()
}

fn trouble(told: &Value) -> String {
    let refused = list(&told["refused"]).map(|refused| {
        let name = text_of(&refused["name"]);
        let decides = list(&told["policies"])
            .find(|it| it["name"] == name && list(&it["holds"]).next().is_some());
        let what = match decides.map(|it| text_of(&it["source"]["kind"])) {
            Some("embedded") => {
                format!("the newest file of {name} is refused, the embedded version decides")
            }
            Some(_) => format!("the newest file of {name} is refused, the version before decides"),
            None => format!("{name} is not in force"),
        };
        let (step, why) = (text_of(&refused["step"]), first_line(&refused["why"]));
        format!("  {what}: {step}: {why}\n")
    });
    let conflicts = list(&told["conflicts"]).map(|clash| {
        let policies = words(&clash["policies"]);
        format!(
            "  {}: {} ({policies})\n",
            text_of(&clash["hook"]),
            text_of(&clash["kind"])
        )
    });
    let problem = told["state"]["problem"].as_str();
    let problem = problem.map(|problem| format!("  {problem}\n"));
    refused.chain(conflicts).chain(problem).collect()
}

fn transactions(told: &Value) -> String {
    let mut columns = Columns::new(&["number", "policy", "outcome", "detail", "driver held"]);
    let newest: Vec<&Value> = list(&told["transactions"]).collect();
    for done in newest.iter().rev().take(TRANSACTIONS) {
        let detail = match (done["step"].as_str(), done["why"].as_str()) {
            (Some(step), Some(_)) => format!("{step}: {}", first_line(&done["why"])),
            (None, Some(_)) => first_line(&done["why"]).to_owned(),
            (_, None) => words(&done["hooks"]),
        };
        let pause = done["pause_micros"].as_u64();
        columns.add([
            &done["number"].as_u64().map_or("-".to_owned(), grouped),
            text_of(&done["policy"]),
            text_of(&done["outcome"]),
            &detail,
            &measured(pause.map(Duration::from_micros)),
        ]);
    }
    columns.unless_empty()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> String {
    let words: Vec<&str> = list(value).filter_map(Value::as_str).collect();
    words.join(", ")
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// The first line of a fault's message; `policy dump` shows the backtrace.
fn first_line(value: &Value) -> &str {
    text_of(value).lines().next().unwrap_or("")
}

/// The beginning of a digest or a fingerprint, by which people tell them apart.
pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// A measured time, or a dash where there is none.
fn measured(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{:.1}", Time(time)))
}

/// The holders after an order, or the reason why the order was not carried out.
pub(super) fn after(server: &ServerArgs, answer: Answer) -> Done {
    match (answer, server.format) {
        (Answer::Refused(why), Format::Human) => Done::not_good(format!("not done: {why}\n")),
        (Answer::Refused(why), Format::Json) => {
            Done::not_good(format!("{:#}\n", serde_json::json!({ "refused": why })))
        }
        (Answer::Done(told), Format::Human) => {
            let trials = canaries(&told);
            let trials = match trials.is_empty() {
                true => trials,
                false => format!("\ncanaries\n{trials}"),
            };
            Done::good(hooks(&told) + &trials)
        }
        (Answer::Done(told), Format::Json) => Done::good(format!("{told:#}\n")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::trouble;

    #[test]
    fn a_refused_file_whose_policy_decides_is_not_called_out_of_force() {
        let refused = |name: &str| json!({"name": name, "step": "validate", "why": "no\nmore"});
        let policy = |name: &str, kind: &str, holds: Value| {
            let source = json!({ "kind": kind });
            json!({"name": name, "source": source, "holds": holds})
        };
        let told = json!({
            "refused": [refused("aging"), refused("gone"), refused("idle"), refused("mine")],
            "policies": [
                policy("aging", "embedded", json!(["priority"])),
                policy("idle", "file", json!([])),
                policy("mine", "last-good", json!(["routing"])),
            ],
        });
        let expected = [
            "  the newest file of aging is refused, the embedded version decides: validate: no",
            "  gone is not in force: validate: no",
            "  idle is not in force: validate: no",
            "  the newest file of mine is refused, the version before decides: validate: no",
        ];
        assert_eq!(trouble(&told).lines().collect::<Vec<_>>(), expected);
    }
}
