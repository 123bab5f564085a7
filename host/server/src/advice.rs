//! Things in a configuration that work and are probably not meant so: told at the start, and by
//! `serve --check`.

use std::net::SocketAddr;

use pointsman_lifecycle::report::{PolicyReport, ReconcilerReport};
use pointsman_notation::nearest;
use serde_json::Value;

use crate::embedded;
use pointsman_config::Config;

/// A setting that means the same in several policies, and these.
const SHARED: (&str, [&str; 2]) = ("affinity-bonus", ["aging", "memory-aware"]);

/// The advice about a configuration with these policies, a sentence each.
pub(crate) fn advice(config: &Config, report: &ReconcilerReport) -> Vec<String> {
    let settings = config.policies.settings.iter();
    let settings = settings.filter_map(|(name, _)| unknown_settings(name, report));
    let apart = drifted_apart(report);
    open_doors(config)
        .into_iter()
        .chain(settings)
        .chain(apart)
        .collect()
}

/// Addresses that others reach and that ask nobody for a key.
fn open_doors(config: &Config) -> Vec<String> {
    let mut open = Vec::new();
    let is_open = |addr: &SocketAddr| !addr.ip().is_loopback();
    if is_open(&config.listen) && config.keys.is_empty() {
        open.push(format!(
            "whoever reaches {} may use the models, as the tenant `default`: give clients keys, [[keys]], or listen on \
             127.0.0.1",
            config.listen
        ));
    }
    let admin = config.admin.listen.filter(is_open);
    if let Some(addr) = admin.filter(|_| config.admin.key.is_none()) {
        open.push(format!(
            "whoever reaches {addr} administers the host: set admin.key, or let admin.listen be on 127.0.0.1"
        ));
    }
    open
}

/// The advice about settings of a policy that is not there; absent: it is.
fn unknown_settings(name: &str, report: &ReconcilerReport) -> Option<String> {
    let embedded = embedded::built_policies().unwrap_or_default().iter();
    let known = report.policies.iter().map(|policy| policy.name.as_str());
    let refused = report.refused.iter().map(|(name, _)| name.as_str());
    let mut known: Vec<&str> = known
        .chain(refused)
        .chain(embedded.map(|policy| policy.name))
        .collect();
    known.sort_unstable();
    known.dedup();
    if known.contains(&name) {
        return None;
    }
    let meant = match nearest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("there are: {}", known.join(", ")),
    };
    Some(format!(
        "[policies.settings.{name}] is about no policy that is there; {meant} They wait for a file {name}.wasm"
    ))
}

/// The advice about a setting that policies in force have to agree on; absent: they do.
fn drifted_apart(report: &ReconcilerReport) -> Option<String> {
    let (key, names) = SHARED;
    let given = names.map(|name| {
        let in_force = |policy: &&PolicyReport| policy.name == name && !policy.held.is_empty();
        let policy = report.policies.iter().find(in_force)?;
        Some(policy.settings.get(key))
    });
    let [Some(one), Some(other)] = given else {
        return None;
    };
    let said = |value: Option<&Value>| value.map_or("not set".to_owned(), Value::to_string);
    (one != other).then(|| {
        format!(
            "{key} is {} for {} and {} for {}, and means the same in both: write it once, in [policies.settings.\"{}\"]",
            said(one),
            names[0],
            said(other),
            names[1],
            names.join(", "),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        advice(
            &Config::of_text(text).unwrap(),
            &ReconcilerReport::default(),
        )
    }

    #[test]
    fn addresses_that_others_reach_need_keys() {
        assert!(told("").is_empty());
        assert!(told("listen = ':80'\n[[keys]]\nkey = 'k'").is_empty());
        let open = told("listen = ':80'\n[admin]\nlisten = ':81'");
        assert!(open[0].starts_with("whoever reaches [::]:80 may use the models"));
        assert!(open[1].starts_with("whoever reaches [::]:81 administers the host"));
        assert_eq!(open.len(), 2);
    }

    #[test]
    fn settings_of_no_policy_are_told_with_the_name_that_was_probably_meant() {
        let wrong = told("[policies.settings.memory-awre]\naffinity-bonus = 1");
        let meant = "[policies.settings.memory-awre] is about no policy that is there; did you mean \
                     `memory-aware`?";
        assert!(wrong[0].starts_with(meant), "{wrong:?}");
        assert!(told("[policies.settings.aging]\naffinity-bonus = 1").is_empty());
    }
}
