//! What is tried again, and what never is (connections.md, "Retries").

use cube_testkit::{By, Exchange, Origin};

use crate::support::{blind, cube};

#[tokio::test]
async fn a_refused_connect_reads_the_route_afresh_and_takes_the_new_one() {
    let env = blind().await;
    for (method, body) in [("GET", ""), ("POST", "body")] {
        let (old, new) = (Origin::named("old").echo().await, Origin::named("new").echo().await);
        let sandbox = env.sandbox(&old).await;
        assert_eq!(env.get(&sandbox, "/").await.seen().origin, "old");
        let (old_port, new_port) = (old.port().to_string(), new.port().to_string());
        old.stop().await;
        env.write(&sandbox, &[("8080", &new_port)]).await;
        let response = env.call(By::Host, &sandbox, method, "/", &[], body).await;
        let seen = response.seen();
        assert_eq!((seen.origin.as_str(), seen.body.as_slice()), ("new", body.as_bytes()));
        let line = env.proxy.log_line(&response.request_id()).await;
        let upstreams = line.field("upstream_addr");
        assert!(upstreams.contains(&old_port) && upstreams.contains(&new_port), "{upstreams}");
    }
}

#[tokio::test]
async fn the_token_is_judged_again_on_the_fresh_record() {
    let env = blind().await;
    let (old, new) = (Origin::named("old").echo().await, Origin::named("new").echo().await);
    let sandbox = env.sandbox(&old).await;
    env.get(&sandbox, "/").await.passed(200);
    old.stop().await;
    let changed = [
        ("8080", new.port().to_string()),
        ("AllowPublicTraffic", "false".into()),
        ("TrafficAccessToken", "example-token".into()),
    ];
    let changed: Vec<(&str, &str)> = changed.iter().map(|(n, v)| (*n, v.as_str())).collect();
    env.write(&sandbox, &changed).await;
    env.get(&sandbox, "/").await.is_not_found();
    assert_eq!(new.count(), 0);
}

#[tokio::test]
async fn a_post_that_was_sent_is_never_sent_again() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        if exchange.request.target == "/warm" {
            return exchange.reply(200, &[], "ok").await;
        }
        exchange.body().await?;
        exchange.close().await
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    env.post(&sandbox, "/pay", "5").await.is_bad_gateway(310_509);
    // The same on a reused connection.
    env.get(&sandbox, "/warm").await.passed(200);
    env.post(&sandbox, "/pay", "5").await.is_bad_gateway(310_509);
    let paid = origin.received().iter().filter(|request| request.target == "/pay").count();
    assert_eq!(paid, 2);
}

/// Serves the first request of each connection and drops the connection at the second.
async fn stale_after_one() -> Origin {
    Origin::scripted(|mut exchange: Exchange| async move {
        if exchange.earlier_on_this_connection() > 0 {
            exchange.body().await?;
            return exchange.close().await;
        }
        exchange.reply(200, &[], "ok").await
    })
    .await
}

#[tokio::test]
async fn an_idempotent_request_on_a_connection_that_had_died_is_sent_once_more() {
    let env = cube().await;
    let origin = stale_after_one().await;
    let sandbox = env.sandbox(&origin).await;
    for _ in 0..6 {
        assert_eq!(env.get(&sandbox, "/").await.passed(200).text(), "ok");
    }
    // Both sides of at least one retry were seen, so the pool was used at all.
    assert!(origin.count() > 6, "{} requests at the origin", origin.count());
}

#[tokio::test]
async fn a_request_with_a_body_on_a_connection_that_had_died_is_not_sent_again() {
    let env = cube().await;
    let origin = stale_after_one().await;
    // A request may come before the connection of the one before is back in the pool; it then gets
    // a new one, and another sandbox, whose pool is empty, shows the matter.
    for _ in 0..20 {
        let sandbox = env.sandbox(&origin).await;
        env.get(&sandbox, "/").await.passed(200);
        let before = origin.count();
        let response = env.call(By::Host, &sandbox, "PUT", "/", &[], "body").await;
        assert_eq!(origin.count(), before + 1, "sent once, however it ended");
        if response.status != 200 {
            response.is_bad_gateway(310_509);
            return;
        }
    }
    panic!("no request met a connection that had died");
}

#[tokio::test]
async fn a_response_whatever_its_status_is_final() {
    let env = cube().await;
    for status in [408, 429, 500, 502, 503, 504] {
        let origin = Origin::replying(status, &[], "mine").await;
        let sandbox = env.sandbox(&origin).await;
        assert_eq!(env.get(&sandbox, "/").await.passed(status).text(), "mine");
        assert_eq!(origin.count(), 1, "{status}");
    }
}

#[tokio::test]
async fn connections_to_a_sandbox_are_kept_and_reused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for _ in 0..20 {
        env.get(&sandbox, "/").await.passed(200);
    }
    assert!(origin.connections() < 10, "{} connections for 20 requests", origin.connections());
}

#[tokio::test]
async fn a_connection_is_never_shared_between_sandboxes_nor_lives_of_one() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let (one, two) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let first = env.get(&one, "/").await.seen().connection;
    assert_ne!(env.get(&two, "/").await.seen().connection, first);
    // A new life of the same sandbox at the same address.
    env.write(&one, &[("CreatedAt", "1")]).await;
    let before = origin.connections();
    cube_testkit::eventually("a connection of the new generation", || async {
        let response = env.get(&one, "/").await;
        // A request that had entered with the old life ends with it.
        (response.status == 200 && response.seen().connection > before as u64).then_some(())
    })
    .await;
}
