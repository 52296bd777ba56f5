//! The opt-in response cache (response-cache.md), sentence by sentence.

mod bounds;
mod conditions;
mod forgetting;
mod key;
mod serving;
mod stored;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Env, Exchange, ExchangeResult, Origin, Response, Sandbox, eventually};
use tokio::sync::OnceCell;

use crate::support;

/// What makes a response everybody's.
const PUBLIC: (&str, &str) = ("Cache-Control", "public, max-age=600");
/// Where every application here has such a response.
const WARM: &str = "/warm";

/// A proxy with the cache on and everything else as it is by default.
async fn cached() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    ENV.get_or_init(|| with(json!({}))).await
}

/// The same for one test alone.
async fn with(overrides: Value) -> Env {
    let mut config = json!({ "response_cache": { "enabled": true } });
    cube_testkit::merge(&mut config, &overrides);
    support::own(config).await
}

/// An application that does as it is told, and answers [`WARM`] besides.
async fn scripted<F, Fut>(script: F) -> Origin
where
    F: Fn(Exchange) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ExchangeResult> + Send + 'static,
{
    Origin::scripted(move |exchange| -> Pin<Box<dyn Future<Output = ExchangeResult> + Send>> {
        if exchange.request.target == WARM {
            return Box::pin(exchange.reply(200, &[PUBLIC], "warm"));
        }
        Box::pin(script(exchange))
    })
    .await
}

/// An application that answers everything with those fields, and with the number of its responses so
/// far for a body.
async fn app(fields: &[(&str, &str)]) -> Origin {
    let fields: Vec<(String, String)> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let responses = Arc::new(AtomicUsize::new(0));
    scripted(move |exchange| {
        let (fields, number) = (fields.clone(), responses.fetch_add(1, Ordering::SeqCst) + 1);
        async move {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            exchange.reply(200, &fields, number.to_string()).await
        }
    })
    .await
}

/// Waits until what the sandbox answers is stored, and every push of what was written to the store
/// before has arrived: one that is late would have the proxy forget what the test looks at.
async fn settled(env: &Env, sandbox: Sandbox) -> Sandbox {
    settle(env, &sandbox).await;
    sandbox
}

async fn settle(env: &Env, sandbox: &Sandbox) {
    // Pushes come in order. The proxy knows that there is no such sandbox until it is told of one
    // (to an address that is not dialled).
    let marker = env.nobody();
    env.get(&marker, "/").await.is_not_found();
    env.sandbox_at(([127, 0, 0, 1], 1).into()).id(&marker.id).await;
    eventually("the pushes of before", || async {
        (env.get(&marker, "/").await.status == 502).then_some(())
    })
    .await;
    eventually("a stored response", || async { hit(&env.get(sandbox, WARM).await).then_some(()) }).await;
}

/// A sandbox of [`app`] with those fields, settled.
async fn sandbox_of(env: &Env, fields: &[(&str, &str)]) -> (Origin, Sandbox) {
    let origin = app(fields).await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    (origin, sandbox)
}

/// `X-Cube-Cache`, of which there is one at most.
#[track_caller]
fn verdict(response: &Response) -> Option<&str> {
    let all = response.headers.all("x-cube-cache");
    assert!(all.len() < 2, "{}", response.brief());
    all.first().copied()
}

#[track_caller]
fn hit(response: &Response) -> bool {
    verdict(response) == Some("HIT")
}

/// The response came from the application, and might have come from the cache.
#[track_caller]
fn is_miss(response: &Response) {
    assert_eq!(verdict(response.passed(200)), Some("MISS"), "{}", response.brief());
}

/// The response came from the cache, and is that one.
#[track_caller]
fn is_hit(response: &Response, body: &str) {
    assert_eq!(verdict(response.passed(200)), Some("HIT"), "{}", response.brief());
    assert_eq!(response.text(), body);
}

/// The response came from the application, and the cache has nothing to do with it.
#[track_caller]
fn is_bypass(response: &Response) {
    assert_eq!(verdict(response.passed(200)), None, "{}", response.brief());
    assert!(!response.headers.has("age"), "{}", response.brief());
}

/// Requests that the application has seen, but for those of [`settle`].
fn asked(origin: &Origin) -> usize {
    origin.received().iter().filter(|request| request.target != WARM).count()
}

/// GET in a form with fields.
async fn get(env: &Env, by: By, sandbox: &Sandbox, target: &str, fields: &[(&str, &str)]) -> Response {
    env.call(by, sandbox, "GET", target, fields, "").await
}
