//! What pages of other origins may see (errors.md, "CORS").

use std::time::{Duration, Instant};

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{By, Exchange, Origin, Response, Sandbox};
use tokio::sync::OnceCell;

use crate::support::{Waking, browser, waking_with};

const ORIGIN: (&str, &str) = ("Origin", "https://page.example");
const METHOD: (&str, &str) = ("Access-Control-Request-Method", "PUT");
const HEADERS: (&str, &str) = ("Access-Control-Request-Headers", "content-type,x-mine");

/// The `e2b` dialect with a manager that would wake what it is asked to.
async fn env() -> &'static Waking {
    static ENV: OnceCell<Waking> = OnceCell::const_new();
    let config = json!({ "errors": { "dialect": "e2b" }, "upstream": { "port_open_wait": "0s" } });
    ENV.get_or_init(|| waking_with(config)).await
}

/// An application that knows CORS.
async fn application(exchange: Exchange) -> std::io::Result<Exchange> {
    let own = [("Access-Control-Allow-Origin", "https://page.example"), ("Vary", "Origin")];
    let status = if exchange.request.method == "OPTIONS" { 204 } else { 200 };
    exchange.reply(status, &own, "app").await
}

/// Sandboxes in every state, with the return code of the proxy's response for each.
struct States {
    application: Origin,
    refused: Sandbox,
    paused: Sandbox,
    pausing: Sandbox,
    running: Sandbox,
    own: Vec<(Sandbox, u32)>,
}

impl States {
    async fn new(env: &Waking) -> Self {
        let application = Origin::named("application").serve(application).await;
        let refused = env.sandbox(&application).token("example-token").await;
        let (paused, pausing) = (env.sandbox(&application).await, env.sandbox(&application).await);
        env.push(&paused, "paused").await;
        env.push(&pausing, "pausing").await;
        let running = env.sandbox(&application).await;
        let closed = env.sandbox_at(([127, 0, 0, 1], cube_testkit::refused_port()).into()).await;
        let own = vec![
            (env.nobody(), 310_507),
            (refused.clone(), 310_403),
            (paused.clone(), 310_503),
            (pausing.clone(), 310_503),
            (closed, 310_509),
        ];
        Self { application, refused, paused, pausing, running, own }
    }
}

#[track_caller]
fn is_answered_preflight(response: &Response, retcode: u32) {
    assert_eq!((response.status, response.retcode()), (204, Some(retcode)), "{}", response.brief());
    assert!(
        !response.headers.has("Content-Length") && !response.headers.has("Content-Type"),
        "{}",
        response.brief()
    );
    for (name, value) in [
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Allow-Methods", "PUT"),
        ("Access-Control-Allow-Headers", "content-type, x-mine"),
        ("Access-Control-Max-Age", "5"),
        ("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
        ("Access-Control-Expose-Headers", "X-Cube-Request-Id, X-Cube-Retcode"),
    ] {
        assert_eq!(response.headers.all(name), [value], "{name}: {}", response.brief());
    }
}

#[tokio::test]
async fn a_preflight_that_the_proxy_answers_allows_what_it_asks_for_and_wakes_nothing() {
    let env = env().await;
    let states = States::new(env).await;
    let preflight = [ORIGIN, METHOD, HEADERS];
    for (sandbox, retcode) in &states.own {
        for by in By::ALL {
            let response = env.call(by, sandbox, "OPTIONS", "/", &preflight, "").await;
            is_answered_preflight(&response, *retcode);
        }
    }
    assert_eq!((env.manager.calls(&states.paused).len(), states.application.count()), (0, 0));
    // The fetch that follows does wake it.
    env.get_with(&states.paused, "/", &[ORIGIN]).await.passed(200);
    assert_eq!(env.manager.calls(&states.paused).len(), 1);
}

#[tokio::test]
async fn a_preflight_on_a_shared_host_cannot_name_a_sandbox_and_is_answered() {
    let env = env().await;
    let host = env.proxy.http().to_string();
    // A browser does not send the headers that it asks for.
    let named = ("Access-Control-Request-Headers", "content-type,x-mine");
    for host in [host.as_str(), "sandbox.cube.test", "localhost"] {
        let response = env.raw("OPTIONS", "/files", &[("Host", host), ORIGIN, METHOD, named], "").await;
        is_answered_preflight(&response, 310_400);
    }
}

#[tokio::test]
async fn a_preflight_to_a_running_sandbox_is_the_applications() {
    let env = env().await;
    let states = States::new(env).await;
    let preflight = [ORIGIN, METHOD, HEADERS];
    let response = env.call(By::Host, &states.running, "OPTIONS", "/", &preflight, "").await;
    response.passed(204);
    assert_eq!(response.headers.all("Access-Control-Allow-Origin"), ["https://page.example"]);
    assert_eq!(response.headers.all("Vary"), ["Origin"]);
    for name in ["Access-Control-Allow-Methods", "Access-Control-Max-Age", "Access-Control-Expose-Headers"] {
        assert!(!response.headers.has(name), "{name}: {}", response.brief());
    }
    assert_eq!(states.application.last().headers.all("Access-Control-Request-Method"), ["PUT"]);
}

#[tokio::test]
async fn a_preflight_for_what_is_no_token_is_malformed() {
    let env = env().await;
    let nobody = env.nobody();
    for wrong in ["PUT GET", "P<UT", ""] {
        let preflight = [ORIGIN, ("Access-Control-Request-Method", wrong)];
        let response = env.call(By::Host, &nobody, "OPTIONS", "/", &preflight, "").await;
        assert_eq!(
            (response.status, response.retcode()),
            (400, Some(310_400)),
            "{wrong:?}: {}",
            response.brief()
        );
    }
}

#[tokio::test]
async fn a_response_of_the_proxy_can_be_read_by_every_page_and_is_plain_to_others() {
    let env = env().await;
    let states = States::new(env).await;
    for (sandbox, retcode) in &states.own {
        if *sandbox == states.paused {
            continue; // it would be woken
        }
        let response = env.get_with(sandbox, "/", &[ORIGIN]).await;
        assert_eq!(response.retcode(), Some(*retcode), "{}", response.brief());
        assert_eq!(response.headers.all("Access-Control-Allow-Origin"), ["*"]);
        let exposed = ["X-Cube-Request-Id, X-Cube-Retcode"];
        assert_eq!(response.headers.all("Access-Control-Expose-Headers"), exposed);
        let response = env.get(sandbox, "/").await;
        assert_eq!(response.retcode(), Some(*retcode), "{}", response.brief());
        let cors = response.headers.pairs().iter().find(|(name, _)| name.starts_with("Access-Control"));
        assert_eq!(cors, None);
    }
    let response = env.get_with(&states.running, "/", &[ORIGIN]).await;
    response.passed(200);
    assert_eq!(response.headers.all("Access-Control-Allow-Origin"), ["https://page.example"]);
    assert!(!response.headers.has("Access-Control-Expose-Headers"), "{}", response.brief());
    // The same once the token is right, and never a second field.
    let token = ("e2b-traffic-access-token", "example-token");
    let response = env.get_with(&states.refused, "/", &[ORIGIN, token]).await;
    assert_eq!(response.headers.all("Access-Control-Allow-Origin"), ["https://page.example"]);
    let _ = &states.pausing;
}

/// A page on an origin of its own asks sandboxes, and tells its own server what it could see.
const PAGE: &str = r#"<!doctype html><title>asks</title><script>
const ask = async (url, options) => {
  try {
    const answer = await fetch(url, options)
    return [answer.status, answer.headers.get('x-cube-retcode'), await answer.text()]
  } catch (error) {
    return String(error)
  }
}
(async () => {
  const told = {}
  const fancy = { method: 'PUT', headers: { 'Content-Type': 'application/json', 'X-Mine': '1' }, body: '{}' }
  for (const [name, url] of Object.entries(SANDBOXES)) {
    told[name] = [await ask(url), await ask(url, fancy)]
  }
  await fetch('/told', { method: 'POST', body: JSON.stringify(told) })
})()
</script>"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_page_in_a_browser_sees_why_a_sandbox_of_another_origin_does_not_answer() {
    let env = env().await;
    let states = States::new(env).await;
    let nobody = env.nobody();
    let open = Origin::named("open")
        .serve(|exchange: Exchange| async move {
            let headers = [
                ("Access-Control-Allow-Origin", "*"),
                ("Access-Control-Allow-Methods", "PUT"),
                ("Access-Control-Allow-Headers", "content-type, x-mine"),
            ];
            exchange.reply(200, &headers, "app").await
        })
        .await;
    let running = env.sandbox(&open).await;
    let url =
        |sandbox: &Sandbox| format!("http://8080-{}.cube.localhost:{}/", sandbox.id, env.proxy.http().port());
    let sandboxes = json!({
        "nobody": url(&nobody), "refused": url(&states.refused), "pausing": url(&states.pausing),
        "running": url(&running),
    });
    let page = PAGE.replace("SANDBOXES", &sandboxes.to_string());
    let server = Origin::named("page")
        .serve(move |exchange: Exchange| {
            let page = page.clone();
            async move { exchange.reply(200, &[("Content-Type", "text/html")], page).await }
        })
        .await;
    let told = told_by(&server).await;

    let not_found = |sandbox: &Sandbox| {
        format!(r#"{{"sandboxId":"{}","message":"The sandbox was not found","code":502}}"#, sandbox.id)
    };
    let dead = json!([502, "310507", not_found(&nobody)]);
    assert_eq!(told["nobody"], json!([dead, dead]), "{told}");
    for (name, status, retcode) in [("refused", 403, "310403"), ("pausing", 409, "310503")] {
        for seen in told[name].as_array().expect("two responses") {
            assert_eq!((&seen[0], &seen[1]), (&json!(status), &json!(retcode)), "{name}: {told}");
        }
    }
    // An application exposes what it wants to.
    assert_eq!(told["running"], json!([[200, null, "app"], [200, null, "app"]]), "{told}");
}

/// Shows the page of that server in a browser until it has told what it saw.
async fn told_by(server: &Origin) -> Value {
    let _browser = browser(&format!("http://{}/", server.address()));
    let begin = Instant::now();
    loop {
        let told = server.received().into_iter().find(|request| request.target == "/told");
        // The body may still be on its way.
        if let Some(told) = told.and_then(|told| serde_json::from_slice(&told.body).ok()) {
            return told;
        }
        assert!(begin.elapsed() < Duration::from_secs(90), "the page told nothing");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
