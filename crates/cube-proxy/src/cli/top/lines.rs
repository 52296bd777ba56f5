//! The figures as plain text: one line an interval, or one table.

use super::figures::{DrainingProcess, Figures};

/// After so many lines their header is repeated.
pub(super) const HEADER_EVERY: u32 = 20;

/// The columns of [`line`]: title, width.
const COLUMNS: [(&str, usize); 11] = [
    ("req/s", 9),
    ("fail/s", 8),
    ("p50_ms", 9),
    ("p99_ms", 9),
    ("hit%", 6),
    ("inflight", 9),
    ("streams", 8),
    ("ws", 6),
    ("held", 6),
    ("conns", 7),
    ("nodes_out", 10),
];

/// The titles.
pub(super) fn header() -> String {
    row(COLUMNS.map(|(title, _)| title.to_owned()))
}

/// One interval.
pub(super) fn line(figures: &Figures) -> String {
    let refused = figures.open_nodes.len() + figures.faulty_nodes.len();
    row([
        rate(figures.requests),
        rate(figures.failed),
        millis(figures.p50_ms),
        millis(figures.p99_ms),
        percent(figures.cache_hit_rate),
        figures.under_way.to_string(),
        figures.open_streams.to_string(),
        figures.open_websockets.to_string(),
        figures.held.to_string(),
        figures.connections.to_string(),
        refused.to_string(),
    ])
}

fn row(cells: [String; COLUMNS.len()]) -> String {
    let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    cells.collect::<String>()
}

/// Everything, for a look in between.
pub(super) fn table(figures: &Figures) -> Vec<String> {
    let mut lines = vec![title(figures)];
    for block in blocks(figures) {
        for (name, value) in block {
            lines.push(format!("{name:<12} {value}"));
        }
    }
    lines.push(String::new());
    lines.push(format!("{:<34} {:>9} {:>9}  state", "busiest sandboxes", "req/s", "inflight"));
    for sandbox in &figures.busiest {
        let state = sandbox.state.as_deref().unwrap_or("-");
        let requests = sandbox.requests.map_or_else(|| "-".to_owned(), rate);
        lines.push(format!("{:<34} {requests:>9} {:>9}  {state}", sandbox.sandbox_id, sandbox.under_way));
    }
    lines.push(String::new());
    lines.push(format!("{:<34} {:>9}", "answers", "req/s"));
    for response in &figures.responses {
        lines.push(format!("{:<8}{:<26} {:>9}", response.retcode, response.reason, rate(response.requests)));
    }
    lines
}

/// Who this is and how it does.
pub(super) fn title(figures: &Figures) -> String {
    let state = match &figures.reason {
        _ if figures.ready => "ready".to_owned(),
        Some(reason) => format!("NOT READY: {reason}"),
        None => "NOT READY".to_owned(),
    };
    format!("cube-proxy {}, up {}, {state}", figures.version, time(figures.uptime_seconds))
}

/// Names and values, in blocks that belong together.
pub(super) fn blocks(figures: &Figures) -> [Vec<(&'static str, String)>; 2] {
    let mut blocks = of_the_service(figures);
    let [first, _] = &mut blocks;
    first.extend(figures.draining.iter().map(|process| ("draining", draining(process))));
    blocks
}

/// One process that drains.
fn draining(process: &DrainingProcess) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let DrainingProcess { pid, version, .. } = process;
    let version = version.as_deref().unwrap_or("an older version");
    let mut line = format!("{pid} ({version}): {} streams", number(process.streams));
    let times = [
        (", oldest ", process.oldest_seconds),
        (", for ", process.draining_seconds),
        (", ends in ", process.deadline_seconds),
    ];
    for (what, seconds) in times {
        if let Some(seconds) = seconds {
            line.push_str(what);
            line.push_str(&time(seconds));
        }
    }
    line
}

fn of_the_service(figures: &Figures) -> [Vec<(&'static str, String)>; 2] {
    let tracked = match figures.cache_tracked {
        Some(true) => "changes are pushed",
        Some(false) => "CHANGES ARE NOT PUSHED",
        None => "from a file",
    };
    let refused = |nodes: &[String]| if nodes.is_empty() { "none".to_owned() } else { nodes.join(" ") };
    [
        vec![
            ("requests", format!("{}/s, failed {}/s", rate(figures.requests), rate(figures.failed))),
            (
                "latency",
                format!(
                    "p50 {} ms, p99 {} ms; to first byte p99 {} ms",
                    millis(figures.p50_ms),
                    millis(figures.p99_ms),
                    millis(figures.first_byte_p99_ms)
                ),
            ),
            (
                "of the proxy",
                format!("p50 {} ms, p99 {} ms", millis(figures.added_p50_ms), millis(figures.added_p99_ms)),
            ),
            (
                "under way",
                format!(
                    "{} in {} sandboxes; {} streams, {} websockets, {} held",
                    figures.under_way,
                    figures.sandboxes_under_way,
                    figures.open_streams,
                    figures.open_websockets,
                    figures.held
                ),
            ),
            ("clients", format!("{} connections", figures.connections)),
        ],
        vec![
            (
                "cache",
                format!(
                    "{}% hits, {} sandboxes, {tracked}",
                    percent(figures.cache_hit_rate),
                    figures.cache_entries
                ),
            ),
            (
                "store",
                format!("p99 {} ms, errors {}/s", millis(figures.store_p99_ms), rate(figures.store_errors)),
            ),
            ("upstream", format!("{}/s new, {}/s reused", rate(figures.connects), rate(figures.reused))),
            ("bytes", format!("{}/s in, {}/s out", bytes(figures.bytes_in), bytes(figures.bytes_out))),
            (
                "process",
                format!(
                    "{:.2} cores, {}, {} files, {} log lines lost",
                    figures.cores,
                    bytes(count(figures.resident_bytes)),
                    figures.open_files,
                    figures.log_lines_lost
                ),
            ),
            (
                "nodes out",
                format!(
                    "breaker: {}; shared set: {}",
                    refused(&figures.open_nodes),
                    refused(&figures.faulty_nodes)
                ),
            ),
        ],
    ]
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn count(value: u64) -> f64 {
    value as f64
}

/// A number that is read at a glance.
pub(super) fn rate(value: f64) -> String {
    if value >= 100.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Milliseconds, `-` where nothing was measured.
pub(super) fn millis(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 1.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", share * 100.0))
}

fn bytes(value: f64) -> String {
    let units = [(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", value / unit),
        None => format!("{value:.0} B"),
    }
}

fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::figures;
    use super::*;

    #[test]
    fn a_line_stands_below_its_header() {
        let (header, line) = (header(), line(&figures()));
        assert_eq!(header.len(), line.len());
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["100", "5.0", "1.0", "2.0", "95.0", "0", "0", "2", "3", "0", "1"]);
    }

    #[test]
    fn the_table_has_it_all() {
        let table = table(&figures()).join("\n");
        for shown in ["cube-proxy 0.1.0", "ready", "box-1", "310200  ok", "340500  faulty_node", "10.0.0.7"] {
            assert!(table.contains(shown), "no {shown} in\n{table}");
        }
    }

    #[test]
    fn a_process_that_drains_has_a_line() {
        let table = table(&figures());
        let lines: Vec<&String> = table.iter().filter(|line| line.starts_with("draining")).collect();
        assert_eq!(
            lines,
            [
                "draining     4711 (0.0.9): 2 streams, oldest 1h00m, for 5m00s, ends in 55m00s",
                "draining     4712 (an older version): ? streams",
            ]
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([rate(0.0), rate(0.25), rate(12.34), rate(1234.5)], ["0", "0.2", "12.3", "1234"]);
        assert_eq!([millis(None), millis(Some(0.0421)), millis(Some(12.34))], ["-", "0.042", "12.3"]);
        assert_eq!([bytes(10.0), bytes(2048.0), bytes(3_221_225_472.0)], ["10 B", "2.0 KiB", "3.0 GiB"]);
        assert_eq!([time(59), time(61), time(3700), time(90_000)], ["59s", "1m01s", "1h01m", "1d01h"]);
    }
}
