//! Tests of the time for which models are idle.

use pointsman_executor::handle::FoundModel;
use pointsman_executor::server::{ServerConfig, ServerLoad, ServerSoftware};
use tokio::time::advance;

use super::*;
use crate::client::{Connections, Trust};

/// The time after which an idle model is unloaded.
const AFTER: Duration = Duration::from_secs(600);
/// The most of that time.
const MOST: Duration = Duration::from_secs(599);
/// The rest of it.
const REST: Duration = Duration::from_secs(1);

/// The models of a server that nobody asks.
fn residency() -> Arc<Residency> {
    let server = ServerConfig::new("http://127.0.0.1:1".parse().unwrap());
    let connections = Connections::trusting(Trust::Nobody).unwrap();
    let terms = ResidencyTerms {
        models_max: None,
        load_timeout: server.load_timeout,
        unload_after: Some(AFTER),
    };
    let client = ServerClient::new(connections, &server);
    Residency::new("server".to_owned(), ModelAccess { client, terms })
}

/// The findings about a server with these models, of which `loaded` are loaded.
fn findings(software: ServerSoftware, models: &[&str], loaded: &[&str]) -> Findings {
    let models = models.iter().map(|name| FoundModel {
        name: (*name).to_owned(),
        context_tokens: None,
    });
    Findings {
        availability: Availability::Open,
        why: String::new(),
        software: Some(software),
        models: Some(models.collect()),
        loaded: Some(Loaded {
            names: loaded.iter().map(|name| (*name).to_owned()).collect(),
            ..Loaded::default()
        }),
        models_max: None,
        load: ServerLoad::default(),
    }
}

/// The model that is to be unloaded now.
fn due(residency: &Residency) -> Option<String> {
    let (_, model) = residency.take_due(AFTER)?;
    Some(model)
}

#[tokio::test(start_paused = true)]
async fn a_model_that_somebody_else_has_loaded_is_idle_since_then() {
    let software = [
        ServerSoftware::LlamaCpp,
        ServerSoftware::Ollama,
        ServerSoftware::Vllm,
    ];
    for software in software {
        let residency = residency();
        residency.found(&findings(software, &["a"], &[]));
        advance(AFTER).await;
        let loaded = findings(software, &["a"], &["a"]);
        residency.found(&loaded);
        assert_eq!(due(&residency), None, "{software:?}");
        // That it is loaded still is no news.
        advance(MOST).await;
        residency.found(&loaded);
        assert_eq!(due(&residency), None, "{software:?}");
        advance(REST).await;
        residency.found(&loaded);
        assert_eq!(due(&residency).as_deref(), Some("a"), "{software:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_only_model_of_a_server_is_idle_since_its_last_use_by_any_name() {
    let residency = residency();
    let names = ["adapter", "big"];
    residency.found(&findings(ServerSoftware::Vllm, &names, &names));
    advance(MOST).await;
    drop(residency.attend("adapter"));
    advance(REST).await;
    assert_eq!(due(&residency), None, "`adapter` was used");
    advance(MOST).await;
    assert!(due(&residency).is_some());
    // On its way to sleep it is there by none of them, whatever was told before.
    residency.found(&findings(ServerSoftware::Vllm, &names, &names));
    for name in names {
        assert_eq!(residency.lacks(name), Some(Orders::Vllm), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_several_models_is_idle_whichever_others_are_used() {
    let residency = residency();
    let names = ["a", "b"];
    residency.found(&findings(ServerSoftware::LlamaCpp, &names, &names));
    advance(MOST).await;
    drop(residency.attend("a"));
    advance(REST).await;
    assert_eq!(due(&residency).as_deref(), Some("b"));
    assert_eq!(due(&residency), None, "`a` was used");
}
