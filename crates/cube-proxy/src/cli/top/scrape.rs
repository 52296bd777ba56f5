//! What `/metrics` says at one moment (the Prometheus text format).

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use super::super::admin;
use crate::config::Config;
use crate::error::StartError;

/// Sandboxes that are asked for: as many as a tall terminal shows.
const MOST: usize = 60;

/// One look at the running proxy.
#[derive(Debug)]
pub(super) struct Scrape {
    /// When it was taken.
    pub(super) at: Instant,
    pub(super) series: Series,
    /// The response of `GET /admin/top`.
    pub(super) top: Value,
    /// The response of `GET /admin/processes`; null where the proxy is of a version without it.
    pub(super) processes: Value,
}

impl Scrape {
    /// Asks the proxy that runs with this configuration.
    ///
    /// # Errors
    /// [`StartError`] when it does not answer as it should.
    pub(super) async fn take(config: &Config) -> Result<Self, StartError> {
        let target = format!("/admin/top?most={MOST}");
        let top = admin::ask(config, http::Method::GET, &target, String::new()).await?;
        let processes = admin::processes(config).await.unwrap_or_default();
        let text = admin::metrics(config).await?;
        Ok(Self { at: Instant::now(), series: Series::parse(&text), top, processes })
    }
}

/// One value of a metric and its labels.
#[derive(Debug, Clone, PartialEq)]
struct MetricSample {
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Values by name and labels.
#[derive(Debug, Default)]
pub(super) struct Series(BTreeMap<String, Vec<MetricSample>>);

impl Series {
    /// Reads the text. A line that is no sample is passed over: what it would have said counts as 0.
    pub(super) fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for (name, entry) in text.lines().filter_map(line) {
            all.0.entry(name).or_default().push(entry);
        }
        all
    }

    /// The sum over all series of that name that carry these labels.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries =
            |entry: &&MetricSample| labels.iter().all(|(label, value)| entry.label(label) == Some(*value));
        self.of(name).iter().filter(carries).map(|entry| entry.value).sum()
    }

    /// Whether there is a series of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The sums of that name by the values of some labels.
    pub(super) fn by<const N: usize>(&self, name: &str, labels: [&str; N]) -> BTreeMap<[String; N], f64> {
        let mut sums = BTreeMap::new();
        for entry in self.of(name) {
            let key = labels.map(|label| entry.label(label).unwrap_or_default().to_owned());
            *sums.entry(key).or_insert(0.0) += entry.value;
        }
        sums
    }

    /// The buckets of a histogram, over all its labels: upper edge and how many were below it.
    pub(super) fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let sums = self.by(&format!("{name}_bucket"), ["le"]);
        let mut buckets: Vec<(f64, f64)> =
            sums.into_iter().filter_map(|([edge], count)| Some((number(&edge)?, count))).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }

    fn of(&self, name: &str) -> &[MetricSample] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

impl MetricSample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

fn number(text: &str) -> Option<f64> {
    // `+Inf` and `NaN` are read as Rust writes them too.
    text.parse().ok()
}

/// `name{label="value",...} number`, and nothing else that begins otherwise.
fn line(text: &str) -> Option<(String, MetricSample)> {
    if text.starts_with('#') {
        return None;
    }
    let (series, value) = text.rsplit_once(' ')?;
    let value = number(value)?;
    let Some((name, rest)) = series.split_once('{') else {
        return Some((series.to_owned(), MetricSample { labels: BTreeMap::new(), value }));
    };
    Some((name.to_owned(), MetricSample { labels: labels(rest.strip_suffix('}')?)?, value }))
}

/// `a="b",c="d"`, with `\\`, `\"` and `\n` in values.
fn labels(mut text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        let rest = rest.get(end + 1..)?;
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_with_their_labels() {
        let text = "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"q\\\"}\\\\,\"} 4\nb 1.5\nrubbish\n";
        let series = Series::parse(text);
        assert_eq!(series.sum("a", &[]), 7.0);
        assert_eq!(series.sum("a", &[("y", "q\"}\\,")]), 4.0);
        assert_eq!(series.sum("b", &[]), 1.5);
        assert!(series.has("b") && !series.has("rubbish"));
        let by = series.by("a", ["x"]);
        assert_eq!(by.into_iter().collect::<Vec<_>>(), [(["1".to_owned()], 7.0)]);
    }

    #[test]
    fn buckets_are_added_over_labels_and_sorted() {
        let text = "h_bucket{a=\"x\",le=\"+Inf\"} 5\nh_bucket{a=\"x\",le=\"0.1\"} 1\nh_bucket{a=\"x\",le=\"2\"} 3\n\
                    h_bucket{a=\"y\",le=\"+Inf\"} 1\nh_bucket{a=\"y\",le=\"0.1\"} 1\nh_bucket{a=\"y\",le=\"2\"} 1\n";
        let buckets = Series::parse(text).buckets("h");
        assert_eq!(buckets, [(0.1, 2.0), (2.0, 4.0), (f64::INFINITY, 6.0)]);
    }
}
