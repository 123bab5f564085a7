//! Durations: the configuration, a scenario and a policy's settings take the same texts, and refuse the
//! others alike.

use std::path::Path;

use pointsman_component::{SettingRange, SettingSchema, TimeUnit, configured};
use pointsman_testkit::Scenario;
use serde_json::{Map, Value};

use super::load;
use super::refused::refused;

/// Texts that are durations, with their microseconds.
const TAKEN: [(&str, u64); 8] = [
    ("40us", 40),
    ("250ms", 250_000),
    ("0.25s", 250_000),
    ("1.5s", 1_500_000),
    ("90s", 90_000_000),
    ("2min", 120_000_000),
    ("1.5h", 5_400_000_000),
    ("24h", 86_400_000_000),
];

const REFUSED: [&str; 9] = ["", "5", "s", "-1s", "1 s", ".5s", "1e3s", "0.5us", "1d"];

const EXPECTED: &str = "expected a time such as \"250ms\", \"1.5s\" or \"24h\": whole microseconds, \
                        in us, ms, s, min or h";

fn scenario(wait_max: &str) -> Result<Scenario, String> {
    let text = format!(
        "title = 't'\npolicy = {{}}\n[machine]\nwait-max = '{wait_max}'\n\
         [end]\nall-finished = true\n"
    );
    Scenario::parse(Path::new("a.toml"), &text).map_err(|error| error.to_string())
}

/// The microseconds of a setting that a policy gets.
fn setting(text: &str) -> Result<u64, String> {
    let described = SettingSchema {
        key: "pause".to_owned(),
        about: String::new(),
        values: SettingRange::Duration(TimeUnit::Micros, 0..=u64::MAX),
        default: None,
    };
    let written = Map::from_iter([("pause".to_owned(), Value::from(text))]);
    match configured(&[described], &written) {
        Ok(settings) => Ok(settings["pause"].as_u64().unwrap()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_configuration_a_scenario_and_a_setting_take_the_same_durations() {
    for (text, micros) in TAKEN {
        let config = load(&format!("[core]\nwait-max = '{text}'")).unwrap();
        assert_eq!(config.core.wait_max.0, micros, "{text}");
        scenario(text).unwrap();
        assert_eq!(setting(text), Ok(micros), "{text}");
    }
}

#[test]
fn a_configuration_a_scenario_and_a_setting_refuse_the_same_texts_in_the_same_words() {
    for text in REFUSED {
        let configured = load(&format!("[core]\nwait-max = '{text}'")).unwrap_err();
        for error in [configured.to_string(), scenario(text).unwrap_err()] {
            assert!(error.contains(":12: "), "{error}");
            assert!(error.ends_with(EXPECTED), "{error}");
        }
        let error = setting(text).unwrap_err();
        assert!(
            error.starts_with("`pause`: ") && error.ends_with(EXPECTED),
            "{error}"
        );
    }
}

#[test]
fn a_duration_in_a_former_spelling_is_refused_with_what_to_write() {
    refused(&[
        (
            "[core]\nqueue-max = 9\nretry-after-secs = 90",
            "pointsman.toml:3:1: core.retry-after-secs is a duration now: write retry-after = \"90s\"",
        ),
        (
            "[core]\nretry-after = 30",
            "pointsman.toml:2:15: core.retry-after: invalid type: integer `30`, expected a time such as \
             \"250ms\", \"1.5s\" or \"24h\": whole microseconds, in us, ms, s, min or h",
        ),
        (
            "[core]\nretry-after = '1.5s'",
            "pointsman.toml:2:15: core.retry-after: expected whole seconds, not \"1.5s\"",
        ),
        (
            "[core]\nretry-after = '2h'",
            "pointsman.toml:2:15: core.retry-after must be from 1s to 1h, not 2h",
        ),
        (
            "[policies.compile]\nprocessor-seconds = 300",
            "pointsman.toml:2:1: policies.compile.processor-seconds is a duration now: write \
             processor-time = \"5min\"",
        ),
        (
            "policies.compile = { wall-seconds = 45 }",
            "pointsman.toml:1:22: policies.compile.wall-seconds is a duration now: write wall-time = \
             \"45s\"",
        ),
        (
            "[policies.compile]\nwall-time = 600",
            "pointsman.toml:2:13: policies.compile.wall-time: 600 has no unit; write \"10min\"",
        ),
        (
            "[policies.compile]\nwall-time = '500ms'",
            "pointsman.toml:2:13: policies.compile.wall-time: 500ms is no whole number of seconds",
        ),
        (
            "[policies.compile]\nwall-time = '25h'",
            "pointsman.toml:2:13: policies.compile.wall-time must be from 1s to 24h, not 25h",
        ),
        (
            "[policies.compile]\nfunctions = '1s'",
            "pointsman.toml:2:13: policies.compile.functions: invalid type: string \"1s\", expected a \
             whole number",
        ),
    ]);
}
