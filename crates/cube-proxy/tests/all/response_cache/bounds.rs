//! Memory is bounded, and storing holds nothing up.

use cube_testkit::{Gate, scripts};

use super::*;

const KIB: usize = 1024;

/// An application whose responses have the length that the target says, chunked where it begins with
/// `/c`.
async fn sized() -> Origin {
    scripted(|mut exchange| async move {
        let target = exchange.request.target.clone();
        let length = target.trim_start_matches(|c: char| !c.is_ascii_digit());
        let body = vec![b'x'; length.split('-').next().and_then(|text| text.parse().ok()).unwrap_or(0)];
        if !target.starts_with("/c") {
            return exchange.reply(200, &[PUBLIC], body).await;
        }
        exchange.start(200, &[PUBLIC, ("Transfer-Encoding", "chunked")]).await?;
        for piece in body.chunks(8 * KIB) {
            exchange.chunk(piece).await?;
        }
        exchange.end().await
    })
    .await
}

async fn sum(env: &Env, name: &str, labels: &[(&str, &str)]) -> f64 {
    env.proxy.metrics().await.sum(&format!("cube_proxy_response_cache_{name}"), labels)
}

#[tokio::test]
async fn a_response_over_max_object_passes_and_is_not_stored() {
    let env = with(json!({ "response_cache": { "max_object": "64KiB" } })).await;
    let sandbox_origin = sized().await;
    let sandbox = settled(&env, env.sandbox(&sandbox_origin).await).await;
    for framing in ["/l", "/c"] {
        for (length, stored) in [(64 * KIB, true), (64 * KIB + 1, false), (3_000_000, false), (0, true)] {
            let target = format!("{framing}{length}");
            let first = env.get(&sandbox, &target).await;
            is_miss(&first);
            assert!(first.clean && first.body.len() == length, "{target}: {}", first.body.len());
            let second = env.get(&sandbox, &target).await;
            assert_eq!(hit(second.passed(200)), stored, "{target}");
            assert!(second.clean && second.body.len() == length, "{target}: {}", second.body.len());
        }
    }
    assert_eq!(sum(&env, "fills_total", &[("outcome", "too_large")]).await, 8.0);
}

#[tokio::test]
async fn a_response_that_is_stored_streams_while_it_comes() {
    let env = cached().await;
    for framing in [scripts::Framing::Chunked, scripts::Framing::Length] {
        let gate = Gate::new();
        let script_gate = gate.clone();
        let origin = scripted(move |mut exchange| {
            let gate = script_gate.clone();
            async move {
                let chunked = framing == scripts::Framing::Chunked;
                let field = if chunked { ("Transfer-Encoding", "chunked") } else { ("Content-Length", "8") };
                exchange.start(200, &[PUBLIC, field]).await?;
                for piece in ["half", "rest"] {
                    gate.pass().await;
                    if chunked { exchange.chunk(piece).await? } else { exchange.send(piece).await? }
                }
                if chunked { exchange.end().await } else { Ok(exchange) }
            }
        })
        .await;
        let sandbox = settled(env, env.sandbox(&origin).await).await;
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        let head = client.head().await;
        assert_eq!(verdict(&head), Some("MISS"));
        // Each piece arrives before the next is sent.
        for piece in [b"half", b"rest"] {
            gate.open();
            if framing == scripts::Framing::Chunked {
                assert_eq!(client.next_chunk().await, piece);
            } else {
                assert_eq!(client.wire().exactly(4).await.unwrap(), piece);
            }
        }
        // The client may have its last piece before the response is stored; one that comes in between
        // is fetched, both pieces at once.
        eventually("a stored response", || async {
            (0..2).for_each(|_| gate.open());
            hit(&env.get(&sandbox, "/").await).then_some(())
        })
        .await;
        is_hit(&env.get(&sandbox, "/").await, "halfrest");
    }
}

#[tokio::test]
async fn the_store_stays_within_its_memory_and_drops_what_is_not_used() {
    let memory = 1024 * KIB;
    let env = with(json!({ "response_cache": { "memory": "1MiB", "max_object": "16KiB" } })).await;
    let origin = sized().await;
    let sandbox = settled(&env, env.sandbox(&origin).await).await;
    let mut client = env.client().await;
    for number in 0..300 {
        let target = format!("/l8192-{number}");
        is_miss(&client.call("GET", &target, &[("Host", &sandbox.host())], "").await);
        if number % 50 == 0 {
            assert!(sum(&env, "bytes", &[]).await <= memory as f64);
        }
    }
    let (entries, bytes) = (sum(&env, "entries", &[]).await, sum(&env, "bytes", &[]).await);
    assert!(bytes <= memory as f64 && bytes > memory as f64 / 3.0, "{bytes}");
    assert!(entries > 30.0, "{entries}");
    let evicted = sum(&env, "evictions_total", &[]).await;
    let filled = sum(&env, "fills_total", &[("outcome", "stored")]).await;
    assert_eq!(entries + evicted, filled, "every stored response is there or was dropped");
    assert!(evicted > 100.0);
}

#[tokio::test]
async fn any_number_of_responses_at_once_take_no_more_than_their_share() {
    let env = with(json!({ "response_cache": { "memory": "9MiB", "max_object": "1MiB" } })).await;
    let gate = Gate::new();
    let script_gate = gate.clone();
    let origin = scripted(move |mut exchange| {
        let gate = script_gate.clone();
        async move {
            let length = 1024 * KIB;
            exchange.start(200, &[PUBLIC, ("Content-Length", &length.to_string())]).await?;
            exchange.send(vec![b'x'; length / 2]).await?;
            gate.pass().await;
            exchange.send(vec![b'x'; length / 2]).await?;
            Ok(exchange)
        }
    })
    .await;
    let sandbox = settled(&env, env.sandbox(&origin).await).await;
    let mut clients = Vec::new();
    for number in 0..40 {
        let mut client = env.client().await;
        client.request("GET", &format!("/{number}"), &[("Host", &sandbox.host())]).await;
        let head = client.head().await;
        assert_eq!(verdict(&head), Some("MISS"));
        client.wire().exactly(512 * KIB).await.unwrap();
        clients.push(client);
    }
    // A quarter is for what is coming in, two of these with their heads; the others stream on all the
    // same.
    (0..40).for_each(|_| gate.open());
    for mut client in clients {
        let rest = client.wire().exactly(512 * KIB).await.unwrap();
        assert!(rest.iter().all(|byte| *byte == b'x'));
    }
    let outcome = |name| sum_of(&env, name);
    eventually("all of them to be over", || async {
        (outcome("stored").await + outcome("no_room").await == 41.0).then_some(())
    })
    .await;
    assert_eq!(outcome("stored").await, 3.0, "two at a time, and the first small one");
    assert_eq!(outcome("no_room").await, 38.0);
}

async fn sum_of(env: &Env, outcome: &str) -> f64 {
    sum(env, "fills_total", &[("outcome", outcome)]).await
}

#[tokio::test]
async fn heads_of_responses_that_are_coming_in_count_too() {
    // A quarter of the memory is for what is coming in: two copies of this head, and not four.
    let env = with(json!({ "response_cache": { "memory": "1MiB", "max_object": "16KiB" } })).await;
    let gate = Gate::new();
    let script_gate = gate.clone();
    let origin = scripted(move |mut exchange| {
        let gate = script_gate.clone();
        async move {
            let fields: Vec<_> = (0..80).map(|n| (format!("X-H{n}"), "v".repeat(600))).collect();
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            fields.extend([PUBLIC, ("Content-Length", "2")]);
            exchange.start(200, &fields).await?;
            exchange.send("h").await?;
            gate.pass().await;
            exchange.send("i").await?;
            Ok(exchange)
        }
    })
    .await;
    let sandbox = settled(&env, env.sandbox(&origin).await).await;
    let mut clients = Vec::new();
    for target in ["/1", "/2"] {
        let mut client = env.client().await;
        client.request("GET", target, &[("Host", &sandbox.host())]).await;
        let head = client.head().await;
        clients.push((client, head));
    }
    assert_eq!(sum(&env, "fills_total", &[("outcome", "no_room")]).await, 1.0);
    for (client, head) in &mut clients {
        gate.open();
        let response = client.body(head.clone(), "GET").await;
        assert_eq!((response.text().as_str(), response.clean), ("hi", true));
    }
    assert!(hit(&env.get(&sandbox, "/1").await), "the first had its room");
    gate.open();
    is_miss(&env.get(&sandbox, "/2").await);
    eventually("the room given back", || async {
        gate.open();
        hit(&env.get(&sandbox, "/2").await).then_some(())
    })
    .await;
}
