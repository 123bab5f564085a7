//! Policies and bounds of a journal's host as a scenario has them.

use pointsman_core::{Config, Micros};
use pointsman_journal::{PolicyRecord, Roster};
use serde_json::{Map, Value};

use super::names::{listed, quoted, timed};

/// A key of `[machine]`, and where its value is.
type Bound<T> = (&'static str, fn(&Config) -> T);

/// The policies in force, with their hooks and settings. What the others are for is lacking.
pub(super) fn policies(roster: &Roster, lacks: &mut Vec<String>) -> String {
    let tables = super::in_force(roster).map(|record| {
        let chains = roster.chains.iter();
        let held = chains.filter(|chain| chain.policies.first() == Some(&record.number));
        let hooks = listed(held.map(|chain| chain.hook.as_str().to_owned()));
        let state = record.state.as_ref();
        if state.is_some_and(|state| !state.0.is_empty()) {
            lacks.push(format!("the state of {}, which begins anew", record.name));
        }
        format!(
            "\n[policy.{}]\nhooks = {hooks}\n{}",
            key(&record.name),
            settings(record)
        )
    });
    let tables: String = tables.collect();
    let behind = roster.chains.iter().any(|chain| chain.policies.len() > 1);
    if behind {
        lacks.push("policies behind those in force, which answer when these fault".to_owned());
    }
    if tables.is_empty() {
        return "policy = {}\n".to_owned();
    }
    tables
}

fn settings(record: &PolicyRecord) -> String {
    let settings: Map<String, Value> = serde_json::from_str(&record.settings).unwrap_or_default();
    match toml::Table::try_from(settings) {
        Ok(table) if table.is_empty() => String::new(),
        Ok(table) => format!("settings = {}\n", toml::Value::Table(table)),
        Err(_unwritable) => "# its settings cannot be written in TOML\n".to_owned(),
    }
}

/// The bounds that are not the default ones.
pub(super) fn bounds(config: &Config) -> String {
    let plain = Config::default();
    let counts: [Bound<u32>; 13] = [
        ("queue-max", |it| it.queue_max),
        ("parking-max", |it| it.parking_max),
        ("executors-max", |it| it.executors_max),
        ("batch-max", |it| it.batch_max),
        ("overlaps-max", |it| it.overlaps_max),
        ("tier-blocks-max", |it| it.tier_blocks_max),
        ("attempts-max", |it| it.attempts_max),
        ("degraded-after", |it| it.degraded_after),
        ("down-after", |it| it.down_after),
        ("overtaken-max", |it| it.overtaken_max),
        ("tokenless-steps-max", |it| it.tokenless_steps_max),
        ("change-log-max", |it| it.change_log_max),
        ("completions-max", |it| it.completions_max),
    ];
    let times: [Bound<Micros>; 7] = [
        ("down-for", |it| it.down_for),
        ("wait-max", |it| it.wait_max),
        ("unserved-max", |it| it.unserved_max),
        ("unplaced-max", |it| it.unplaced_max),
        ("held-max", |it| it.held_max),
        ("evict-retry", |it| it.evict_retry),
        ("retry-after", |it| {
            Micros(u64::from(it.retry_after_secs) * 1_000_000)
        }),
    ];
    let counts = counts.iter().filter(|(_, of)| of(config) != of(&plain));
    let counts = counts.map(|(key, of)| format!("{key} = {}\n", of(config)));
    let times = times.iter().filter(|(_, of)| of(config) != of(&plain));
    let times = times.map(|(key, of)| format!("{key} = {}\n", timed(of(config))));
    let lines: String = counts.chain(times).collect();
    match lines.is_empty() {
        true => lines,
        false => format!("[machine]\n{lines}"),
    }
}

/// A key in TOML, bare where it can be.
fn key(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pointsman_journal::{Chain, ContentHash};
    use pointsman_testkit::Scenario;

    use super::*;

    #[test]
    fn settings_and_bounds_are_read_as_they_were() {
        let record = PolicyRecord {
            number: 3,
            name: "it's mine".into(),
            version: "1.0.0".into(),
            reasons: Vec::new(),
            digest: ContentHash([0; 32]),
            fingerprint: ContentHash([0; 32]),
            settings: r#"{"weights": {"a b": 2}, "say": "two\nlines", "of": [1.5, true]}"#.into(),
            limits: "{}".into(),
            generation: 1,
            code: None,
            state: None,
            saves: false,
            told: None,
        };
        let roster = Roster {
            policies: vec![record],
            chains: vec![Chain {
                hook: pointsman_core::Hook::Routing,
                policies: vec![3, 4],
            }],
        };
        let config = Config {
            queue_max: 7,
            down_for: Micros(1_500_000),
            ..Config::default()
        };
        let mut lacks = Vec::new();
        let text = format!("{}{}", policies(&roster, &mut lacks), bounds(&config));
        assert!(
            text.contains("[policy.\"it's mine\"]\nhooks = [\"routing\"]\nsettings = { "),
            "{text}"
        );
        assert!(
            text.ends_with("[machine]\nqueue-max = 7\ndown-for = \"1.5s\"\n"),
            "{text}"
        );
        assert_eq!(
            lacks,
            ["policies behind those in force, which answer when these fault"]
        );
        let whole = format!("title = \"t\"\n{text}[end]\nall-finished = true\n");
        Scenario::parse(Path::new("a.toml"), &whole).unwrap();
        let table: toml::Table = whole.parse().unwrap();
        let settings = &table["policy"]["it's mine"]["settings"];
        assert_eq!(settings["say"].as_str(), Some("two\nlines"));
        assert_eq!(settings["weights"]["a b"].as_integer(), Some(2));
    }
}
