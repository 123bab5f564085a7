//! `policy bind|mode|promote|rollback|eject|release`: orders to a running server.

use anyhow::Result;
use pointsman_core::Hook;
use pointsman_policy::Mode;
use serde_json::{Value, json};

use super::server::{Answer, ServerArgs};
use super::status::short;
use super::{Done, status};

/// Arguments of `policy bind`.
#[derive(Clone, Debug, clap::Args)]
pub struct Bind {
    /// The decision to bind
    #[arg(value_parser = hook)]
    hook: Hook,
    /// The policy that gets the decision; not given: forget the order about the decision
    policy: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `policy mode`.
#[derive(Clone, Debug, clap::Args)]
pub struct SetMode {
    /// The policy's name
    policy: String,
    /// The mode: enforce, shadow, or canary with a share such as `canary 10%` (of the tenants),
    /// `canary 10% of sessions` or `canary 10% of requests`
    #[arg(num_args = 1..=4, required = true)]
    mode: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `policy promote` and `policy rollback`.
#[derive(Clone, Debug, clap::Args)]
pub struct About {
    /// The policy's name
    policy: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `policy eject`.
#[derive(Clone, Debug, clap::Args)]
pub struct Eject {
    /// The decisions to put back; none given: all
    #[arg(value_parser = hook)]
    hooks: Vec<Hook>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `policy release`.
#[derive(Clone, Debug, clap::Args)]
pub struct Release {
    /// The version: the name of its policy, or the beginning of its fingerprint or digest, as `policy
    /// status` shows them
    version: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn bind(args: &Bind) -> Result<Done> {
    let body = json!({"hook": args.hook.as_str(), "policy": args.policy});
    let answer = args.server.post("/admin/bind", &body)?;
    Ok(status::after(&args.server, answer))
}

pub(super) fn mode(args: &SetMode) -> Result<Done> {
    let mode: Mode = args.mode.join(" ").parse()?;
    let body = json!({"mode": mode.to_string()});
    let path = format!("/admin/policies/{}/mode", escaped(&args.policy));
    let answer = args.server.post(&path, &body)?;
    Ok(status::after(&args.server, answer))
}

pub(super) fn promote(args: &About) -> Result<Done> {
    about(args, "promote")
}

pub(super) fn rollback(args: &About) -> Result<Done> {
    about(args, "rollback")
}

fn about(args: &About, order: &str) -> Result<Done> {
    let path = format!("/admin/policies/{}/{order}", escaped(&args.policy));
    let answer = args.server.post(&path, &json!({}))?;
    Ok(status::after(&args.server, answer))
}

pub(super) fn eject(args: &Eject) -> Result<Done> {
    let hooks: Vec<&str> = args.hooks.iter().map(|hook| hook.as_str()).collect();
    let body = if hooks.is_empty() {
        json!({})
    } else {
        json!({ "hooks": hooks })
    };
    let answer = args.server.post("/admin/eject", &body)?;
    Ok(status::after(&args.server, answer))
}

pub(super) fn release(args: &Release) -> Result<Done> {
    let told = match args.server.get("/admin/policies")? {
        Answer::Done(told) => told,
        refused @ Answer::Refused(_) => return Ok(status::after(&args.server, refused)),
    };
    let answer = match quarantined(&told, &args.version) {
        Ok(fingerprint) => {
            let path = format!("/admin/quarantine/{}/release", escaped(&fingerprint));
            args.server.post(&path, &json!({}))?
        }
        Err(why) => Answer::Refused(why),
    };
    Ok(status::after(&args.server, answer))
}

/// The fingerprint of the one version in quarantine that `which` names or begins, by what the server
/// `told`. Of several versions of the policy `which` it is the one that is refused: the folder has it.
fn quarantined(told: &Value, which: &str) -> Result<String, String> {
    let is_meant = |entry: &&Value| {
        let begins = |key: &str| {
            let digest = entry[key].as_str().unwrap_or("");
            !which.is_empty() && digest.starts_with(which)
        };
        entry["name"] == which || begins("fingerprint") || begins("digest")
    };
    let rows = |key: &str| told[key].as_array().map_or(&[][..], Vec::as_slice);
    let listed = rows("quarantine");
    let mut meant: Vec<&Value> = listed.iter().filter(is_meant).collect();
    let refused = rows("refused").iter().find(|it| it["name"] == which);
    if let (2.., Some(refused)) = (meant.len(), refused) {
        let is_there =
            |entry: &&Value| entry["name"] == which && entry["digest"] == refused["digest"];
        if meant.iter().any(is_there) {
            meant.retain(is_there);
        }
    }
    let shown = |entries: &[&Value]| {
        let entries = entries.iter().map(|entry| {
            let short = short(entry["fingerprint"].as_str().unwrap_or(""));
            format!("{short} ({})", entry["name"].as_str().unwrap_or(""))
        });
        entries.collect::<Vec<_>>().join(", ")
    };
    match (&meant[..], listed) {
        ([one], _) => Ok(one["fingerprint"].as_str().unwrap_or("").to_owned()),
        ([], []) => Err("no version is in quarantine".to_owned()),
        ([], listed) => {
            let all: Vec<&Value> = listed.iter().collect();
            let there = shown(&all);
            Err(format!(
                "no version in quarantine is {which}; there are: {there}"
            ))
        }
        (several, _) => Err(format!("{which} may be one of {}", shown(several))),
    }
}

fn hook(text: &str) -> Result<Hook, String> {
    Hook::named(text).ok_or_else(|| {
        let known: Vec<&str> = Hook::ALL.iter().map(|hook| hook.as_str()).collect();
        format!("there are: {}", known.join(", "))
    })
}

/// A name escaped for use as a part of a path.
pub(super) fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_in_quarantine_is_named_or_begun() {
        let entry = |name: &str, digit: &str| {
            let fingerprint = digit.repeat(64);
            json!({"name": name, "fingerprint": fingerprint, "digest": "d".repeat(64)})
        };
        let listed = json!([entry("one", "1"), entry("two", "2"), entry("two", "3")]);
        let told = json!({ "quarantine": listed });
        let meant = |which: &str| quarantined(&told, which);
        assert_eq!(meant("one"), Ok("1".repeat(64)));
        assert_eq!(meant("22"), Ok("2".repeat(64)));
        let two = "two may be one of 222222222222 (two), 333333333333 (two)";
        assert_eq!(meant("two"), Err(two.to_owned()));
        assert!(meant("dd").unwrap_err().starts_with("dd may be one of"));
        let there = "no version in quarantine is 4; there are: 111111111111 (one), ";
        assert!(meant("4").unwrap_err().starts_with(there));
        assert!(meant("").is_err());
        let none = Err("no version is in quarantine".to_owned());
        assert_eq!(quarantined(&json!({"quarantine": []}), "one"), none);
    }

    #[test]
    fn of_several_versions_of_a_policy_the_one_that_the_folder_has_is_meant() {
        let entry = |name: &str, digit: &str, code: &str| {
            let fingerprint = digit.repeat(64);
            json!({"name": name, "fingerprint": fingerprint, "digest": code.repeat(64)})
        };
        let told = |code: &str| {
            json!({
                "quarantine": [
                    entry("one", "1", "a"),
                    entry("one", "2", "b"),
                    entry("one", "3", "c"),
                    entry("one", "4", "c"),
                    entry("two", "5", "a"),
                ],
                "refused": [{"name": "one", "digest": code.repeat(64)}],
            })
        };
        assert_eq!(quarantined(&told("a"), "one"), Ok("1".repeat(64)));
        assert_eq!(quarantined(&told("b"), "one"), Ok("2".repeat(64)));
        let both = "one may be one of 333333333333 (one), 444444444444 (one)";
        assert_eq!(quarantined(&told("c"), "one"), Err(both.to_owned()));
        let error = quarantined(&told("e"), "one").unwrap_err();
        assert_eq!(error.matches("(one)").count(), 4, "{error}");
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(escaped("my policy/ä"), "my%20policy%2F%C3%A4");
        assert_eq!(escaped("memory-aware_2.0~x"), "memory-aware_2.0~x");
    }

    #[test]
    fn a_hook_is_called_as_in_the_interface() {
        assert_eq!(hook("routing"), Ok(Hook::Routing));
        assert!(
            hook("rooting")
                .unwrap_err()
                .contains("admission, priority, routing")
        );
    }
}
