//! The settings of the other crates, as the configuration has them.

use pointsman_driver::quota::TenantLimits;
use pointsman_http::{AccessRules, ApiKeys, HttpSettings, Origins};

use crate::memory;
use pointsman_config::Config;

/// The part of `config` that HTTP works by until the server ends.
#[must_use]
pub fn http_settings(config: &Config) -> HttpSettings {
    HttpSettings {
        connections_max: config.http.connections_max,
        connection_requests_max: config.http.connection_requests_max,
        body_bytes_max: config.http.body_bytes_max,
        bodies_bytes_max: config.http.bodies_bytes_max,
        memory_freed: memory::give_back,
        reading_queue_max: config.http.reading_queue_max,
        read_timeout: config.http.read_timeout,
        write_timeout: config.http.write_timeout,
        prefix_cache: config.http.prefix_cache,
        unnamed_model: config.http.unnamed_model,
        decisions_max: config.admin.decisions_max,
        retry_after_secs: config.core.retry_after_secs,
        queue_max: config.core.queue_max,
    }
}

/// The limits of tenants that no policy can lift.
pub fn tenant_limits(config: &Config) -> impl Iterator<Item = (String, TenantLimits)> {
    let tenants = config.tenants.iter();
    tenants.map(|tenant| (tenant.name.clone(), tenant.limits))
}

/// The part of `config` that HTTP works by until the configuration is read again.
#[must_use]
pub fn access_rules(config: &Config) -> AccessRules {
    let tenants = config.tenants.iter();
    let keys = ApiKeys::new(config.keys.clone(), config.admin.key.as_deref());
    let keys = keys.with_reader(config.admin.read_key.as_deref());
    AccessRules {
        keys: if config.http.metrics_public {
            keys
        } else {
            keys.with_private_metrics()
        },
        origins: Origins::new(config.http.cors_origins.clone()),
        label_keys: config.hints.label_keys.clone(),
        priority_max: config.hints.priority_max,
        claims: tenants.map(|it| (it.name.clone(), it.claims)).collect(),
    }
}
