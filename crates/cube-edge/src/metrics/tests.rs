use super::*;
use prometheus::TextEncoder;

fn text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
}

fn some(retcode: Retcode, reason: Reason) -> Finished {
    Finished {
        method: MethodClass::Get,
        route: RouteClass::Files,
        success: true,
        took: Duration::from_millis(3),
        retcode,
        reason,
        form: FormClass::Host,
    }
}

#[test]
fn a_request_counts_once_in_each_of_its_metrics() {
    let registry = Registry::new();
    let metrics = EdgeMetrics::new(&registry).unwrap();
    metrics.finished(&some(Retcode::Passed(200), Reason::Ok));
    let out = text(&registry);
    for line in [
        r#"cube_proxy_request_total{method="GET",result="success",route="sandbox_files"} 1"#,
        r#"cube_proxy_request_duration_seconds_count{method="GET",result="success",route="sandbox_files"} 1"#,
        r#"cube_proxy_request_duration_seconds_bucket{method="GET",result="success",route="sandbox_files",le="0.002"} 0"#,
        r#"cube_proxy_request_duration_seconds_bucket{method="GET",result="success",route="sandbox_files",le="0.004"} 1"#,
        r#"cube_proxy_answers_total{form="host",reason="ok",retcode="310200"} 1"#,
    ] {
        assert!(out.lines().any(|l| l == line), "{line}\n{out}");
    }
}

#[test]
fn the_duration_has_the_old_gateways_buckets() {
    let registry = Registry::new();
    let _metrics = EdgeMetrics::new(&registry).unwrap();
    let out = text(&registry);
    let edges: Vec<f64> = out
        .lines()
        .filter(|line| {
            line.starts_with(
                r#"cube_proxy_request_duration_seconds_bucket{method="GET",result="fail",route="other""#,
            )
        })
        .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse().ok())
        .collect();
    let want: Vec<f64> = (0..14).map(|n| 0.001 * f64::from(1 << n)).chain([f64::INFINITY]).collect();
    assert_eq!(edges, want);
}

#[test]
fn responses_add_up_and_their_labels_are_bounded() {
    let registry = Registry::new();
    let metrics = EdgeMetrics::new(&registry).unwrap();
    for status in 0..2000 {
        metrics.finished(&some(Retcode::Passed(status), Reason::UpstreamStatus));
    }
    let out = text(&registry);
    let counts: Vec<u64> = out
        .lines()
        .filter(|line| line.starts_with("cube_proxy_answers_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), 2000);
    assert!(counts.len() < 70, "{}", counts.len());
}

#[test]
fn a_guard_holds_its_gauge_up_while_it_lives() {
    let registry = Registry::new();
    let metrics = EdgeMetrics::new(&registry).unwrap();
    let guard = metrics.inflight(RouteClass::Exec);
    let _open = metrics.connection(ListenerClass::Https, ProtocolClass::H2);
    assert!(text(&registry).contains(r#"cube_proxy_inflight_requests{route="sandbox_exec"} 1"#));
    assert!(text(&registry).contains(r#"cube_proxy_client_connections{listener="https",protocol="h2"} 1"#));
    drop(guard);
    assert!(text(&registry).contains(r#"cube_proxy_inflight_requests{route="sandbox_exec"} 0"#));
}

#[test]
fn every_name_of_the_operations_page_is_there() {
    let registry = Registry::new();
    let metrics = EdgeMetrics::new(&registry).unwrap();
    metrics.finished(&some(Retcode::NoRoute, Reason::NoRecord));
    metrics.certificate_expires("/etc/chain.pem", 1_900_000_000);
    let out = text(&registry);
    for name in [
        "request_total",
        "inflight_requests",
        "request_duration_seconds",
        "answers_total",
        "upstream_first_byte_seconds",
        "added_latency_seconds",
        "previews_total",
        "upstream_connects_total",
        "upstream_reused_total",
        "upstream_retries_total",
        "open_streams",
        "open_websockets",
        "client_connections",
        "bytes_total",
        "tls_handshakes_total",
        "tls_certificate_expiry_timestamp_seconds",
        "access_log_lines_total",
        "access_log_dropped_total",
        "build_info",
    ] {
        assert!(out.contains(&format!("# TYPE cube_proxy_{name} ")), "{name}");
    }
    assert!(out.contains("process_resident_memory_bytes"));
}
