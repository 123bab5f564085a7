//! Makes metrics and registers them, each with its help and, where it has one, its unit.

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::family::Family;

/// Makes metrics of one registry.
#[derive(Debug)]
pub struct Builder<'a> {
    /// The registry of all that is made.
    pub registry: &'a mut Registry,
    /// The beginning of the names, with its underscore.
    pub prefix: &'static str,
    /// The metrics registered so far.
    pub described: &'a mut Vec<DescribedMetric>,
}

/// A metric as `host/docs/metrics.md` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMetric {
    /// The name in queries; a histogram's without the ending of its series.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// The names of the labels.
    pub labels: Vec<&'static str>,
    /// The help.
    pub help: &'static str,
}

impl Builder<'_> {
    /// Registers a counter.
    pub fn counter(&mut self, name: &str, help: &'static str) -> Counter {
        self.register((name, None), help, &[], Counter::default())
    }

    /// Registers a gauge.
    pub fn gauge(&mut self, name: &str, help: &'static str) -> Gauge {
        self.register((name, None), help, &[], Gauge::default())
    }

    /// Registers counters that are told apart by labels.
    pub fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<N, Counter> {
        self.family((name, None), help, Family::new(labels, Counter::default))
    }

    /// Registers gauges that are told apart by labels.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<N, Gauge> {
        self.family((name, None), help, Family::new(labels, Gauge::default))
    }

    /// Registers a histogram of times, in seconds.
    pub fn times<const N: usize>(
        &mut self,
        name: &str,
        help: &'static str,
        bounds: [f64; N],
    ) -> Histogram {
        self.measured(Unit::Seconds, name, help, Histogram::new(bounds))
    }

    /// Registers histograms of times, in seconds, told apart by labels.
    pub fn times_by<const N: usize>(
        &mut self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
        make: fn() -> Histogram,
    ) -> Family<N, Histogram> {
        self.family((name, Some(Unit::Seconds)), help, Family::new(labels, make))
    }

    /// Registers a metric with its unit.
    pub fn measured<M>(&mut self, unit: Unit, name: &str, help: &'static str, metric: M) -> M
    where
        M: Metric + Clone,
    {
        self.register((name, Some(unit)), help, &[], metric)
    }

    /// Registers metrics that are told apart by labels.
    pub fn family<const N: usize, M>(
        &mut self,
        named: (&str, Option<Unit>),
        help: &'static str,
        family: Family<N, M>,
    ) -> Family<N, M>
    where
        M: Clone,
        Family<N, M>: Metric,
    {
        let labels = family.names().to_vec();
        self.register(named, help, &labels, family)
    }

    /// Registers a fact about this process as the label of a metric that is always 1.
    pub fn info(&mut self, name: &str, help: &'static str, label: (&'static str, &'static str)) {
        self.describe((name, None), help, &[label.0], ("info", "_info"));
        self.registry.register(name, help, Info::new([label]));
    }

    /// Registers a metric, with its unit unless it counts things, which have none.
    pub fn register<M: Metric + Clone>(
        &mut self,
        (name, unit): (&str, Option<Unit>),
        help: &'static str,
        labels: &[&'static str],
        metric: M,
    ) -> M {
        self.describe((name, unit.as_ref()), help, labels, kind(&metric));
        match unit {
            Some(unit) => self
                .registry
                .register_with_unit(name, help, unit, metric.clone()),
            None => self.registry.register(name, help, metric.clone()),
        }
        metric
    }

    fn describe(
        &mut self,
        (name, unit): (&str, Option<&Unit>),
        help: &'static str,
        labels: &[&'static str],
        (kind, ending): (&'static str, &'static str),
    ) {
        let unit = unit.map_or(String::new(), |unit| format!("_{}", unit.as_str()));
        self.described.push(DescribedMetric {
            name: format!("{}{name}{unit}{ending}", self.prefix),
            kind,
            labels: labels.to_vec(),
            help,
        });
    }
}

/// The kind of a metric, and the ending of its name in queries.
fn kind(metric: &impl EncodeMetric) -> (&'static str, &'static str) {
    match metric.metric_type() {
        MetricType::Counter => ("counter", "_total"),
        MetricType::Gauge => ("gauge", ""),
        MetricType::Histogram => ("histogram", ""),
        MetricType::Info => ("info", "_info"),
        MetricType::Unknown => ("unknown", ""),
    }
}
