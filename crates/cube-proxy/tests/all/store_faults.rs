//! Redis at its worst (metadata.md, "Cache"): what is cached is served as if nothing were, what is
//! not is answered 310500 in time and never as missing, and two seconds after Redis is well again
//! everything is right, what changed meanwhile too.
#![allow(clippy::print_stdout, reason = "figures, for who asks with --nocapture")]

use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{Client, Env, Exchange, Origin, RedisServer, Relay, Response, Sandbox};

use crate::store::cached;
use crate::store_fixture::right_within;
use crate::support::builder;

/// Two tries and what bounds them, and what a busy machine adds.
const ANSWERED: Duration = Duration::from_millis(2500 + 500);
/// From Redis's recovery until everything is right.
const HEALED: Duration = Duration::from_secs(2);
/// Longer than `cache.untracked_ttl`, and than it takes to give a dead connection up.
const OUTAGE: Duration = Duration::from_millis(4500);
/// Far less than any wait for Redis in these tests, far more than a busy machine needs.
const AT_ONCE: Duration = Duration::from_millis(500);

/// What a response says about the store and the sandbox.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    From(String),
    NotFound,
    StoreAway,
    /// Its life ended while the request was under way.
    Revoked,
}

fn said(response: &Response) -> Said {
    match response.retcode() {
        Some(310_507) => {
            response.is_not_found();
            Said::NotFound
        }
        Some(310_500) => {
            response.is_own(503, 310_500, r#"{"error":"service unavailable"}"#);
            Said::StoreAway
        }
        Some(310_410) => Said::Revoked,
        _ => Said::From(response.seen().origin),
    }
}

/// Sandboxes in every state a cache can have them in.
struct Scene {
    env: Env,
    relay: Relay,
    /// In the cache, and never changed.
    stays: Sandbox,
    /// In the cache, moved while Redis is away.
    moves: Sandbox,
    /// In the cache, deleted while Redis is away.
    goes: Sandbox,
    /// Never asked for before.
    cold: Vec<Sandbox>,
    /// Written while Redis is away.
    late: Sandbox,
    late_fields: Vec<(String, String)>,
    streaming: Sandbox,
    stream: (Client, Response),
    two: Origin,
    _others: (Origin, Origin),
}

impl Scene {
    /// `relayed`: the proxy reaches Redis through the relay.
    async fn set(relayed: bool) -> Self {
        let redis = RedisServer::start().await;
        let relay = Relay::to(&redis).await;
        let url = if relayed { relay.url() } else { redis.url() };
        let proxy = builder(&json!({ "store": { "redis": { "url": url } } })).start().await;
        let env = Env { proxy, redis };
        let (one, two) = (Origin::named("one").echo().await, Origin::named("two").echo().await);
        let dripping = Origin::scripted(|mut exchange: Exchange| async move {
            exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
            exchange.chunk("piece").await?;
            exchange.gone().await;
            exchange.close().await
        })
        .await;
        let (stays, moves) = (env.sandbox(&one).await, env.sandbox(&one).await);
        let (goes, streaming) = (env.sandbox(&one).await, env.sandbox(&dripping).await);
        let mut cold = Vec::new();
        for _ in 0..40 {
            cold.push(env.sandbox(&one).await);
        }
        let (late, late_fields) = env.sandbox(&one).described();
        for sandbox in [&stays, &moves, &goes] {
            cached(&env, sandbox).await;
        }
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &streaming.host())]).await;
        let head = client.head().await;
        head.passed(200);
        assert_eq!(client.next_chunk().await, b"piece");
        let stream = (client, head);
        let _others = (one, dripping);
        Self { env, relay, stays, moves, goes, cold, late, late_fields, streaming, stream, two, _others }
    }

    /// What the owners of the records write while the proxy cannot read them.
    async fn change(&self, redis: &RedisServer) {
        redis.hset(&self.moves.key(), &[("8080", self.two.port().to_string())]).await;
        redis.del(&self.goes.key()).await;
        redis.del(&self.streaming.key()).await;
        redis.hset(&self.late.key(), &self.late_fields).await;
    }

    /// Serves what is cached and fails what is not, for the whole outage. `answering`: Redis does
    /// answer, if late. How many unknown ids were asked for.
    async fn endures(&self, answering: bool) -> usize {
        let end = Instant::now() + OUTAGE;
        let known = async {
            let mut took = Vec::new();
            while Instant::now() < end {
                for sandbox in [&self.stays, &self.moves, &self.goes] {
                    let response = self.env.get(sandbox, "/").await;
                    assert_eq!(said(&response), Said::From("one".to_owned()));
                    took.push(response.took);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            took.sort();
            let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
            assert!(longest < AT_ONCE, "{longest:?} (median {median:?} of {}) for a cached one", took.len());
            println!("{} requests for cached sandboxes: median {median:?}, longest {longest:?}", took.len());
        };
        let unknown = async {
            let mut asked = 0;
            while Instant::now() < end {
                let cold = &self.cold[asked % self.cold.len()];
                let (there, nobody) = tokio::join!(self.env.get(cold, "/"), async {
                    self.env.get(&self.env.nobody(), "/").await
                });
                let (found, missed) = (said(&there), said(&nobody));
                let right =
                    |said: &Said, wanted: Said| *said == Said::StoreAway || (answering && *said == wanted);
                assert!(right(&found, Said::From("one".to_owned())), "{found:?} for one that is there");
                assert!(right(&missed, Said::NotFound), "{missed:?} for one that is not");
                let longest = there.took.max(nobody.took);
                assert!(longest < ANSWERED, "{longest:?} for an unknown one");
                asked += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            2 * asked
        };
        tokio::join!(known, unknown).1
    }

    /// Everything is right in time after `well`, when Redis was well again.
    async fn heals(self, what: &str, well: Instant) {
        let (one, two) = (Said::From("one".to_owned()), Said::From("two".to_owned()));
        let nobody = self.env.nobody();
        let expected = [
            (&self.moves, &two),
            (&self.goes, &Said::NotFound),
            (&self.late, &one),
            (&self.cold[0], &one),
            (&self.cold[1], &one),
            (&nobody, &Said::NotFound),
        ];
        let right = async || {
            let stays = said(&self.env.get(&self.stays, "/").await);
            assert_eq!(stays, one, "{what}: what did not change");
            for (sandbox, wanted) in expected {
                if said(&self.env.get(sandbox, "/").await) != *wanted {
                    return false;
                }
            }
            true
        };
        let took = right_within(what, well, HEALED, right).await;
        println!("{what}: right {took:?} after the recovery");
        let (mut client, head) = self.stream;
        let rest = client.body(head, "GET").await;
        assert!(!rest.clean, "the stream of a sandbox that was deleted meanwhile: {}", rest.brief());
        assert!(well.elapsed() < HEALED + Duration::from_secs(1), "{what}: ended after {:?}", well.elapsed());
        // And so it stays.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            for (sandbox, wanted) in expected {
                assert_eq!(said(&self.env.get(sandbox, "/").await), *wanted, "{what}, later");
            }
        }
    }
}

#[tokio::test]
async fn killed() {
    let scene = Scene::set(false).await;
    let meanwhile = RedisServer::unstarted();
    meanwhile.restart_with(&scene.env.redis.dump().await).await;
    scene.change(&meanwhile).await;
    scene.env.redis.stop();
    scene.endures(false).await;
    scene.env.redis.restart_with(&meanwhile.dump().await).await;
    scene.heals("killed", Instant::now()).await;
}

#[tokio::test]
async fn frozen() {
    let scene = Scene::set(false).await;
    scene.env.redis.pause();
    scene.endures(false).await;
    // Written now, carried out first of all when it goes on.
    let ((), well) = tokio::join!(scene.change(&scene.env.redis), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        scene.env.redis.resume();
        Instant::now()
    });
    scene.heals("frozen", well).await;
}

#[tokio::test]
async fn slow() {
    let scene = Scene::set(true).await;
    scene.relay.slow(Duration::from_millis(900));
    scene.endures(true).await;
    // The last pushes are still under way when it is well again.
    scene.change(&scene.env.redis).await;
    scene.relay.pass();
    scene.heals("slow", Instant::now()).await;
}

async fn refusing(error: &str) {
    let scene = Scene::set(true).await;
    scene.relay.refuse(error);
    let asked = scene.endures(false).await;
    scene.change(&scene.env.redis).await;
    // It is asked less, not more: five times a second, and some at the beginning.
    let refused = scene.relay.refused();
    assert!(asked > 50 && refused < 400, "{refused} commands for {asked} requests");
    scene.relay.pass();
    scene.heals(error, Instant::now()).await;
}

#[tokio::test]
async fn answering_with_errors() {
    tokio::join!(
        refusing("LOADING Redis is loading the dataset in memory"),
        refusing("NOAUTH Authentication required."),
        refusing("READONLY You can't write against a read only replica."),
    );
}

#[tokio::test]
async fn cut_in_the_middle_of_every_response() {
    let scene = Scene::set(true).await;
    scene.relay.cut(10);
    // A response that the relay is waiting for already goes through whole.
    scene.endures(true).await;
    let connections = scene.relay.connections();
    assert!(connections < 100, "{connections} connections within {OUTAGE:?}");
    scene.change(&scene.env.redis).await;
    scene.relay.pass();
    scene.heals("cut", Instant::now()).await;
}

#[tokio::test]
async fn cut_in_the_middle_of_one_response() {
    let scene = Scene::set(true).await;
    for cold in &scene.cold[2..] {
        scene.relay.cut(10);
        let (response, ()) = tokio::join!(scene.env.get(cold, "/"), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            scene.relay.pass();
        });
        let found = said(&response);
        assert!(found == Said::StoreAway || found == Said::From("one".to_owned()), "{found:?}");
        assert!(response.took < ANSWERED, "{:?}", response.took);
    }
    scene.change(&scene.env.redis).await;
    scene.heals("cut once and again", Instant::now()).await;
}
