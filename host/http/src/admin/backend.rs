//! The body of the order to add a server elsewhere: the table `[[backends]]` of the configuration as
//! JSON.

use std::time::Duration;

use pointsman_driver::provider::{ExecutorTerms, SLOTS_MAX};
use pointsman_executor::server::{SOFTWARE, ServerConfig, ServerKey, ServerUrl};
use serde_json::json;

use super::addition::{MODELS, each_once, take_name, terms, terms_properties};
use crate::error::ApiError;
use crate::fields::{Fields, Properties, mismatched_text};

/// The field that tells a server elsewhere from an engine.
pub(super) const URL: &str = "url";
/// Addresses without the parts that none of them may have.
const URL_PATTERN: &str =
    r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~/-]*)?$";
/// Visible ASCII characters.
const KEY_PATTERN: &str = "^[!-~]+$";
const SLOTS: &str = "slots";
const POLL: &str = "poll-ms";
const FIRST_BYTE_TIMEOUT: &str = "first-byte-timeout-ms";
const STALL_TIMEOUT: &str = "stall-timeout-ms";
const LOAD_TIMEOUT: &str = "load-timeout-ms";
const UNLOAD_AFTER: &str = "unload-after-ms";

/// The most milliseconds of a time that is waited for a server: a day.
const PATIENCE_MS_MAX: u32 = 86_400_000;
/// The fewest milliseconds between two questions to a server.
const POLL_MS_MIN: u32 = 50;

/// A server elsewhere, and the terms of its executor.
pub(super) type Backend = (ServerConfig, ExecutorTerms);

/// The schemas of the fields of a server elsewhere that an engine has not.
pub(super) fn own_properties() -> Properties {
    let software = SOFTWARE.map(|(_, name)| name);
    let millis = |description: &str, min: u32| {
        json!({
            "description": description,
            "type": "integer", "minimum": min, "maximum": PATIENCE_MS_MAX,
        })
    };
    let url = "The address of a server elsewhere, with a prefix for all paths where it has one.";
    let key = "The key that the server asks for.";
    vec![
        (
            URL,
            json!({"description": url, "type": "string", "pattern": URL_PATTERN}),
        ),
        (
            "software",
            json!({"description": "By default found by asking.", "type": "string", "enum": software}),
        ),
        (
            "key",
            json!({"description": key, "type": "string", "pattern": KEY_PATTERN}),
        ),
        (
            POLL,
            millis(
                "Milliseconds between two questions for health and load.",
                POLL_MS_MIN,
            ),
        ),
        (
            FIRST_BYTE_TIMEOUT,
            millis("Milliseconds to the first byte of a response at most.", 1),
        ),
        (
            STALL_TIMEOUT,
            millis("Milliseconds between two pieces of a response at most.", 1),
        ),
        (
            LOAD_TIMEOUT,
            millis(
                "Milliseconds for loading a model at most, where the server does so on order.",
                1,
            ),
        ),
        (
            UNLOAD_AFTER,
            millis(
                "Milliseconds after its last request at which a model is unloaded, where the server does so on order. By default never.",
                1,
            ),
        ),
    ]
}

/// Reads the server elsewhere to add.
pub(super) fn backend(mut fields: Fields<'_>) -> Result<Backend, ApiError> {
    let text: String = fields.require(URL, "an address")?;
    let url: ServerUrl = text.parse().map_err(|error| {
        mismatched_text(
            URL.to_owned(),
            &format!("an address: this one {error}"),
            &text,
        )
    })?;
    let default = ServerConfig::new(url);
    let software: Option<String> =
        fields.take_as("software", "the name of a software", |name| {
            SOFTWARE.iter().any(|(_, known)| known == name)
        })?;
    let software = software.and_then(|name| SOFTWARE.iter().find(|(_, known)| *known == name));
    let visible = |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    let key: Option<String> = fields.take_as("key", "visible ASCII characters", visible)?;
    let wanted = format!("a list of at most {MODELS} names, each once");
    let models = fields.take_as("models", &wanted, |names: &Vec<String>| {
        names.len() <= MODELS && each_once(names)
    })?;
    let slots = fields.take_as(
        SLOTS,
        &format!("an integer from 1 to {SLOTS_MAX}"),
        |slots| (1..=SLOTS_MAX).contains(slots),
    )?;
    let server = ServerConfig {
        name: take_name(&mut fields, "executor")?,
        software: software.map(|(software, _)| *software),
        key: key.map(ServerKey::new),
        models: models.unwrap_or_default(),
        slots,
        poll: millis(&mut fields, POLL, POLL_MS_MIN)?.unwrap_or(default.poll),
        first_byte_timeout: millis(&mut fields, FIRST_BYTE_TIMEOUT, 1)?
            .unwrap_or(default.first_byte_timeout),
        stall_timeout: millis(&mut fields, STALL_TIMEOUT, 1)?.unwrap_or(default.stall_timeout),
        load_timeout: millis(&mut fields, LOAD_TIMEOUT, 1)?.unwrap_or(default.load_timeout),
        unload_after: millis(&mut fields, UNLOAD_AFTER, 1)?,
        ..default
    };
    let terms = terms(&mut fields)?;
    let own = own_properties().into_iter();
    let shared = terms_properties().into_iter();
    let mut known: Vec<&str> = own.chain(shared).map(|(name, _)| name).collect();
    known.extend(["executor", "models"]);
    fields.none_left(&known)?;
    Ok((server, terms))
}

fn millis(
    fields: &mut Fields<'_>,
    name: &'static str,
    min: u32,
) -> Result<Option<Duration>, ApiError> {
    let wanted = format!("an integer from {min} to {PATIENCE_MS_MAX}");
    let millis: Option<u32> = fields.take_as(name, &wanted, |millis| {
        (min..=PATIENCE_MS_MAX).contains(millis)
    })?;
    Ok(millis.map(|millis| Duration::from_millis(millis.into())))
}
