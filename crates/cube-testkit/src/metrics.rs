//! Reads the Prometheus text format.

use std::collections::{BTreeMap, BTreeSet};

/// What `/metrics` said at one moment.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<(String, BTreeMap<String, String>, f64)>);

impl Metrics {
    /// Parses the text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        Self(lines.map(sample).collect())
    }

    /// The sum over all samples of that name that carry these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |have: &BTreeMap<String, String>| {
            labels.iter().all(|(label, value)| have.get(*label).is_some_and(|have| have == value))
        };
        self.0.iter().filter(|(n, have, _)| n == name && carries(have)).map(|(_, _, value)| value).sum()
    }

    /// The same for a counter.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is counted is whole, and far below what a float holds exactly"
    )]
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> usize {
        self.sum(name, labels) as usize
    }

    /// The values that a label of that name has, over all samples of that metric.
    #[must_use]
    pub fn labels(&self, name: &str, label: &str) -> BTreeSet<String> {
        let samples = self.0.iter().filter(|(n, _, _)| n == name);
        samples.filter_map(|(_, labels, _)| labels.get(label).cloned()).collect()
    }

    /// Every sample: its name, its labels, its value.
    pub fn samples(&self) -> impl Iterator<Item = (&str, &BTreeMap<String, String>, f64)> {
        self.0.iter().map(|(name, labels, value)| (name.as_str(), labels, *value))
    }

    /// Whether there is a sample of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _, _)| n == name)
    }
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line:?}"));
    let value = value.parse().unwrap_or_else(|_| panic!("no number: {line:?}"));
    let Some((name, labels)) = series.split_once('{') else {
        return (series.to_owned(), BTreeMap::new(), value);
    };
    let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
    let labels = labels.map(|label| {
        let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("no label: {line:?}"));
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    });
    (name.to_owned(), labels.collect(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_label() {
        let text = "# HELP a b\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4\na{x=\"2\",y=\"2\"} 8\nb 1.5\n";
        let metrics = Metrics::parse(text);
        let sums = (metrics.sum("a", &[("x", "1")]), metrics.sum("a", &[]), metrics.sum("b", &[]));
        assert_eq!(sums, (7.0, 15.0, 1.5));
        assert!(metrics.has("b") && !metrics.has("c"));
    }
}
