//! Traces for an OpenTelemetry collector (fleet.md, "Tracing"), as a receiver of these tests gets them.

mod receiver;

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{
    Authority, By, Env, Gate, Origin, Response, Resume, SECRETS, Sandbox, eventually, refused_port,
};
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::hot_restart::{Stream, mirror};
use crate::store::cached;
use crate::support::{builder, own, waking_with};
use receiver::{Receiver, attribute, attributes, failed, has, hex, parent};

const TOKEN: &str = "e2b-traffic-access-token";

async fn get(env: &Env, sandbox: &Sandbox, traceparent: &str) -> Response {
    env.get_with(sandbox, "/secret-path?q=secret-query", &[("traceparent", traceparent)]).await
}

/// The line of the access log with a request id.
async fn logged(env: &Env, response: &Response) -> Value {
    let id = response.request_id();
    eventually("a line of the access log", || async {
        let log = env.proxy.access_log();
        let line = log.lines().find(|line| line.contains(&id))?;
        Some(cube_testkit::serde_json::from_str(line).expect("JSON"))
    })
    .await
}

#[tokio::test]
async fn a_cold_and_a_cached_request_have_their_spans_and_the_sandbox_continues_the_trace() {
    let receiver = Receiver::start().await;
    let env = receiver.env(1.0, json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let (cold, header) = parent("01");
    let response = get(&env, &sandbox, &header).await;
    let seen = response.seen();
    let trace = receiver.trace(&cold).await;
    assert_eq!(trace.names(), ["lookup", "upstream"], "{trace:?}");
    let (server, upstream) = (&trace.server, &trace.children[1]);
    assert_eq!(
        (server.name.as_str(), hex(&server.parent_span_id).as_str()),
        ("GET host", "00f067aa0ba902b7")
    );
    let port = origin.port().to_string();
    has(
        server,
        &[
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("network.peer.address", "127.0.0.1"),
            ("client.address", "127.0.0.1"),
            ("url.scheme", "http"),
            ("cube.sandbox_id", &sandbox.id),
            ("cube.container_port", "8080"),
            ("cube.retcode", "310200"),
            ("cube.reason", "ok"),
            ("cube.resolve", "miss"),
        ],
    );
    has(
        upstream,
        &[("server.address", "127.0.0.1"), ("server.port", &port), ("http.response.status_code", "200")],
    );
    assert!(!failed(server) && !failed(upstream) && attribute(server, "cube.held_ms").is_none(), "{trace:?}");
    assert_eq!(seen.headers.all("traceparent"), [format!("00-{cold}-{}-01", hex(&upstream.span_id))]);
    assert_eq!(logged(&env, &response).await["trace_id"], json!(cold));
    let resource = receiver.exports().remove(0).resource.unwrap();
    assert_eq!(attributes(&resource.attributes)["service.name"], "cube-proxy");

    cached(&env, &sandbox).await;
    let (hit, header) = parent("01");
    let named = [("traceparent", header.as_str())];
    env.call(By::Path, &sandbox, "POST", "/secret-path", &named, "").await.passed(200);
    let trace = receiver.trace(&hit).await;
    assert_eq!((trace.names(), trace.server.name.as_str()), (vec!["upstream"], "POST path"));
    assert_eq!(attribute(&trace.server, "cube.resolve").as_deref(), Some("hit"));
}

#[tokio::test]
async fn a_response_from_memory_has_no_attempt_and_a_refusal_says_why() {
    let receiver = Receiver::start().await;
    let env = receiver.env(1.0, json!({ "response_cache": { "enabled": true } })).await;
    let origin = Origin::replying(200, &[("Cache-Control", "public, max-age=60")], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    eventually("a response from memory", || async {
        let response = env.get(&sandbox, "/page").await;
        (response.headers.get("x-cube-cache") == Some("HIT")).then_some(())
    })
    .await;
    let (stored, header) = parent("00");
    env.get_with(&sandbox, "/page", &[("traceparent", &header)]).await.passed(200);
    let trace = receiver.trace(&stored).await;
    assert!(trace.names().is_empty(), "{trace:?}");
    assert_eq!(attribute(&trace.server, "cube.reason").as_deref(), Some("ok"));

    let (refused, header) = parent("00");
    get(&env, &env.nobody(), &header).await.is_not_found();
    let trace = receiver.trace(&refused).await;
    assert_eq!(trace.names(), ["lookup"]);
    has(
        &trace.server,
        &[("http.response.status_code", "404"), ("cube.retcode", "310507"), ("cube.reason", "no_record")],
    );
    assert!(!failed(&trace.server), "the client's fault: {trace:?}");

    let nowhere = env.sandbox_at(([127, 0, 0, 1], refused_port()).into()).await;
    let (broken, header) = parent("00");
    let response = get(&env, &nowhere, &header).await;
    assert!(response.status >= 500, "{}", response.brief());
    let trace = receiver.trace(&broken).await;
    assert!(failed(&trace.server), "{trace:?}");
    let attempts: Vec<_> = trace.children.iter().filter(|child| child.name == "upstream").collect();
    assert!(!attempts.is_empty() && attempts.iter().all(|attempt| failed(attempt)), "{trace:?}");
    assert!(attempts.iter().all(|attempt| attribute(attempt, "error.type").is_some()), "{trace:?}");
}

#[tokio::test]
async fn a_request_that_wakes_its_sandbox_tells_how_long_it_was_held() {
    let receiver = Receiver::start().await;
    let env = waking_with(receiver.config(1.0)).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let gate = Gate::new();
    env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
    env.push(&sandbox, "paused").await;
    let (held, header) = parent("01");
    let request = get(&env, &sandbox, &header);
    let wake = async {
        env.manager.wait_for(&sandbox, 1).await;
        gate.open();
    };
    let (response, ()) = tokio::join!(request, wake);
    response.passed(200);
    let trace = receiver.trace(&held).await;
    assert_eq!(trace.names(), ["lookup", "resume", "lookup", "upstream"], "{trace:?}");
    let held: u64 = attribute(&trace.server, "cube.held_ms").unwrap().parse().unwrap();
    let resume = &trace.children[1];
    let waited = (resume.end_time_unix_nano - resume.start_time_unix_nano) / 1_000_000;
    assert!(held.abs_diff(waited) <= 50, "{held} {waited}");
    assert!(!failed(resume));
}

#[tokio::test]
async fn each_attempt_of_a_retried_request_is_a_span_and_the_last_one_is_the_sandboxs_parent() {
    let receiver = Receiver::start().await;
    let blind = json!({
        "store": { "redis": { "tracking": false } },
        "cache": { "ttl_min": "60s", "ttl_max": "60s", "untracked_ttl": "60s" },
    });
    let env = receiver.env(1.0, blind).await;
    let (old, new) = (Origin::named("old").echo().await, Origin::named("new").echo().await);
    let sandbox = env.sandbox(&old).await;
    env.get(&sandbox, "/").await.passed(200);
    let old_port = old.port().to_string();
    old.stop().await;
    env.write(&sandbox, &[("8080", &new.port().to_string())]).await;
    let (retried, header) = parent("01");
    let seen = get(&env, &sandbox, &header).await.seen();
    assert_eq!(seen.origin, "new");
    let trace = receiver.trace(&retried).await;
    assert_eq!(trace.names(), ["upstream", "lookup", "upstream"], "{trace:?}");
    let (first, second) = (&trace.children[0], &trace.children[2]);
    has(first, &[("server.port", &old_port), ("error.type", "connect_refused")]);
    has(second, &[("http.request.resend_count", "1"), ("http.response.status_code", "200")]);
    assert!(failed(first) && !failed(second) && !failed(&trace.server), "{trace:?}");
    assert_eq!(seen.headers.all("traceparent"), [format!("00-{retried}-{}-01", hex(&second.span_id))]);
}

#[tokio::test]
async fn a_trusted_parent_is_followed_and_nobody_else_buys_a_trace() {
    let receiver = Receiver::start().await;
    let env = receiver.env(0.0, json!({ "routing": { "trusted_proxies": ["127.0.0.1/32"] } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    // Sampled: followed, though nothing else is traced.
    let (sampled, header) = parent("01");
    let both = [("traceparent", header.as_str()), ("tracestate", "vendor=1")];
    let seen = env.get_with(&sandbox, "/", &both).await.seen();
    let trace = receiver.trace(&sampled).await;
    assert_eq!(
        (trace.server.trace_state.as_str(), seen.headers.get("tracestate")),
        ("vendor=1", Some("vendor=1"))
    );
    assert_ne!(seen.headers.get("traceparent"), Some(header.as_str()));
    // Unsampled, and none at all: not traced, and what the client sent goes on.
    env.proxy.reconfigure(&json!({ "tracing": { "otlp": { "sample_ratio": 1.0 } } })).await;
    let (_, header) = parent("00");
    let both = [("traceparent", header.as_str()), ("tracestate", "vendor=2")];
    let response = env.get_with(&sandbox, "/", &both).await;
    let seen = response.seen();
    assert_eq!(seen.headers.all("traceparent"), [header.as_str()]);
    assert_eq!(seen.headers.all("tracestate"), ["vendor=2"]);
    assert_eq!(logged(&env, &response).await["trace_id"], Value::Null);
    // The ratio counts where there is no parent, and where it is malformed: a new trace.
    let bad = format!("{}-more", parent("01").1);
    let both = [("traceparent", bad.as_str()), ("tracestate", "vendor=3")];
    let response = env.get_with(&sandbox, "/", &both).await;
    let seen = response.seen();
    let id = logged(&env, &response).await["trace_id"].as_str().expect("a trace").to_owned();
    assert!(!bad.contains(&id), "{id}");
    assert!(seen.headers.get("traceparent").is_some_and(|value| value.contains(&id)), "{:?}", seen.headers);
    assert_eq!(seen.headers.get("tracestate"), None);
    assert!(receiver.trace(&id).await.server.parent_span_id.is_empty());
    // Of a client nobody trusts the ratio decides, whatever its parent says.
    let untrusted = json!({
        "routing": { "trusted_proxies": ["10.9.9.9/32"] }, "tracing": { "otlp": { "sample_ratio": 0.0 } },
    });
    env.proxy.reconfigure(&untrusted).await;
    let (_, header) = parent("01");
    let response = get(&env, &sandbox, &header).await;
    assert_eq!(response.seen().headers.all("traceparent"), [header.as_str()]);
    assert_eq!(logged(&env, &response).await["trace_id"], Value::Null);
    let traces: std::collections::BTreeSet<_> =
        receiver.all().iter().map(|span| hex(&span.trace_id)).collect();
    assert_eq!(traces, [sampled, id].into());
}

#[tokio::test]
async fn the_end_exports_what_waits_and_nothing_secret_is_in_it() {
    let receiver = Receiver::start().await;
    let mut config = receiver.config(1.0);
    let builder = builder(&json!({ "drain": { "delay": "0s" } }));
    let file = builder.directory().join("otlp-token");
    std::fs::write(&file, "Bearer example-token-of-the-collector\n").unwrap();
    let headers = json!([{ "name": "authorization", "file": file }]);
    cube_testkit::merge(&mut config, &json!({ "tracing": { "otlp": { "headers": headers } } }));
    let env = Env::start_with(builder.config(&config)).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let ticket = cube_route::preview::Ticket::make(
        b"example-token",
        &cube_route::SandboxId::parse(&sandbox.id).unwrap(),
        cube_route::preview::TicketPort::One(cube_route::Port::new(8080).unwrap()),
        4_000_000_000,
    );
    let target = format!("/secret-path?token=hush&cube_preview={ticket}");
    let cookie = format!("session=hush; __Host-cube-preview={ticket}");
    for headers in [
        [(TOKEN, "example-token"), ("Cookie", cookie.as_str()), ("User-Agent", "quiet-agent")],
        [("Authorization", "hush"), ("Cookie", cookie.as_str()), ("Referer", "http://hush/")],
        [(TOKEN, "hush-wrong"), ("X-Other", "hush"), ("User-Agent", "quiet-agent")],
    ] {
        env.get_with(&sandbox, &target, &headers).await;
    }
    env.raw("HUSH-METHOD", &target, &[("Host", &sandbox.host())], "").await;
    env.proxy.terminate();
    assert!(env.proxy.ended().await.success());
    let servers = receiver.all().into_iter().filter(|span| span.kind == SpanKind::Server as i32).count();
    assert_eq!(servers, 4);
    for request in receiver.0.received() {
        assert_eq!(request.headers.all("authorization"), ["Bearer example-token-of-the-collector"]);
        let body = String::from_utf8_lossy(&request.body);
        for secret in SECRETS.iter().copied().chain([
            "HUSH",
            "quiet-agent",
            "secret-path",
            "cube.test",
            "v1.",
            ticket.as_str(),
        ]) {
            assert!(!body.contains(secret), "{secret}: {body}");
        }
    }
}

#[tokio::test]
async fn an_absent_and_a_hanging_collector_cost_spans_and_no_request() {
    let nobody = json!({ "endpoint": format!("http://127.0.0.1:{}", refused_port()), "sample_ratio": 1 });
    let env = own(json!({ "tracing": { "otlp": nobody }, "drain": { "delay": "0s" } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    for _ in 0..20 {
        env.get(&sandbox, "/").await.passed(200);
    }
    env.proxy.output_line(&["the collector does not take spans", "cannot connect"]).await;
    env.get(&sandbox, "/").await.passed(200);
    assert_eq!(env.proxy.output().matches("the collector does not take spans").count(), 1);
    env.proxy.terminate();
    assert!(env.proxy.ended().await.success(), "an end that waits for nobody");

    let hanging = Origin::scripted(|mut exchange: cube_testkit::Exchange| async move {
        exchange.body().await?;
        exchange.gone().await;
        exchange.close().await
    })
    .await;
    let endpoint = format!("http://{}", hanging.address());
    let env = own(json!({ "tracing": { "otlp": { "endpoint": endpoint, "sample_ratio": 1 } } })).await;
    let sandbox = env.sandbox(&origin).await;
    let head = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host());
    let mut client = env.client().await;
    client.send(head.as_bytes()).await;
    client.response("GET").await.passed(200);
    hanging.wait_for(1).await;
    // More than the queue takes.
    for _ in 0..25 {
        client.send(head.repeat(100).as_bytes()).await;
        for _ in 0..100 {
            client.response("GET").await.passed(200);
        }
    }
    let dropped =
        env.proxy.metrics().await.sum("cube_proxy_trace_spans_dropped_total", &[("reason", "queue_full")]);
    assert!(dropped > 0.0, "{dropped}");
}

#[tokio::test]
async fn an_https_collector_is_verified() {
    let receiver = Receiver::start().await;
    let (ca, stranger) = (Authority::new(), Authority::new());
    let front = ca.front(&["localhost"], receiver.0.address()).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let proxy = |trusted: &Authority| {
        let builder = builder(&json!({ "drain": { "delay": "0s" } }));
        let file = builder.directory().join("ca.pem");
        std::fs::write(&file, trusted.root_pem()).unwrap();
        let endpoint = format!("https://localhost:{}", front.address().port());
        let otlp = json!({ "endpoint": endpoint, "ca_file": file, "sample_ratio": 1 });
        Env::start_with(builder.config(&json!({ "tracing": { "otlp": otlp } })))
    };
    let wary = proxy(&stranger).await;
    let (_, header) = parent("01");
    get(&wary, &wary.sandbox(&origin).await, &header).await.passed(200);
    wary.proxy.output_line(&["the collector does not take spans", "certificate"]).await;
    assert_eq!(receiver.0.count(), 0);
    let env = proxy(&ca).await;
    let (traced, header) = parent("01");
    get(&env, &env.sandbox(&origin).await, &header).await.passed(200);
    assert_eq!(receiver.trace(&traced).await.server.name, "GET host");
}

#[tokio::test]
async fn a_record_past_its_time_is_told_to_be_stale() {
    let receiver = Receiver::start().await;
    let short = json!({ "cache": { "ttl_min": "100ms", "ttl_max": "100ms", "untracked_ttl": "100ms" } });
    let env = receiver.env(1.0, short).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/").await.passed(200);
    env.redis.stop();
    eventually("a stale route", || async {
        env.get(&sandbox, "/").await.passed(200);
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_cache_lookups_total", &[("outcome", "stale")]) > 0.0).then_some(())
    })
    .await;
    let (stale, header) = parent("01");
    get(&env, &sandbox, &header).await.passed(200);
    assert_eq!(attribute(&receiver.trace(&stale).await.server, "cube.resolve").as_deref(), Some("stale"));
}

#[tokio::test]
async fn after_a_hot_restart_the_old_process_exports_until_it_ends() {
    let receiver = Receiver::start().await;
    let env = receiver.env(1.0, json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let old = env.proxy.id();
    let mut stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    stream.moves().await;
    stream.end().await;
    env.proxy.old_ended(0).await;
    let of_old = |export: &ResourceSpans| {
        let resource = export.resource.as_ref().expect("a resource");
        attributes(&resource.attributes)["process.pid"] == old.to_string()
    };
    let exports = receiver.exports();
    let spans = exports.iter().filter(|export| of_old(export)).flat_map(|export| &export.scope_spans);
    let names: Vec<_> = spans.flat_map(|scope| &scope.spans).map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["POST host", "lookup", "upstream"]);
}
