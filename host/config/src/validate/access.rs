//! API keys with their rights, the tenants that they belong to, and TLS.

use std::ops::RangeInclusive;
use std::time::Duration;

use pointsman_core::rows::RequestClass;
use pointsman_driver::provider::WEIGHTS;
use pointsman_driver::quota::TenantLimits;
use pointsman_http::{HEAD_START_MAX, NoModelPattern};
use pointsman_notation::{Number, Time, TomlProblem};
use sha2::{Digest, Sha256};
use toml::Spanned;

use super::{Check, TIMEOUT};
use crate::error::{ConfigError, Wrong};
use crate::file::{self, ClassName, Given};
use crate::{
    ApiKey, Claims, DEFAULT_TENANT, FILE_BYTES_MAX, HintsConfig, ModelPattern, Rights,
    TenantConfig, TlsSettings, UsableModels,
};

/// The API keys and the tenants.
pub(super) struct Access {
    pub(super) keys: Vec<ApiKey>,
    pub(super) tenants: Vec<TenantConfig>,
}

/// The most patterns of models that a key may have.
const MODELS_MAX: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two looks at the files of the certificate.
const CERTIFICATE_POLL: Duration = Duration::from_secs(5);
/// Range of the limits of a tenant.
const LIMITS: RangeInclusive<u64> = 1..=1_000_000_000_000;

impl Check<'_> {
    /// The keys, and the tenants of the list. Without a list every tenant that a key names exists;
    /// the tenant `default` needs no listing.
    pub(super) fn access(
        self,
        keys: Vec<Spanned<file::Key>>,
        tenants: Vec<Spanned<file::Tenant>>,
        hints: &HintsConfig,
    ) -> Result<Access, ConfigError> {
        let listed = !tenants.is_empty();
        let mut access = Access {
            keys: Vec::new(),
            tenants: self.tenants(tenants, hints)?,
        };
        for (index, mut key) in keys.into_iter().enumerate() {
            let path = format!("keys[{index}]");
            let sha256 = self.key_hash(&path, &key)?;
            if let Some(other) = access.keys.iter().position(|known| known.sha256 == sha256) {
                let other = format!("keys[{other}]");
                return Err(self.at(&key, Wrong::SameKey { key: path, other }));
            }
            let tenant = match &key.get_ref().tenant {
                Some(name) => self.name(&format!("{path}.tenant"), name)?,
                None => DEFAULT_TENANT.to_owned(),
            };
            if !access.tenants.iter().any(|known| known.name == tenant) {
                if listed && tenant != DEFAULT_TENANT {
                    return Err(self.unknown_tenant(&path, &key, &access.tenants));
                }
                access.tenants.push(TenantConfig::new(&tenant));
            }
            let mut known = access.tenants.iter();
            let known = known.find(|known| known.name == tenant);
            let claims = known.map_or_else(Claims::default, |known| known.claims);
            let rights = Rights {
                models: self.models_of(&path, key.get_mut().models.take())?,
                ..self.priorities(&path, key.get_mut(), (&tenant, claims, hints))?
            };
            access.keys.push(ApiKey { sha256, rights });
        }
        let known = |tenant: &TenantConfig| tenant.name == DEFAULT_TENANT;
        if access.keys.is_empty() && !access.tenants.iter().any(known) {
            access.tenants.push(TenantConfig::new(DEFAULT_TENANT));
        }
        Ok(access)
    }

    /// The models that a key may use.
    fn models_of(
        self,
        path: &str,
        given: Given<Vec<Spanned<String>>>,
    ) -> Result<UsableModels, ConfigError> {
        let Some(given) = given else {
            return Ok(UsableModels::All);
        };
        let path = format!("{path}.models");
        if !(1..=MODELS_MAX).contains(&given.get_ref().len()) {
            let wrong = TomlProblem::Value {
                key: path,
                message: format!(
                    "expected 1 to {MODELS_MAX} models; without this key all may be used"
                ),
            };
            return Err(self.at(&given, wrong));
        }
        let mut names: Vec<String> = Vec::new();
        let mut patterns = Vec::new();
        for name in given.into_inner() {
            let pattern = name.get_ref().parse();
            let pattern: ModelPattern = pattern
                .map_err(|error: NoModelPattern| self.value(&path, &name, &error.to_string()))?;
            names.push(self.new_name(&path, name, &names)?);
            patterns.push(pattern);
        }
        Ok(UsableModels::Listed(patterns))
    }

    /// The rights of a key of a tenant with these claims, for all models.
    fn priorities(
        self,
        path: &str,
        key: &mut file::Key,
        (tenant, claims, hints): (&str, Claims, &HintsConfig),
    ) -> Result<Rights, ConfigError> {
        let default = Rights::of_tenant(tenant);
        let (lowest, highest) = (-hints.priority_max, hints.priority_max);
        let highest = highest.min(claims.priority_max);
        let priority_max = self.number(
            &format!("{path}.priority-max"),
            key.priority_max.take(),
            lowest..=highest,
            default.priority_max,
        )?;
        let priority = self.number(
            &format!("{path}.priority"),
            key.priority.take(),
            lowest..=highest.min(priority_max),
            default.priority,
        )?;
        Ok(Rights {
            priority,
            priority_max,
            ..default
        })
    }

    fn tenants(
        self,
        given: Vec<Spanned<file::Tenant>>,
        hints: &HintsConfig,
    ) -> Result<Vec<TenantConfig>, ConfigError> {
        let mut names: Vec<String> = Vec::new();
        let mut tenants = Vec::new();
        for (index, tenant) in given.into_iter().enumerate() {
            let path = |key: &str| format!("tenants[{index}].{key}");
            let tenant = tenant.into_inner();
            let name = self.new_name(&path("name"), tenant.name, &names)?;
            names.push(name.clone());
            let limit = |key: &str, given: Given<Number>| {
                let limit = given.map(|given| self.number(&path(key), Some(given), LIMITS, 1));
                limit.transpose()
            };
            let claimed = (tenant.priority_max, tenant.class_max, tenant.head_start_max);
            let default = TenantConfig::new(&name);
            tenants.push(TenantConfig {
                weight: self.number(&path("weight"), tenant.weight, WEIGHTS, default.weight)?,
                tokens_per_minute: limit("tokens-per-minute", tenant.tokens_per_minute)?,
                limits: TenantLimits {
                    requests_per_minute: limit("requests-per-minute", tenant.requests_per_minute)?,
                    tokens_per_minute_max: limit(
                        "tokens-per-minute-max",
                        tenant.tokens_per_minute_max,
                    )?,
                    concurrent_max: limit("concurrent-max", tenant.concurrent_max)?,
                },
                claims: self.claims(&path, claimed, hints)?,
                ..default
            });
        }
        Ok(tenants)
    }

    /// The urgency that a tenant may claim.
    fn claims(
        self,
        path: &impl Fn(&str) -> String,
        (priority, class, head_start): (Given<Number>, Option<ClassName>, Given<Time>),
        hints: &HintsConfig,
    ) -> Result<Claims, ConfigError> {
        let default = Claims::default();
        let (lowest, highest) = (-hints.priority_max, hints.priority_max);
        Ok(Claims {
            priority_max: self.number(
                &path("priority-max"),
                priority,
                lowest..=highest,
                default.priority_max,
            )?,
            class_max: class.map_or(default.class_max, RequestClass::from),
            head_start_max: self.time(
                &path("head-start-max"),
                head_start,
                Time(Duration::ZERO)..=Time(HEAD_START_MAX),
                default.head_start_max,
            )?,
        })
    }

    fn unknown_tenant(
        self,
        path: &str,
        key: &Spanned<file::Key>,
        tenants: &[TenantConfig],
    ) -> ConfigError {
        let given = key.get_ref().tenant.as_ref();
        let name = given.map_or(DEFAULT_TENANT, |name| name.get_ref());
        let wrong = Wrong::UnknownTenant {
            key: format!("{path}.tenant"),
            name: name.to_owned(),
            known: tenants.iter().map(|tenant| tenant.name.clone()).collect(),
        };
        match given {
            Some(name) => self.at(name, wrong),
            None => self.at(key, wrong),
        }
    }

    /// The hash of a key that is given in one of three ways.
    fn key_hash(self, path: &str, given: &Spanned<file::Key>) -> Result<[u8; 32], ConfigError> {
        let file::Key {
            key, sha256, file, ..
        } = given.get_ref();
        match (key, sha256, file) {
            (Some(key), None, None) => Ok(hash(&self.key_text(&format!("{path}.key"), key)?)),
            (None, Some(hex), None) => from_hex(hex.get_ref()).ok_or_else(|| {
                // It may be the key itself, which errors never show.
                let wrong = TomlProblem::Value {
                    key: format!("{path}.sha256"),
                    message: "expected 64 hexadecimal digits, as `sha256sum` prints them of the \
                              key"
                    .to_owned(),
                };
                self.at(hex, wrong)
            }),
            (None, None, Some(file)) => self.key_in_file(&format!("{path}.file"), file),
            _ => {
                let key = path.to_owned();
                Err(self.at(given, Wrong::KeySource { key }))
            }
        }
    }

    fn key_in_file(self, path: &str, file: &Spanned<String>) -> Result<[u8; 32], ConfigError> {
        let place = self.source.resolve(file.get_ref());
        match pointsman_files::read_text(&place, FILE_BYTES_MAX) {
            Ok(text) => {
                let text = Spanned::new(file.span(), text.trim().to_owned());
                Ok(hash(&self.key_text(path, &text)?))
            }
            Err(error) => Err(self.at(file, Wrong::Unreadable { path: place, error })),
        }
    }

    /// A key as a header can carry it. Errors never show it.
    pub(super) fn key_text(
        self,
        path: &str,
        given: &Spanned<String>,
    ) -> Result<String, ConfigError> {
        let text = given.get_ref();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let wrong = TomlProblem::Value {
                key: path.to_owned(),
                message: "a key consists of visible ASCII characters".to_owned(),
            };
            return Err(self.at(given, wrong));
        }
        Ok(text.clone())
    }
}

// === impl Check: TLS ===

impl Check<'_> {
    /// The certificate. Its files are read when the server starts.
    pub(super) fn tls(self, given: file::Tls) -> Result<Option<TlsSettings>, ConfigError> {
        let timeout = given.handshake_timeout;
        let timeout = self.time("tls.handshake-timeout", timeout, TIMEOUT, HANDSHAKE_TIMEOUT)?;
        let poll = self.time("tls.poll", given.poll, TIMEOUT, CERTIFICATE_POLL)?;
        let half = |given: &Spanned<String>, missing| self.at(given, Wrong::HalfOfTls(missing));
        match (given.certificate, given.key) {
            (None, None) => Ok(None),
            (Some(certificate), None) => Err(half(&certificate, "tls.key")),
            (None, Some(key)) => Err(half(&key, "tls.certificate")),
            (Some(certificate), Some(key)) => Ok(Some(TlsSettings {
                certificate: self.source.resolve(certificate.get_ref()),
                key: self.source.resolve(key.get_ref()),
                handshake_timeout: timeout,
                poll,
            })),
        }
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}
