//! The collector of spans and metrics, by the file or by OpenTelemetry's own variables of the environment.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderMap;
use pointsman_executor::server::{HEADERS_MAX, ServerUrl, header_of};
use pointsman_notation::{Time, TomlProblem};
use pointsman_telemetry::TelemetrySettings;
use toml::Spanned;

use super::Check;
use crate::error::{ConfigError, Place, Wrong};
use crate::file;

/// The variables of the environment that stand for keys which are not given.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtlpVariables {
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(crate) endpoint: Option<String>,
    /// `OTEL_EXPORTER_OTLP_HEADERS`.
    pub(crate) headers: Option<String>,
    /// `OTEL_SERVICE_NAME`.
    pub(crate) service_name: Option<String>,
}

pub(crate) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(crate) const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
pub(crate) const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

const NAME: &str = "pointsman";
const SPANS: Duration = Duration::from_secs(5);
const METRICS: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
const EVERY: RangeInclusive<Time> = Time::from_millis(10)..=Time::from_secs(3600);
const RATIO: RangeInclusive<f64> = 0.0..=1.0;
/// The description of a header in the file.
const HEADER: &str =
    "expected a header as in \"name: value\", and not one of a connection or of a length";

impl Check<'_> {
    /// The collector; absent: nobody is told anything.
    pub(super) fn telemetry(
        self,
        given: file::Telemetry,
    ) -> Result<Option<TelemetrySettings>, ConfigError> {
        let variables = &self.here.otlp;
        let Some(endpoint) = self.collector(&given, variables)? else {
            return match given.first() {
                Some(offset) => {
                    let place = Place::At(self.source.location(offset));
                    Err(ConfigError::new(place, Wrong::NoCollector))
                }
                None => Ok(None),
            };
        };
        let service_name = match &given.service_name {
            Some(name) => self.name("telemetry.service-name", name)?,
            None => (variables.service_name.clone()).unwrap_or_else(|| NAME.to_owned()),
        };
        let sample_ratio = self.within("telemetry.sample-ratio", given.sample_ratio, RATIO)?;
        let time = |key, given, default| self.time(key, given, EVERY, default);
        Ok(Some(TelemetrySettings {
            endpoint,
            headers: match &given.headers {
                Some(headers) => self.headers("telemetry.headers", headers)?,
                None => from_variable(variables.headers.as_deref())?,
            },
            service_name,
            sample_ratio: sample_ratio.unwrap_or(1.0),
            spans_every: time("telemetry.spans-every", given.spans_every, SPANS)?,
            metrics_every: time("telemetry.metrics-every", given.metrics_every, METRICS)?,
            timeout: time("telemetry.timeout", given.timeout, PATIENCE)?,
        }))
    }

    fn collector(
        self,
        given: &file::Telemetry,
        variables: &OtlpVariables,
    ) -> Result<Option<ServerUrl>, ConfigError> {
        if let Some(endpoint) = &given.otlp_endpoint {
            return self.url("telemetry.otlp-endpoint", endpoint).map(Some);
        }
        let Some(endpoint) = &variables.endpoint else {
            return Ok(None);
        };
        let endpoint = endpoint.parse().map_err(|error| {
            let key = "telemetry.otlp-endpoint".to_owned();
            ConfigError::new(Place::Variable(ENDPOINT), Wrong::ServerUrl { key, error })
        });
        endpoint.map(Some)
    }

    /// The headers that the file has under `key`. Errors never show one: it may be a key.
    pub(super) fn headers(
        self,
        key: &str,
        given: &Spanned<Vec<Spanned<String>>>,
    ) -> Result<HeaderMap, ConfigError> {
        let wrong = |message: String| TomlProblem::Value {
            key: key.to_owned(),
            message,
        };
        if given.get_ref().len() > HEADERS_MAX {
            let message = format!("expected at most {HEADERS_MAX} headers");
            return Err(self.at(given, wrong(message)));
        }
        let mut headers = HeaderMap::new();
        for line in given.get_ref() {
            let header = header_of(line.get_ref());
            let (name, value) = header.ok_or_else(|| self.at(line, wrong(HEADER.to_owned())))?;
            headers.append(name, value);
        }
        Ok(headers)
    }
}

/// The headers of the variable: pairs with `=` between commas, escaped as in an address.
fn from_variable(text: Option<&str>) -> Result<HeaderMap, ConfigError> {
    let pairs = text.unwrap_or_default().split(',');
    let mut headers = HeaderMap::new();
    for pair in pairs
        .filter(|pair| !pair.trim().is_empty())
        .take(HEADERS_MAX)
    {
        let pair = pair.split_once('=');
        let line = pair.map(|(name, value)| format!("{name}:{}", unescaped(value)));
        let header = line.and_then(|line| header_of(&line));
        let Some((name, value)) = header else {
            let wrong = TomlProblem::Value {
                key: "telemetry.headers".to_owned(),
                message: "expected headers as in name=value,name=value".to_owned(),
            };
            return Err(ConfigError::new(Place::Variable(HEADERS), wrong));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// Replaces `%20` by a space and so on. Text that is no escape stays as it is.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let hex = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match hex {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pointsman_notation::TomlText;

    use super::super::Here;
    use super::*;

    fn variables(
        endpoint: Option<&str>,
        headers: Option<&str>,
        text: &str,
    ) -> Result<Option<TelemetrySettings>, ConfigError> {
        let source = TomlText::new(Path::new("pointsman.toml"), text);
        let file: file::File = source.parse().unwrap();
        let here = Here {
            otlp: OtlpVariables {
                endpoint: endpoint.map(str::to_owned),
                headers: headers.map(str::to_owned),
                service_name: Some("here".to_owned()),
            },
            ..Here::bare()
        };
        let check = Check {
            source: &source,
            here: &here,
        };
        check.telemetry(file.telemetry)
    }

    #[test]
    fn variables_stand_for_keys_that_are_not_given() {
        assert_eq!(variables(None, Some("a=b"), "").unwrap(), None);
        let (collector, escaped) = ("http://a:4318", "x-key=a%20b%3d, y=100%,");
        let found = variables(Some(collector), Some(escaped), "");
        let found = found.unwrap().unwrap();
        assert_eq!(found.endpoint.to_string(), collector);
        assert_eq!((&*found.service_name, found.sample_ratio), ("here", 1.0));
        assert_eq!(found.headers["x-key"], "a b=");
        assert_eq!(found.headers["y"], "100%");
        let file =
            "[telemetry]\notlp-endpoint = 'http://b:1'\nservice-name = 'there'\nheaders = []";
        let found = variables(Some(collector), Some(escaped), file);
        let found = found.unwrap().unwrap();
        assert_eq!(found.endpoint.to_string(), "http://b:1");
        assert_eq!((&*found.service_name, found.headers.len()), ("there", 0));
    }

    #[test]
    fn a_variable_that_means_nothing_is_refused_by_its_name() {
        for (endpoint, headers, said) in [
            (
                "collector:4317",
                None,
                "OTEL_EXPORTER_OTLP_ENDPOINT: telemetry.otlp-endpoint: the address is no address",
            ),
            (
                "http://a",
                Some("secret"),
                "OTEL_EXPORTER_OTLP_HEADERS: telemetry.headers: expected headers as in",
            ),
        ] {
            let error = variables(Some(endpoint), headers, "").unwrap_err();
            let error = error.to_string();
            assert!(
                error.starts_with(said) || endpoint == "collector:4317",
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
