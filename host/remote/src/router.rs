//! A router of llama.cpp as it tells of itself. It has no slots of its own: the servers that it starts for its
//! models have, and tell of them under its address.
//!
//! # Not here
//! Its orders to load and unload, and what is loaded ([`residency`](crate::residency)).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use pointsman_executor::server::ServerLoad;
use serde_json::Value;

use crate::asker::{PATIENCE, is_processing, total_slots};
use crate::client::ServerClient;
use crate::residency::loaded_by_router;

/// Slots of a model that is loaded and does not tell, and room for one that would be loaded.
const SLOTS_UNTOLD: u32 = 1;
/// The most models whose slots are asked for in one round.
const ASKED_MAX: usize = 8;

/// The slots of the models that a router has loaded, as they told.
#[derive(Debug, Default)]
pub(crate) struct RouterSlots(BTreeMap<String, u32>);

/// True if this answer at `/props` is a router's.
pub(crate) fn is_router(props: &Value) -> bool {
    props.get("role").and_then(Value::as_str) == Some("router")
}

/// The most models that a router has loaded at once; absent: as many as there are.
pub(crate) fn models_max(props: &Value) -> Option<u32> {
    let max = props.get("max_instances")?.as_u64()?;
    u32::try_from(max).ok().filter(|max| *max > 0)
}

/// The path at which a model's own server is asked, which is not started for that.
fn path_of(what: &str, model: &str) -> String {
    let mut path = format!("{what}?autoload=false&model=");
    for byte in model.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                path.push(char::from(byte));
            }
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
    path
}

// === impl RouterSlots ===

impl RouterSlots {
    /// Asks for what is not known yet. Models that are not loaded are asked for nothing, and those that run
    /// none of `ours` not for their load: that would wake one that sleeps.
    pub(crate) async fn ask(
        &mut self,
        client: &ServerClient,
        (props, list): (&Value, &Value),
        ours: &BTreeSet<String>,
    ) -> ServerLoad {
        let loaded = loaded_by_router(list).unwrap_or_default().names;
        self.0.retain(|model, _| loaded.contains(model));
        let unknown = loaded.iter().filter(|model| !self.0.contains_key(*model));
        for model in unknown.take(ASKED_MAX).cloned().collect::<Vec<_>>() {
            let told = client.json(&path_of("/props", &model), PATIENCE).await;
            if let Some(slots) = told.ok().flatten().as_ref().and_then(total_slots) {
                self.0.insert(model, slots);
            }
        }
        let mut present = None;
        for model in loaded.intersection(ours).take(ASKED_MAX) {
            let told = client.json(&path_of("/slots", model), PATIENCE).await;
            if let Some(busy) = told.ok().flatten().as_ref().and_then(is_processing) {
                present = Some(present.unwrap_or(0) + busy);
            }
        }
        ServerLoad {
            capacity: Some(self.capacity(&loaded, (props, list))),
            present,
            ..ServerLoad::default()
        }
    }

    /// The slots of what is loaded, and one for a model that would be loaded beside it.
    fn capacity(&self, loaded: &BTreeSet<String>, (props, list): (&Value, &Value)) -> u32 {
        let slots = loaded.iter().map(|model| self.0.get(model));
        let slots = slots.map(|slots| slots.copied().unwrap_or(SLOTS_UNTOLD));
        let slots = slots.fold(0, u32::saturating_add);
        let listed = list.get("data").and_then(Value::as_array);
        let is_room = |max: u32| loaded.len() < usize::try_from(max).unwrap_or(usize::MAX);
        let has_more = listed.is_some_and(|listed| listed.len() > loaded.len());
        if has_more && models_max(props).is_none_or(is_room) {
            slots.saturating_add(SLOTS_UNTOLD)
        } else {
            slots
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_router_has_the_slots_of_what_is_loaded_and_room_for_what_may_be() {
        let slots = RouterSlots(BTreeMap::from([("a".to_owned(), 4)]));
        let status = |name: &str, status: &str| json!({"id": name, "status": {"value": status}});
        let capacity = |max: u32, states: [&str; 3]| {
            let [a, b, c] = states;
            let list = json!({"data": [status("a", a), status("b", b), status("c", c)]});
            let loaded = loaded_by_router(&list).unwrap_or_default().names;
            let props = json!({"role": "router", "max_instances": max});
            slots.capacity(&loaded, (&props, &list))
        };
        assert_eq!(capacity(4, ["loaded", "unloaded", "unloaded"]), 5);
        assert_eq!(capacity(1, ["loaded", "unloaded", "unloaded"]), 4);
        assert_eq!(capacity(0, ["sleeping", "loaded", "unloaded"]), 6);
        assert_eq!(capacity(0, ["loaded", "loaded", "loaded"]), 6);
        assert_eq!(capacity(4, ["unloaded", "loading", "unloaded"]), 1);
    }

    #[test]
    fn a_models_name_is_one_value_of_the_query() {
        assert_eq!(
            path_of("/props", "ggml-org/a b&c:Q4_K_M"),
            "/props?autoload=false&model=ggml-org/a%20b%26c:Q4_K_M"
        );
    }
}
