//! SIGHUP: the configuration is read again, and what can be is put in force while the server runs.
//!
//! All of it, or nothing: a file that cannot be used changes nothing, and the log says why. A key in whose place a flag
//! stands comes into force neither then nor later, and is not told of.
//!
//! # Not here
//! Servers elsewhere, which `backends` attaches and removes, and for whose sake it follows the file by itself too;
//! certificates (`pointsman-http`) and policies (`pointsman-lifecycle`), whose files are watched. Where those are is
//! `[tls]`, which a restart puts in force.

use std::collections::BTreeSet;

use pointsman_driver::operator::TenantTerms;

use pointsman_config::{Config, Flags, TenantConfig, WrittenKeys};

/// The keys that come into force when the file is read again.
const RELOADED: [&str; 11] = [
    "admin.key",
    "admin.read-key",
    "backends",
    "hints.label-keys",
    "hints.priority-max",
    "http.cors-origins",
    "http.metrics-public",
    "keys",
    "log.access",
    "log.filter",
    "tenants",
];

/// The changed keys of a configuration, by what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedKeys {
    /// The keys that are in force.
    pub in_force: BTreeSet<String>,
    /// The keys that a restart puts in force.
    pub at_restart: BTreeSet<String>,
}

impl ChangedKeys {
    /// The keys in force that differ between two editions of a file, and the others in which the later one differs
    /// from `started`, the edition of the start.
    pub(crate) fn between(before: &Config, after: &Config, started: &WrittenKeys) -> Self {
        let is_reloaded = |key: &String| RELOADED.contains(&key.as_str());
        let counts = |key: &String| !is_replaced(key, &after.flags);
        let mut in_force = before.written.changed(&after.written);
        in_force.retain(|key| is_reloaded(key) && counts(key));
        let mut at_restart = started.changed(&after.written);
        at_restart.retain(|key| !is_reloaded(key) && counts(key));
        Self {
            in_force,
            at_restart,
        }
    }
}

/// True if one of these flags stands in the place of a key, whatever a file says.
fn is_replaced(key: &str, flags: &Flags) -> bool {
    let has_fleet = flags.fleet.is_some();
    match key {
        "backends" => has_fleet || !flags.backends.is_empty(),
        "devices" => has_fleet,
        "executors" | "models" => has_fleet || !flags.models.is_empty(),
        "listen" => flags.listen.is_some(),
        "log.filter" => flags.log.is_some(),
        "log.format" => flags.log_format.is_some(),
        "policies.folder" => flags.policies.is_some(),
        "state-folder" => flags.state.is_some(),
        _ => has_fleet && key.starts_with("cpu."),
    }
}

/// The terms of all tenants of `after`, and of those that `before` had: a tenant that is no longer
/// named has the terms of one that never was.
pub(crate) fn tenant_terms(before: &Config, after: &Config) -> Vec<TenantTerms> {
    let is_known = |name: &str| after.tenants.iter().any(|known| known.name == name);
    let gone = before
        .tenants
        .iter()
        .filter(|tenant| !is_known(&tenant.name));
    let gone = gone.map(|tenant| terms(&TenantConfig::new(&tenant.name)));
    gone.chain(after.tenants.iter().map(terms)).collect()
}

/// The terms of a tenant that policies are told.
pub(crate) fn terms(tenant: &TenantConfig) -> TenantTerms {
    TenantTerms {
        name: tenant.name.clone(),
        weight: tenant.weight,
        tokens_per_minute: tenant.tokens_per_minute,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn config(text: &str) -> Config {
        Config::of_text(text).unwrap()
    }

    #[test]
    fn keys_are_told_that_wait_for_a_restart() {
        let before = config("");
        let after = config(
            "drain = '1s'\n[core]\nqueue-max = 1\n[hints]\nlabel-keys = ['a']\nlabels-max = 3\n\
             [[keys]]\nkey = 'k'\n[tls]\ncertificate = 'c.pem'\nkey = 'k.pem'",
        );
        let changed = ChangedKeys::between(&before, &after, &before.written);
        let in_force: Vec<_> = changed.in_force.iter().collect();
        assert_eq!(in_force, ["hints.label-keys", "keys"]);
        let at_restart: Vec<_> = changed.at_restart.iter().collect();
        let expected = [
            "core.queue-max",
            "drain",
            "hints.labels-max",
            "tls.certificate",
            "tls.key",
        ];
        assert_eq!(at_restart, expected);
    }

    #[test]
    fn keys_wait_for_a_restart_until_they_are_as_they_were_at_the_start() {
        let start = config("drain = '1s'");
        let one = config("drain = '2s'");
        let two = config("drain = '2s'\n[[keys]]\nkey = 'k'");
        for (before, after, in_force, at_restart) in [
            (&start, &one, vec![], vec!["drain"]),
            (&one, &two, vec!["keys"], vec!["drain"]),
            (&two, &two, vec![], vec!["drain"]),
            (&two, &start, vec!["keys"], vec![]),
        ] {
            let changed = ChangedKeys::between(before, after, &start.written);
            assert!(changed.in_force.iter().eq(in_force), "{changed:?}");
            assert!(changed.at_restart.iter().eq(at_restart), "{changed:?}");
        }
    }

    #[test]
    fn backends_are_in_force_unless_flags_stand_in_their_place() {
        let before = config("");
        let mut after = config("[[backends]]\nurl = 'http://one:80'");
        let changed = ChangedKeys::between(&before, &after, &before.written);
        assert!(changed.in_force.iter().eq(["backends"]), "{changed:?}");
        after.flags.backends = vec!["http://two:80".parse().unwrap()];
        let changed = ChangedKeys::between(&before, &after, &before.written);
        assert_eq!(changed, ChangedKeys::default());
    }

    #[test]
    fn a_key_in_whose_place_a_flag_stands_is_not_told_of() {
        let before = config("");
        let mut after = config(
            "listen = ':80'\nstate-folder = 'state'\n[cpu]\nthreads = 1\n[[devices]]\nname = 'more'\n\
             [[models]]\nname = 'demo'\n[[executors]]\nname = 'one'\nmodels = ['demo']\n\
             [[backends]]\nurl = 'http://one:80'\n[policies]\nfolder = '/'\n\
             [log]\naccess = false\nfilter = 'debug'\nformat = 'json'",
        );
        let all = [
            "backends",
            "cpu.threads",
            "devices",
            "executors",
            "listen",
            "log.access",
            "log.filter",
            "log.format",
            "models",
            "policies.folder",
            "state-folder",
        ];
        for (line, replaced) in [
            ("--log-format human", &["log.format"][..]),
            ("--listen 127.0.0.1:0", &["listen"]),
            ("--model tiny=models/tiny", &["executors", "models"]),
            ("--backend http://two:80", &["backends"]),
            (
                "--fleet 2",
                &["backends", "cpu.threads", "devices", "executors", "models"],
            ),
            ("--policies /", &["policies.folder"]),
            ("--state /", &["state-folder"]),
            ("--log info", &["log.filter"]),
        ] {
            let words = format!("pointsman serve {line}");
            let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
            let CliCommand::Serve(args) = cli.command else {
                panic!("{line}");
            };
            after.flags = args.flags;
            let changed = ChangedKeys::between(&before, &after, &before.written);
            let told: Vec<&String> = changed.in_force.union(&changed.at_restart).collect();
            let mut expected = all.to_vec();
            expected.retain(|key| !replaced.contains(key));
            assert_eq!(told, expected, "{line}");
        }
    }

    #[test]
    fn a_tenant_that_is_no_longer_named_has_the_terms_of_any_other() {
        let tenant = |name: &str, weight| TenantTerms {
            name: name.to_owned(),
            weight,
            tokens_per_minute: None,
        };
        let before = config("[[tenants]]\nname = 'a'\nweight = 5\n[[tenants]]\nname = 'b'");
        let after = config("[[tenants]]\nname = 'b'\nweight = 2");
        let mut terms = tenant_terms(&before, &after);
        terms.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(
            terms,
            [tenant("a", 1), tenant("b", 2), tenant("default", 1)]
        );
    }
}
