//! `policy bind|mode|promote|rollback|eject|release`: orders to a running server.

use anyhow::Result;
use pointsman_core::Hook;
use pointsman_policy::{Digest, Mode};
use serde_json::json;

use super::server::ServerArgs;
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
    /// The mode: enforce, shadow, or canary with a share such as `canary 10%`
    #[arg(num_args = 1..=2, required = true)]
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
    /// The version's fingerprint, as `policy status` shows it
    fingerprint: Digest,
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
    let path = format!("/admin/quarantine/{}/release", args.fingerprint);
    let answer = args.server.post(&path, &json!({}))?;
    Ok(status::after(&args.server, answer))
}

fn hook(text: &str) -> Result<Hook, String> {
    Hook::named(text).ok_or_else(|| {
        let known: Vec<&str> = Hook::ALL.iter().map(|hook| hook.as_str()).collect();
        format!("there are: {}", known.join(", "))
    })
}

/// A name escaped for use as a part of a path.
fn escaped(name: &str) -> String {
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
