//! A metric for each set of labels: few, and in one order in every run.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::{
    EncodeLabelValue, EncodeMetric, LabelValueEncoder, MetricEncoder,
};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The most sets of labels with a series of their own. Further sets are counted with `(other)` as their
/// first label, the one that has most values; past twice the bound each label is `(other)`.
pub const SERIES_MAX: usize = 4096;

/// Label of what has no series of its own, see [`SERIES_MAX`].
const OTHER: &str = "(other)";

/// Metrics `M` told apart by `N` labels. Cheap to clone; clones share their series.
pub struct Family<const N: usize, M> {
    shared: Arc<Shared<N, M>>,
}

struct Shared<const N: usize, M> {
    names: [&'static str; N],
    make: fn() -> M,
    /// The series. Behind a lock, since counting and rendering share them; held for one look-up or
    /// one rendering.
    series: Mutex<BTreeMap<[String; N], M>>,
}

impl<const N: usize, M: Clone> Family<N, M> {
    /// A family without series. `make` makes the metric of a new one.
    #[must_use]
    pub fn new(names: [&'static str; N], make: fn() -> M) -> Self {
        let series = Mutex::default();
        Self {
            shared: Arc::new(Shared {
                names,
                make,
                series,
            }),
        }
    }

    /// The metric with these labels.
    #[must_use]
    pub fn with(&self, labels: [&str; N]) -> M {
        let mut series = self.series();
        self.metric(&mut series, labels).clone()
    }

    /// The metric with these labels in `series`, which are this family's.
    fn metric<'s>(&self, series: &'s mut BTreeMap<[String; N], M>, labels: [&str; N]) -> &'s mut M {
        let mut labels = labels.map(str::to_owned);
        if series.len() >= SERIES_MAX && !series.contains_key(&labels) {
            OTHER.clone_into(&mut labels[0]);
        }
        if series.len() >= 2 * SERIES_MAX && !series.contains_key(&labels) {
            labels = [OTHER; N].map(str::to_owned);
        }
        series.entry(labels).or_insert_with(self.shared.make)
    }

    /// Drops every series.
    pub fn clear(&self) {
        self.series().clear();
    }

    /// Drops the series in which the label `name` is `value`, for something that is gone.
    pub fn forget(&self, name: &str, value: &str) {
        let names = self.shared.names.iter();
        if let Some(label) = names.copied().position(|it| it == name) {
            self.series().retain(|labels, _| labels[label] != value);
        }
    }

    /// The names of the labels.
    #[must_use]
    pub fn names(&self) -> &[&'static str] {
        &self.shared.names
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<[String; N], M>> {
        let series = self.shared.series.lock();
        series.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize> Family<N, Gauge> {
    /// Replaces all series by those of these values. Of what is counted together it is their sum.
    pub fn replace<'a>(&self, values: impl IntoIterator<Item = ([&'a str; N], i64)>) {
        let mut series = self.series();
        series.clear();
        for (labels, value) in values {
            self.metric(&mut series, labels).inc_by(value);
        }
    }
}

impl<const N: usize, M> Clone for Family<N, M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<const N: usize, M> fmt::Debug for Family<N, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Family").field(&self.shared.names).finish()
    }
}

impl<const N: usize, M: Clone + EncodeMetric + TypedMetric> EncodeMetric for Family<N, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (values, metric) in self.series().iter() {
            let labels: [(&str, Escaped<'_>); N] =
                std::array::from_fn(|label| (self.shared.names[label], Escaped(&values[label])));
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.series().is_empty()
    }
}

/// The value of a label, which the encoder would write as it is: names come from policies and from
/// configurations.
#[derive(Debug)]
struct Escaped<'a>(&'a str);

impl EncodeLabelValue for Escaped<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(['\\', '"', '\n']) {
            let mut plain = part.chars();
            match plain.next_back() {
                Some('\n') => write!(encoder, "{}\\n", plain.as_str())?,
                Some(special @ ('\\' | '"')) => write!(encoder, "{}\\{special}", plain.as_str())?,
                Some(_) | None => encoder.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::registry::Registry;

    use super::*;

    fn rendered(family: &Family<2, Counter>) -> String {
        let mut registry = Registry::default();
        registry.register("seen", "Seen", family.clone());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn series_come_in_the_order_of_their_labels() {
        let family = Family::new(["where", "who"], Counter::default);
        family.with(["b", "x"]).inc();
        family.with(["a", "y"]).inc_by(2);
        family.with(["b", "x"]).inc();
        let expected = "\
# HELP seen Seen.
# TYPE seen counter
seen_total{where=\"a\",who=\"y\"} 2
seen_total{where=\"b\",who=\"x\"} 2
# EOF
";
        assert_eq!(rendered(&family), expected);
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let family = Family::new(["where", "who"], Counter::default);
        family.with(["a\"} 7\n", "\\"]).inc();
        let line = r#"seen_total{where="a\"} 7\n",who="\\"} 1"#;
        let text = rendered(&family);
        assert!(text.lines().any(|it| it == line), "{text}");
    }

    #[test]
    fn what_comes_after_the_last_series_is_counted_together() {
        let family = Family::new(["where", "who"], Counter::default);
        for number in 0..SERIES_MAX + 5 {
            family.with([&format!("{number:06}"), "b"]).inc();
        }
        family.with(["000000", "b"]).inc();
        let text = rendered(&family);
        assert!(text.contains("seen_total{where=\"(other)\",who=\"b\"} 5\n"));
        assert!(text.contains("seen_total{where=\"000000\",who=\"b\"} 2\n"));
        assert_eq!(text.lines().count(), SERIES_MAX + 4);
        for number in 0..SERIES_MAX + 5 {
            family.with(["a", &format!("{number:06}")]).inc();
        }
        let text = rendered(&family);
        assert!(text.contains("seen_total{where=\"(other)\",who=\"(other)\"} 6\n"));
        assert_eq!(text.lines().count(), 2 * SERIES_MAX + 4);
    }

    #[test]
    fn values_replace_those_before_and_past_the_last_series_are_summed_up() {
        let family: Family<2, Gauge> = Family::new(["where", "who"], Gauge::default);
        family.replace([(["gone", "b"], 1)]);
        let names: Vec<String> = (0..SERIES_MAX + 5).map(|it| format!("{it:06}")).collect();
        family.replace(names.iter().map(|name| ([name.as_str(), "b"], 3)));
        let value = |place: &str| family.with([place, "b"]).get();
        assert_eq!((value("000000"), value("(other)")), (3, 15));
        assert_eq!(family.series().len(), SERIES_MAX + 1);
    }

    #[test]
    fn the_series_of_what_is_gone_go_with_it() {
        let family = Family::new(["where", "who"], Counter::default);
        family.with(["a", "x"]).inc();
        family.with(["b", "a"]).inc();
        family.forget("where", "a");
        family.forget("whence", "b");
        let text = rendered(&family);
        assert!(!text.contains("who=\"x\""), "{text}");
        assert!(text.contains("who=\"a\"} 1"), "{text}");
    }
}
