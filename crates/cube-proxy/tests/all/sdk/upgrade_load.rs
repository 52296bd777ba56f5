//! Real clients under load while the proxy is replaced again and again: nothing fails.
//! (connections.md, "Draining".) The JavaScript and Python SDKs, undici, httpx, HTTP/1.1 and HTTP/2,
//! WebSockets and uploads.

use std::time::Duration;

use cube_testkit::serde_json::json;
use cube_testkit::{Envd, Exchange, ExchangeResult, Origin, scripts};

use super::{Flavour, Place, Results, Way};

/// What the scripts ask for.
async fn application(mut exchange: Exchange) -> ExchangeResult {
    match exchange.request.target.as_str() {
        "/ws" => scripts::websocket(exchange).await,
        "/large" => exchange.reply(200, &[], vec![7; 200_000]).await,
        "/upload" => {
            let got = exchange.body().await?.len();
            exchange.reply(200, &[], got.to_string()).await
        }
        "/stream" => {
            exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
            for n in 0..10 {
                exchange.chunk(n.to_string()).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            exchange.end().await
        }
        _ => exchange.reply(200, &[], "small").await,
    }
}

/// What went wrong, by kind; how much was done is put into `counts`.
fn judge(client: &str, results: &Results, counts: &mut Vec<String>) -> Vec<String> {
    let mut failed = Vec::new();
    for (name, result) in &results.0 {
        let count = &result["ok"];
        let done = count["done"].as_u64().unwrap_or_default();
        let failures = count["failed"].as_array().cloned().unwrap_or_else(|| vec![result.clone()]);
        counts.push(format!("{client} {name}: {done} done, {} failed", failures.len()));
        if done == 0 || !failures.is_empty() {
            failed.push(format!("{client} {name}: {done} done, {failures:?}"));
        }
    }
    failed
}

/// Replaces the proxy so many times under load, each time `apart` after the last; what was done.
async fn upgrades(count: usize, apart: Duration) -> Vec<String> {
    let registry = json!({ "registry": { "enabled": true, "proxy_id": "one", "interval": "1s" } });
    let place = Place::new(Way::Hosts, &registry).await;
    let envd = Envd::start().await;
    let with_envd = place.sandbox(&envd).await;
    let origin = Origin::scripted(application).await;
    let other = place.add(place.env.sandbox(&origin)).await;
    let over = place.env.proxy.directory().join("over");
    let arguments = [over.to_string_lossy().into_owned(), with_envd.id.to_string(), other.id.to_string()];
    let upgrades = async {
        tokio::time::timeout(Duration::from_secs(60), origin.wait_for(50)).await.expect("load");
        for _ in 0..count {
            tokio::time::sleep(apart).await;
            place.env.proxy.upgrade().await;
        }
        tokio::time::sleep(apart).await;
        std::fs::write(&over, "").unwrap();
    };
    let (javascript, python, ()) = tokio::join!(
        place.run(Flavour::JavaScript, "load", &arguments),
        place.run(Flavour::PythonSync, "load", &arguments),
        upgrades,
    );
    let mut counts = Vec::new();
    let mut failed = judge("JavaScript", &javascript, &mut counts);
    failed.extend(judge("Python", &python, &mut counts));
    assert!(failed.is_empty(), "{failed:#?}");
    place.env.proxy.old_ended(0).await;
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_upgrades_under_load_fail_no_client() {
    println!("{:#?}", upgrades(3, Duration::from_secs(2)).await);
}

/// `just upgrades`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than a minute"]
async fn ten_upgrades_under_load_fail_no_client() {
    println!("{:#?}", upgrades(10, Duration::from_secs(5)).await);
}
