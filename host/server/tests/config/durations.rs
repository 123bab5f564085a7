//! Durations: the configuration and a scenario take the same texts, and refuse the others alike.
//!
//! No flag of a command line and no key of a sidecar is a duration.

use std::path::Path;

use pointsman_testkit::Scenario;

use super::load;

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

#[test]
fn a_configuration_and_a_scenario_take_the_same_durations() {
    for (text, micros) in TAKEN {
        let config = load(&format!("[core]\nwait-max = '{text}'")).unwrap();
        assert_eq!(config.core.wait_max.0, micros, "{text}");
        scenario(text).unwrap();
    }
}

#[test]
fn a_configuration_and_a_scenario_refuse_the_same_texts_in_the_same_words() {
    for text in REFUSED {
        let configured = load(&format!("[core]\nwait-max = '{text}'")).unwrap_err();
        for error in [configured.to_string(), scenario(text).unwrap_err()] {
            assert!(error.contains(":12: "), "{error}");
            assert!(error.ends_with(EXPECTED), "{error}");
        }
    }
}
