use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use super::*;

/// The registry of one process.
struct Process {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    open: IntGauge,
    entries: IntGauge,
}

impl Process {
    fn new(buckets: &[f64]) -> Self {
        let registry = Registry::new();
        let requests = IntCounterVec::new(Opts::new("cube_proxy_request_total", "Requests."), &["route"]);
        let opts = HistogramOpts::new("cube_proxy_seconds", "Times.").buckets(buckets.to_vec());
        let process = Self {
            requests: requests.unwrap(),
            seconds: HistogramVec::new(opts, &["route"]).unwrap(),
            open: IntGauge::new("cube_proxy_open_streams", "Open.").unwrap(),
            entries: IntGauge::new("cube_proxy_cache_entries", "Entries.").unwrap(),
            registry,
        };
        process.registry.register(Box::new(process.requests.clone())).unwrap();
        process.registry.register(Box::new(process.seconds.clone())).unwrap();
        process.registry.register(Box::new(process.open.clone())).unwrap();
        process.registry.register(Box::new(process.entries.clone())).unwrap();
        process
    }

    fn counted(&self) -> Counted {
        Counted::of(&self.registry.gather())
    }

    fn request(&self, route: &str, seconds: f64) {
        self.requests.with_label_values(&[route]).inc();
        self.seconds.with_label_values(&[route]).observe(seconds);
    }

    fn text(&self, others: &Counted) -> String {
        let mut families = self.registry.gather();
        others.clone().add_to(&mut families);
        TextEncoder::new().encode_to_string(&families).unwrap()
    }
}

/// Over the wire and back.
fn sent(counted: &Counted) -> Counted {
    serde_json::from_str(&serde_json::to_string(counted).unwrap()).unwrap()
}

fn holds(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line}\n{text}");
    }
}

#[test]
fn counters_histograms_and_what_is_open_add_and_other_gauges_do_not() {
    let (old, new) = (Process::new(&[0.1, 0.3]), Process::new(&[0.1, 0.3]));
    old.request("files", 0.2);
    old.request("exec", 0.05);
    old.open.set(2);
    old.entries.set(7);
    new.request("files", 0.1);
    new.open.set(1);
    new.entries.set(3);
    let mut others = Counted::default();
    others.add(&sent(&old.counted()), true);
    holds(
        &new.text(&others),
        &[
            r#"cube_proxy_request_total{route="files"} 2"#,
            r#"cube_proxy_request_total{route="exec"} 1"#,
            r#"cube_proxy_seconds_bucket{route="files",le="0.1"} 1"#,
            r#"cube_proxy_seconds_bucket{route="files",le="0.3"} 2"#,
            r#"cube_proxy_seconds_bucket{route="files",le="+Inf"} 2"#,
            r#"cube_proxy_seconds_sum{route="files"} 0.3"#,
            r#"cube_proxy_seconds_count{route="files"} 2"#,
            "cube_proxy_open_streams 3",
            "cube_proxy_cache_entries 3",
        ],
    );
    // It has ended: what it counted stays, what was open in it is not.
    let mut ended = Counted::default();
    ended.add(&old.counted(), false);
    let text = new.text(&ended);
    holds(&text, &[r#"cube_proxy_request_total{route="files"} 2"#, "cube_proxy_open_streams 1"]);
    assert_eq!(text.matches("# TYPE cube_proxy_request_total counter").count(), 1);
}

#[test]
fn a_counter_of_fractions_does_not_fall_when_its_process_is_another() {
    let process = || {
        let registry = Registry::new();
        let cpu = prometheus::Counter::new("process_cpu_seconds_total", "Time.").unwrap();
        registry.register(Box::new(cpu.clone())).unwrap();
        (registry, cpu)
    };
    let scraped = |registry: &Registry, others: &Counted| {
        let mut families = registry.gather();
        others.clone().add_to(&mut families);
        families[0].get_metric()[0].get_counter().get_value()
    };
    let ((old, old_cpu), (new, new_cpu)) = (process(), process());
    for step in [0.300_000_4, 12.345_678_4, 0.999_999_9, 2_000_000.123_456_4] {
        old_cpu.inc_by(step);
        let before = scraped(&old, &Counted::default());
        let mut others = Counted::default();
        others.add(&sent(&Counted::of(&old.gather())), false);
        assert!(scraped(&new, &others) >= before, "{before} and {}", scraped(&new, &others));
    }
    new_cpu.inc_by(0.75);
    let mut others = Counted::default();
    others.add(&Counted::of(&old.gather()), false);
    others.add(&Counted::of(&new.gather()), false);
    assert!((scraped(&new, &others) - old_cpu.get() - 1.5).abs() < 1e-5);
}

#[test]
fn what_only_the_other_process_has_is_told_with_its_kind() {
    let old = Process::new(&[0.1]);
    old.request("files", 0.05);
    let mut families = Vec::new();
    sent(&old.counted()).add_to(&mut families);
    let text = TextEncoder::new().encode_to_string(&families).unwrap();
    holds(
        &text,
        &[
            "# TYPE cube_proxy_request_total counter",
            "# HELP cube_proxy_request_total Requests.",
            "# TYPE cube_proxy_seconds histogram",
            r#"cube_proxy_request_total{route="files"} 1"#,
            r#"cube_proxy_seconds_bucket{route="files",le="0.1"} 1"#,
        ],
    );
}

#[test]
fn sums_do_not_depend_on_where_a_process_is_counted() {
    let processes: Vec<Process> = (0..20).map(|_| Process::new(&[0.1])).collect();
    for (n, process) in processes.iter().enumerate() {
        for k in 0..50_u32 {
            process.request("files", 0.1 * f64::from(k) + 1e-9 * f64::from(u32::try_from(n).unwrap()));
        }
    }
    let main = Process::new(&[0.1]);
    main.request("files", 0.7);
    let texts = [false, true].map(|backwards| {
        let mut others = Counted::default();
        let mut order: Vec<&Process> = processes.iter().collect();
        if backwards {
            order.reverse();
        }
        for process in order {
            others.add(&process.counted(), false);
        }
        main.text(&others)
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn edges_of_another_version_add_what_is_known_to_be_below() {
    let (old, new) = (Process::new(&[0.05, 0.2]), Process::new(&[0.1, 0.3]));
    for seconds in [0.01, 0.15, 9.0] {
        old.request("files", seconds);
    }
    let mut others = Counted::default();
    others.add(&old.counted(), true);
    others.add(&new.counted(), true);
    new.request("files", 0.1);
    holds(
        &new.text(&others),
        &[
            r#"cube_proxy_seconds_bucket{route="files",le="0.1"} 2"#,
            r#"cube_proxy_seconds_bucket{route="files",le="0.3"} 3"#,
            r#"cube_proxy_seconds_bucket{route="files",le="+Inf"} 4"#,
        ],
    );
}

#[test]
fn only_what_changed_is_sent_and_comes_to_the_same() {
    let process = Process::new(&[0.1]);
    process.request("files", 0.2);
    process.request("exec", 0.2);
    let first = process.counted();
    process.request("files", 0.3);
    let second = process.counted();
    let changed = second.since(&first);
    assert_eq!(changed.0.values().map(|family| family.series.len()).sum::<usize>(), 2);
    let mut known = sent(&first);
    known.update(sent(&changed));
    assert_eq!(known, second);
    assert_eq!(second.since(&second), Counted::default());
}
