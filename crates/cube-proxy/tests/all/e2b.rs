//! The `e2b` dialect through the whole proxy (errors.md, and the defaults that it sets).

use cube_testkit::serde_json::json;
use cube_testkit::{By, Env, Exchange, OUTSIDE, Origin, Response, Sandbox, refused_port, scripts};
use cube_testkit::{eventually, tokio_tungstenite::tungstenite::Error};
use tokio::sync::OnceCell;

use crate::support::own;

/// Where envd listens.
const ENVD: u16 = 49983;
const CONNECT: (&str, &str) = ("Connect-Protocol-Version", "1");

/// The dialect with its defaults.
async fn e2b() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    let config = json!({
        "errors": { "dialect": "e2b" },
        "lifecycle": { "pause_wait": "100ms" },
    });
    ENV.get_or_init(|| own(config)).await
}

/// The proxy answered itself: status, code and body.
#[track_caller]
fn says(response: &Response, status: u16, retcode: u32, body: &str) {
    assert_eq!((response.status, response.retcode()), (status, Some(retcode)), "{}", response.brief());
    assert_eq!(response.text(), body);
    assert_eq!(response.headers.all("content-type"), ["application/json; charset=utf-8"]);
    assert_eq!(response.headers.all("content-length"), [body.len().to_string()]);
    assert_eq!(response.headers.all("cache-control"), ["no-store"]);
    assert_eq!(response.headers.all("x-content-type-options"), ["nosniff"]);
    let _ = response.request_id();
}

fn not_found(sandbox: &Sandbox) -> String {
    format!(r#"{{"sandboxId":"{}","message":"The sandbox was not found","code":502}}"#, sandbox.id)
}

fn not_open(sandbox: &Sandbox) -> String {
    let Sandbox { id, port } = sandbox;
    let message = "The sandbox is running but port is not open";
    format!(r#"{{"sandboxId":"{id}","message":"{message}","port":{port},"code":502}}"#)
}

fn message(sandbox: &Sandbox, message: &str, code: u16) -> String {
    format!(r#"{{"sandboxId":"{}","message":"{message}","code":{code}}}"#, sandbox.id)
}

#[tokio::test]
async fn a_sandbox_that_is_not_there_was_not_found() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let outside = env.sandbox_at((OUTSIDE.parse::<std::net::IpAddr>().unwrap(), 80).into()).await;
    let nowhere = env.sandbox(&origin).without("HostIP").await;
    let killed = env.sandbox(&origin).await;
    env.push(&killed, "killed").await;
    for (sandbox, retcode) in
        [(&env.nobody(), 310_507), (&nowhere, 310_507), (&outside, 310_508), (&killed, 310_410)]
    {
        for by in By::ALL {
            let response = env.call(by, sandbox, "GET", "/", &[], "").await;
            says(&response, 502, retcode, &not_found(sandbox));
        }
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn a_port_that_nothing_listens_on_is_not_open() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let unmapped = env.sandbox(&origin).await.at_port(3000);
    says(&env.get(&unmapped, "/").await, 502, 310_507, &not_open(&unmapped));
    let closed = env.sandbox_at(([127, 0, 0, 1], refused_port()).into()).await;
    let response = env.get(&closed, "/").await;
    says(&response, 502, 310_509, &not_open(&closed));
    // A server in a sandbox may need a moment: by default it is waited for, a second.
    assert!(response.took.as_millis() >= 700, "{:?}", response.took);
}

#[tokio::test]
async fn a_port_that_opens_late_is_reached() {
    let waiting = json!({ "errors": { "dialect": "e2b" }, "upstream": { "port_open_wait": "9s" } });
    let env = own(waiting).await;
    let port = refused_port();
    let sandbox = env.sandbox_at(([127, 0, 0, 1], port).into()).await;
    let mut client = env.client().await;
    client.request("GET", "/late", &[("Host", &sandbox.host())]).await;
    let refused = [("outcome", "refused")];
    eventually("a refused connect", || async {
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_upstream_connects_total", &refused) >= 1.0).then_some(())
    })
    .await;
    let origin = Origin::named("late").port(port).echo().await;
    assert_eq!(client.response("GET").await.passed(200).seen().target, "/late");
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn a_private_sandbox_says_what_is_wrong_with_the_token() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let private = env.sandbox(&origin).token("example-token").await;
    let secured = "Sandbox is secured with traffic access token.";
    let header = "header 'e2b-traffic-access-token'";
    let missing = message(&private, &format!("{secured} Token {header} is missing"), 403);
    says(&env.get(&private, "/").await, 403, 310_403, &missing);
    let wrong = message(&private, &format!("{secured} Provided token in {header} is invalid"), 403);
    let token = |token| [("e2b-traffic-access-token", token)];
    says(&env.get_with(&private, "/", &token("guess")).await, 403, 310_403, &wrong);
    env.get_with(&private, "/", &token("example-token")).await.passed(200);
}

#[tokio::test]
async fn envd_has_a_key_of_its_own_and_needs_no_token() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let private = env.sandbox(&origin).token("example-token").port(ENVD).await;
    for by in By::ALL {
        env.call(by, &private, "GET", "/health", &[], "").await.passed(200);
    }
    assert_eq!(env.get(&private.at_port(8080), "/").await.status, 403);
}

#[tokio::test]
async fn a_sandbox_that_changes_is_a_conflict_and_a_paused_one_unavailable() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let (pausing, paused) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    env.push(&pausing, "pausing").await;
    env.push(&paused, "paused").await;
    let response = env.get(&pausing, "/").await;
    let changing = "The sandbox is still transitioning. Try again in a moment.";
    says(&response, 409, 310_503, &message(&pausing, changing, 409));
    assert_eq!(response.headers.all("retry-after"), ["2"]);
    let response = env.get(&paused, "/").await;
    says(&response, 503, 310_503, &message(&paused, "The sandbox is paused.", 503));
    assert_eq!(response.headers.all("retry-after"), ["5"]);
}

#[tokio::test]
async fn too_many_at_a_time_are_told_the_limit() {
    let two = json!({ "errors": { "dialect": "e2b" }, "limits": { "requests_per_sandbox": 2 } });
    let env = own(two).await;
    let origin = Origin::scripted(scripts::hang).await;
    let sandbox = env.sandbox(&origin).await;
    let mut open = Vec::new();
    for n in 1..=2 {
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        origin.wait_for(n).await;
        open.push(client);
    }
    let response = env.get(&sandbox, "/").await;
    let body = format!(
        r#"{{"sandboxId":"{}","message":"The sandbox has too many concurrent incoming connections (limit: 2)","code":429,"connectionLimit":2}}"#,
        sandbox.id
    );
    says(&response, 429, 310_429, &body);
    assert_eq!(response.headers.all("retry-after"), ["1"]);
}

#[tokio::test]
async fn a_host_may_carry_an_old_client_id_after_the_sandboxs() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = format!("8080-{}-1a2b3c4d-x.cube.test", sandbox.id);
    let seen = env.raw("GET", "/", &[("Host", &host)], "").await.passed(200).seen();
    assert_eq!(seen.headers.all("Host"), [host]);
    // Only there: in the other forms an id is what it is.
    let longer = Sandbox::named(&format!("{}-1a2b3c4d", sandbox.id));
    for by in [By::Header, By::Path] {
        says(&env.call(by, &longer, "GET", "/", &[], "").await, 502, 310_507, &not_found(&longer));
    }
}

#[tokio::test]
async fn the_control_routes_of_envd_are_out_of_reach_in_every_spelling() {
    let env = e2b().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).port(ENVD).await;
    let routes = ["init", "freeze", "unfreeze", "fsfreeze", "fsthaw", "collapse", "upgrade"];
    for (n, route) in routes.into_iter().enumerate() {
        let message =
            "This endpoint is reserved for the control plane and is not reachable through the sandbox URL";
        let body = format!(r#"{{"message":"{message}","path":"/{route}","code":404}}"#);
        let encoded = format!("%{:02x}{}", route.as_bytes()[0], &route[1..]);
        for target in [
            format!("/{route}"),
            format!("//{route}"),
            format!("/{route}/"),
            format!("/{route}?x=1"),
            format!("/./{route}/."),
            format!("/x/../{route}"),
            format!("/x/%2e%2e/{route}"),
            format!("/{encoded}"),
            format!("/x%2F..%2f{route}"),
        ] {
            let by = By::ALL[n % 3];
            for (by, method) in [(by, "POST"), (By::ALL[(n + 1) % 3], "GET")] {
                let response = env.call(by, &sandbox, method, &target, &[], "").await;
                says(&response, 404, 310_404, &body);
            }
        }
        // What only looks like one, and the same path of an application.
        env.get(&sandbox, &format!("/{route}x")).await.passed(200);
        env.get(&sandbox, &format!("/{}", route.to_uppercase())).await.passed(200);
    }
    assert_eq!(origin.count(), 2 * routes.len());
    let application = env.sandbox(&origin).await;
    env.get(&application, "/init").await.passed(200);
    // Before any look-up: a sandbox that is not there answers the same.
    assert_eq!(env.get(&env.nobody().at_port(ENVD), "/init").await.retcode(), Some(310_404));
}

#[tokio::test]
async fn envd_is_upgraded_to_websocket_alone() {
    let env = e2b().await;
    let origin = Origin::scripted(|exchange: Exchange| async move {
        match exchange.request.headers.get("upgrade") {
            Some("websocket") => scripts::websocket(exchange).await,
            Some("other") => scripts::tunnel("other")(exchange).await,
            _ => exchange.reply(200, &[], "no upgrade").await,
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).field(&ENVD.to_string(), &origin.port().to_string()).await;
    let envd = sandbox.at_port(ENVD);
    let mut socket = env.websocket(By::Host, &envd, "/", &[]).await.expect("a 101");
    assert_eq!(socket.say("hello").await, "hello");
    let other = [("Connection", "Upgrade"), ("Upgrade", "other")];
    assert_eq!(env.get_with(&envd, "/", &other).await.passed(200).text(), "no upgrade");
    let mut client = env.client().await;
    let host = sandbox.host();
    client.request("GET", "/", &[("Host", &host), other[0], other[1]]).await;
    assert_eq!(client.head().await.status, 101);
    let refused = env.websocket(By::Host, &env.nobody(), "/", &[]).await.err();
    assert!(matches!(&refused, Some(Error::Http(response)) if response.status() == 502), "{refused:?}");
}

#[tokio::test]
async fn a_connect_call_gets_a_connect_error() {
    let env = e2b().await;
    let nobody = env.nobody().at_port(ENVD);
    let unary = [CONNECT, ("Content-Type", "application/json")];
    let response = env.call(By::Host, &nobody, "POST", "/process.Process/List", &unary, "{}").await;
    assert_eq!((response.status, response.retcode()), (502, Some(310_507)));
    assert_eq!(response.headers.all("content-type"), ["application/json"]);
    assert_eq!(response.text(), r#"{"code":"unavailable","message":"The sandbox was not found"}"#);
    for kind in ["application/connect+json", "application/connect+proto"] {
        let stream = [CONNECT, ("Content-Type", kind)];
        let response =
            env.call(By::Header, &nobody, "POST", "/process.Process/Start", &stream, "\0\0\0\0\x02{}").await;
        assert_eq!((response.status, response.retcode()), (200, Some(310_507)));
        assert_eq!(response.headers.all("content-type"), [kind]);
        let end = r#"{"error":{"code":"unavailable","message":"The sandbox was not found"}}"#;
        let mut frame = vec![2, 0, 0, 0, u8::try_from(end.len()).unwrap()];
        frame.extend_from_slice(end.as_bytes());
        assert_eq!(response.body, frame);
        let line = env.proxy.log_line(&response.request_id()).await;
        assert_eq!((line.field("retcode"), line.field("reason")), ("310507", "no_record"));
    }
}

#[tokio::test]
async fn a_browser_that_navigates_gets_a_page() {
    let env = e2b().await;
    let nobody = env.nobody();
    for headers in [("Accept", "text/html,*/*;q=0.8"), ("Sec-Fetch-Mode", "navigate")] {
        let response = env.get_with(&nobody, "/", &[headers]).await;
        assert_eq!((response.status, response.retcode()), (502, Some(310_507)));
        assert_eq!(response.headers.all("content-type"), ["text/html; charset=utf-8"]);
        let policy = "default-src 'none'; style-src 'unsafe-inline'";
        assert_eq!(response.headers.all("content-security-policy"), [policy]);
        assert!(response.text().contains(&nobody.id), "{}", response.text());
    }
    let fetched = [("Sec-Fetch-Mode", "cors"), ("Accept", "text/html")];
    says(&env.get_with(&nobody, "/", &fetched).await, 502, 310_507, &not_found(&nobody));
}
