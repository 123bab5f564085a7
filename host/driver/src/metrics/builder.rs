//! Makes metrics and registers them, each with its help and, where it has one, its unit.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::family::Family;

pub(super) struct Builder<'a> {
    pub(super) registry: &'a mut Registry,
}

impl Builder<'_> {
    /// Registers a metric with its unit.
    pub(super) fn measured<M>(&mut self, unit: Unit, name: &str, help: &str, metric: M) -> M
    where
        M: Metric + Clone,
    {
        self.registry
            .register_with_unit(name, help, unit, metric.clone());
        metric
    }

    pub(super) fn counter(&mut self, name: &str, help: &str) -> Counter {
        self.counted(name, help, Counter::default())
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        self.counted(name, help, Gauge::default())
    }

    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&'static str; N],
    ) -> Family<N, Counter> {
        self.counted(name, help, Family::new(labels, Counter::default))
    }

    pub(super) fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&'static str; N],
    ) -> Family<N, Gauge> {
        self.counted(name, help, Family::new(labels, Gauge::default))
    }

    /// Registers a histogram of times, in seconds.
    pub(super) fn times<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        bounds: [f64; N],
    ) -> Histogram {
        self.measured(Unit::Seconds, name, help, Histogram::new(bounds))
    }

    /// Registers a metric that counts things, which have no unit.
    fn counted<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(name, help, metric.clone());
        metric
    }
}
