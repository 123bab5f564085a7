//! Servers elsewhere as executors: the part of the host's [`Provider`] that is not about this machine.

use std::io;

use anyhow::Result;
use pointsman_core::rows::{ExecutorKind, Role};
use pointsman_core::{DeviceId, DeviceSpec, ExecutorSpec, Incarnation, KvSpec, ReadableBlocks};
use pointsman_driver::provider::{
    ExecutorConfig, ExecutorTerms, ModelConfig, PreparedExecutor, Provider, ServeModelError,
    ServedModel,
};
use pointsman_executor::contract::Events;
use pointsman_executor::server::{PromptCache, ServerConfig};
use pointsman_local::LocalProvider;
use pointsman_remote::RemoteSpec;
use pointsman_remote::client::{Connections, Trust};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::warn;

/// The maker of all executors: engines on this machine, and servers elsewhere.
#[derive(Debug)]
pub(crate) struct HostProvider {
    local: LocalProvider,
    connections: Connections,
    /// The runtime on which servers are talked to.
    runtime: Handle,
    /// The way for reports of the executors.
    events: mpsc::Sender<Events>,
}

/// Connections by the certificates of this machine. Where it has none, nobody at `https://` is known by them: a server has
/// a `ca-file`, or is down, and a collector is told nothing.
///
/// # Errors
/// If there can be no connections at all.
pub(crate) fn connections() -> io::Result<Connections> {
    Connections::new().or_else(|error| {
        warn!(
            %error,
            "this machine has no certificates: servers at https:// need a `ca-file`, \
             and a collector at https:// cannot be reached"
        );
        Connections::trusting(Trust::Nobody)
    })
}

impl HostProvider {
    /// A provider whose executors report to `events`. Call it on the runtime on which servers are to be
    /// talked to.
    pub(crate) fn new(
        local: LocalProvider,
        connections: Connections,
        events: mpsc::Sender<Events>,
    ) -> Self {
        Self {
            local,
            connections,
            runtime: Handle::current(),
            events,
        }
    }
}

impl Provider for HostProvider {
    fn load(&self, model: &ModelConfig) -> Result<ServedModel, ServeModelError> {
        self.local.load(model)
    }

    fn executor(
        &self,
        models: &[ServedModel],
        config: &ExecutorConfig,
    ) -> Result<PreparedExecutor, ServeModelError> {
        self.local.executor(models, config)
    }

    fn server(
        &self,
        config: &ServerConfig,
        terms: ExecutorTerms,
    ) -> Result<PreparedExecutor, ServeModelError> {
        if let Some(pem) = &config.ca {
            let read = Connections::trusting(Trust::Pem(pem));
            read.map_err(|error| ServeModelError::NoCertificates(error.to_string()))?;
        }
        let name = config.executor_name();
        let spec = ExecutorSpec {
            name: name.clone(),
            // Its own, below.
            device: DeviceId(0),
            kind: ExecutorKind::Remote,
            role: Role::Both,
            group: terms.group,
            share_weight: terms.share_weight,
            serves: None,
            slots_total: config.slots.unwrap_or(1),
            models_max: terms.models_max,
            queue_limit: terms.queue,
            tokens_per_block: None,
            preempts: false,
            reads: ReadableBlocks::Own,
            model_unload_delay: terms.model_unload_delay,
        };
        let device = DeviceSpec {
            name: format!("remote:{name}"),
            kv: match config.prompt_cache {
                PromptCache::Assumed => KvSpec::Assumed,
                PromptCache::Off => KvSpec::Remote,
            },
            tokens_per_step: None,
        };
        let (runtime, events) = (self.runtime.clone(), self.events.clone());
        let (server, connections) = (config.clone(), self.connections.clone());
        Ok(PreparedExecutor {
            spec,
            device: Some(device),
            models: Vec::new(),
            server: Some(config.url.clone()),
            spawn: Box::new(move |executor, _| {
                let spec = RemoteSpec {
                    executor,
                    incarnation: Incarnation(0),
                    server,
                    models_max: terms.models_max,
                    connections,
                    events,
                };
                Ok(pointsman_remote::spawn(&runtime, spec))
            }),
        })
    }
}
