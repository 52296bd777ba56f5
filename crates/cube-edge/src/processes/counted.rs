//! What a process has counted, in a form that crosses to another process and can be added up.

use std::collections::BTreeMap;

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Of the gauges those that count what is open, which is open in one process or in the other; of
/// all others (memory, certificates, caches, breakers) each process has its own.
const OPEN: [&str; 3] =
    ["cube_proxy_inflight_requests", "cube_proxy_client_connections", "cube_proxy_held_requests"];
const OPEN_PREFIX: &str = "cube_proxy_open_";
/// What is no whole number is added in millionths: whole numbers come to the same in every order, so that nothing
/// falls when a process ends and its part moves from one place to another.
const PARTS: f64 = 1e6;
const ONE: u64 = 1_000_000;

type Labels = Vec<(String, String)>;

/// Counters, histograms and what is open, by name and labels.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counted(BTreeMap<String, Family>);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Family {
    help: String,
    #[serde(serialize_with = "to_pairs", deserialize_with = "from_pairs")]
    series: BTreeMap<Labels, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Value {
    /// And how many [`PARTS`] more.
    Counter(u64, u64),
    Gauge(i64),
    Histogram(Observed),
}

/// Values of a histogram.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Observed {
    count: u64,
    /// The sum of all values in millionths, see [`PARTS`]: whole numbers add up without loss.
    sum: u64,
    /// Upper edges, written as their shortest decimals so that they stay what they are, and how many
    /// values were not above each.
    buckets: Vec<(String, u64)>,
}

impl Counted {
    /// What is to be added up of all that a registry gathered.
    #[must_use]
    pub fn of(families: &[MetricFamily]) -> Self {
        let mut counted = Self::default();
        for family in families {
            let series: BTreeMap<Labels, Value> = family
                .get_metric()
                .iter()
                .filter_map(|metric| Some((labels(metric), value(family, metric)?)))
                .collect();
            if !series.is_empty() {
                let help = family.help().to_owned();
                counted.0.insert(family.name().to_owned(), Family { help, series });
            }
        }
        counted
    }

    /// The series that are other than in `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut changed = Self::default();
        for (name, family) in &self.0 {
            let known = before.0.get(name);
            let other = |labels: &Labels, value: &Value| {
                known.and_then(|known| known.series.get(labels)).is_none_or(|known| known != value)
            };
            let series: BTreeMap<Labels, Value> = family
                .series
                .iter()
                .filter(|(labels, value)| other(labels, value))
                .map(|(labels, value)| (labels.clone(), value.clone()))
                .collect();
            if !series.is_empty() {
                changed.0.insert(name.clone(), Family { help: family.help.clone(), series });
            }
        }
        changed
    }

    /// Takes newer values of the same process.
    pub fn update(&mut self, newer: Self) {
        for (name, family) in newer.0 {
            let known = self.0.entry(name).or_default();
            known.help = family.help;
            known.series.extend(family.series);
        }
    }

    /// Adds what another process counted; with `open`, what is open in it too.
    pub(super) fn add(&mut self, other: &Self, open: bool) {
        for (name, family) in &other.0 {
            for (labels, value) in &family.series {
                if matches!(value, Value::Gauge(_)) && !open {
                    continue;
                }
                let known = self.0.entry(name.clone()).or_default();
                known.help.clone_from(&family.help);
                match known.series.get_mut(labels) {
                    Some(known) => known.add(value),
                    None => {
                        known.series.insert(labels.clone(), value.clone());
                    }
                }
            }
        }
    }

    /// Adds all of it to what a registry gathered.
    pub(super) fn add_to(mut self, families: &mut Vec<MetricFamily>) {
        for family in families.iter_mut() {
            let mut others = self.0.remove(family.name()).unwrap_or_default();
            let kind = family.get_field_type();
            for metric in family.mut_metric() {
                let other = others.series.remove(&labels(metric));
                let Some(mut own) = value_of(kind, metric) else { continue };
                match &other {
                    Some(other) => own.add_at_own_edges(other),
                    None if kind == MetricType::GAUGE => continue,
                    // Rounded even so: what is rounded only once there is another would fall.
                    None => {}
                }
                own.write(metric);
            }
            let rest = others.series.iter().filter(|(_, value)| value.kind() == kind);
            let rest: Vec<Metric> = rest.map(|(labels, value)| metric(labels, value)).collect();
            family.mut_metric().extend(rest);
        }
        for (name, family) in self.0 {
            let Some(kind) = family.series.values().next().map(Value::kind) else { continue };
            let mut made = MetricFamily::default();
            made.set_name(name);
            made.set_help(family.help);
            made.set_field_type(kind);
            let series = family.series.iter().filter(|(_, value)| value.kind() == kind);
            made.set_metric(series.map(|(labels, value)| metric(labels, value)).collect());
            families.push(made);
        }
        families.sort_by(|a, b| a.name().cmp(b.name()));
    }
}

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(..) => MetricType::COUNTER,
            Self::Gauge(_) => MetricType::GAUGE,
            Self::Histogram(_) => MetricType::HISTOGRAM,
        }
    }

    /// Another version may have made something else of the same name: that adds nothing.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Counter(own, parts), Self::Counter(other, other_parts)) => {
                *parts = parts.saturating_add(*other_parts);
                *own = own.saturating_add(*other).saturating_add(*parts / ONE);
                *parts %= ONE;
            }
            (Self::Gauge(own), Self::Gauge(other)) => *own = own.saturating_add(*other),
            (Self::Histogram(own), Self::Histogram(other)) => {
                let mut edges: Vec<String> = own.buckets.iter().map(|(edge, _)| edge.clone()).collect();
                if !own.same_edges(other) {
                    edges.extend(other.buckets.iter().map(|(edge, _)| edge.clone()));
                    edges.sort_by(|a, b| number(a).total_cmp(&number(b)));
                    edges.dedup();
                }
                own.add(other, &edges);
            }
            _ => {}
        }
    }

    /// The same, but a histogram keeps its edges.
    fn add_at_own_edges(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Histogram(own), Self::Histogram(other)) => {
                let edges: Vec<String> = own.buckets.iter().map(|(edge, _)| edge.clone()).collect();
                own.add(other, &edges);
            }
            _ => self.add(other),
        }
    }

    fn write(&self, metric: &mut Metric) {
        match self {
            Self::Counter(value, parts) => {
                let mut counter = Counter::default();
                counter.set_value(float(*value) + float(*parts) / PARTS);
                metric.set_counter(counter);
            }
            Self::Gauge(value) => {
                let mut gauge = Gauge::default();
                let size = float(value.unsigned_abs());
                gauge.set_value(if *value < 0 { -size } else { size });
                metric.set_gauge(gauge);
            }
            Self::Histogram(observed) => {
                let mut histogram = Histogram::default();
                histogram.set_sample_count(observed.count);
                histogram.set_sample_sum(float(observed.sum) / PARTS);
                let buckets = observed.buckets.iter().map(|(edge, below)| {
                    let mut bucket = Bucket::default();
                    bucket.set_upper_bound(number(edge));
                    bucket.set_cumulative_count(*below);
                    bucket
                });
                histogram.set_bucket(buckets.collect());
                metric.set_histogram(histogram);
            }
        }
    }
}

impl Observed {
    fn same_edges(&self, other: &Self) -> bool {
        self.buckets.iter().map(|(edge, _)| edge).eq(other.buckets.iter().map(|(edge, _)| edge))
    }

    /// How many values are known to be not above `edge`.
    fn below(&self, edge: f64) -> u64 {
        let known = self.buckets.iter().filter(|(known, _)| number(known) <= edge);
        known.map(|(_, below)| *below).max().unwrap_or(0)
    }

    fn add(&mut self, other: &Self, edges: &[String]) {
        let sums = edges.iter().map(|edge| {
            let at = number(edge);
            (edge.clone(), self.below(at).saturating_add(other.below(at)))
        });
        self.buckets = sums.collect();
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

fn labels(metric: &Metric) -> Labels {
    metric.get_label().iter().map(|pair| (pair.name().to_owned(), pair.value().to_owned())).collect()
}

/// The value of a series that is added up.
fn value(family: &MetricFamily, metric: &Metric) -> Option<Value> {
    let kind = family.get_field_type();
    let name = family.name();
    if kind == MetricType::GAUGE && !OPEN.contains(&name) && !name.starts_with(OPEN_PREFIX) {
        return None;
    }
    value_of(kind, metric)
}

fn value_of(kind: MetricType, metric: &Metric) -> Option<Value> {
    match kind {
        MetricType::COUNTER => {
            let value = metric.get_counter().get_value();
            let parts = whole(value.fract() * PARTS);
            Some(Value::Counter(whole(value.trunc()).saturating_add(parts / ONE), parts % ONE))
        }
        MetricType::GAUGE => {
            let value = metric.get_gauge().get_value();
            let size = i64::try_from(whole(value.abs())).unwrap_or(i64::MAX);
            // One that is no whole number, or none at all, stays as it is.
            (value.fract() == 0.0).then_some(Value::Gauge(if value < 0.0 { -size } else { size }))
        }
        MetricType::HISTOGRAM => {
            let histogram = metric.get_histogram();
            let buckets = histogram.get_bucket().iter();
            let buckets = buckets.filter(|bucket| bucket.upper_bound().is_finite());
            Some(Value::Histogram(Observed {
                count: histogram.get_sample_count(),
                sum: whole(histogram.get_sample_sum() * PARTS),
                buckets: buckets.map(|b| (b.upper_bound().to_string(), b.cumulative_count())).collect(),
            }))
        }
        _ => None,
    }
}

fn metric(labels: &Labels, value: &Value) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.clone());
        pair.set_value(value.clone());
        pair
    });
    let mut metric = Metric::from_label(pairs.collect());
    value.write(&mut metric);
    metric
}

/// An edge; one that is no number is above everything.
fn number(edge: &str) -> f64 {
    edge.parse().unwrap_or(f64::INFINITY)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; counts are not negative"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float; exact up to 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

fn to_pairs<S: Serializer>(series: &BTreeMap<Labels, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(series)
}

fn from_pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Labels, Value>, D::Error> {
    Ok(Vec::deserialize(deserializer)?.into_iter().collect())
}

#[cfg(test)]
mod tests;
