//! Preview links in a real browser: the application, an iframe, and a hostile page on a sibling sandbox.

mod path_form;
mod service_worker;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{Exchange, Guarded, Origin, Sandbox, merge, scripts};

use super::*;
use crate::support::{Tls, browser_for, with_tls};

/// A browser that takes every certificate, for which every name is this machine.
fn browser(url: &str) -> Guarded {
    browser_for("cube.test", url, &["--ignore-certificate-errors"])
}

/// What pages have in common: `tell` says something to the test.
const TELL: &str = "const tell = (what, seen) =>
  fetch('TELL/' + what, { method: 'POST', mode: 'no-cors', body: JSON.stringify(seen) })
const status = async (url, options) => { try { return (await fetch(url, options)).status } catch { return 0 } }
const socket = url => new Promise(done => {
  const socket = new WebSocket(url)
  socket.onopen = () => socket.send('hi')
  socket.onmessage = message => done([message.data, socket])
  socket.onerror = () => done(['refused', socket])
});
";

/// The application in the private sandbox.
const APPLICATION: &str =
    "<!doctype html><title>app</title><a id=file href=/file download=file>file</a><script>
PRELUDE
(async () => {
  if (!sessionStorage.again) { sessionStorage.again = 1; location.reload(); return }
  const [said, open] = await socket(`wss://${location.host}/ws`)
  const seen = { href: location.href, cookie: document.cookie, referrer: document.referrer,
    api: await status('/api?x'), posted: await status('/api', { method: 'POST', body: 'x' }), said }
  document.querySelector('#file').click()
  await tell(window === top ? 'app' : 'framed', seen)
  if (window !== top) return
  for (;;) {
    const api = await status('/api')
    if (api === 200) { await new Promise(done => setTimeout(done, 100)); continue }
    const still = await new Promise(done => { open.onmessage = m => done(m.data); open.send('still') })
    await tell('after', { api, still })
    break
  }
})()
</script>";

/// A page on another sandbox under the same domain, in a browser that has a cookie for VICTIM.
const HOSTILE: &str = "<!doctype html><title>evil</title><iframe name=hidden></iframe>
<form method=post target=hidden action='VICTIM/hostile-form'><input name=a value=b></form><script>
PRELUDE
(async () => {
  await status('VICTIM/hostile-fetch', { credentials: 'include', mode: 'no-cors' })
  await status('VICTIM/hostile-post', { credentials: 'include', mode: 'no-cors', method: 'POST', body: 'x' })
  const [said] = await socket('VICTIM/hostile-ws'.replace('https', 'wss'))
  await new Promise(done => { const i = new Image(); i.onload = i.onerror = done; i.src = 'VICTIM/hostile-img' })
  await new Promise(done => {
    const frame = document.createElement('iframe')
    frame.onload = done
    frame.src = 'VICTIM/framed-page'
    document.body.append(frame)
  })
  document.querySelector('iframe').onload = () => tell('hostile', { said })
  document.querySelector('form').submit()
})()
</script>";

/// How docs/previews.md says that a frame with `sandbox` is written.
const FRAME: &str = r#"sandbox="allow-scripts allow-forms allow-same-origin""#;

/// A page of the application whose script is asked for before it has loaded, where the page may be shown.
const FRAMED: &str = "<!doctype html><script src=/framed-script></script>";

const PAGE: [(&str, &str); 1] = [("Content-Type", "text/html")];
const SCRIPT: [(&str, &str); 1] = [("Content-Type", "text/javascript")];

/// A page that can tell.
fn complete(page: &str, platform: &Origin) -> String {
    let own = format!("http://{}", platform.address());
    page.replace("PRELUDE", TELL).replace("TELL", &own)
}

struct Stage {
    tls: Tls,
    /// Where pages tell what they saw; the platform's own page is there too.
    platform: Origin,
    application: Origin,
    sandbox: Sandbox,
    /// Where the platform sends who asks for `/again`.
    again: Arc<OnceLock<String>>,
}

impl Stage {
    async fn new() -> Self {
        Self::with(APPLICATION, &json!({})).await
    }

    /// A private sandbox whose application is that page.
    async fn with(page: &str, previews: &Value) -> Self {
        let again: Arc<OnceLock<String>> = Arc::default();
        let link = again.clone();
        let platform = Origin::named("platform")
            .serve(move |mut exchange: Exchange| {
                let again = link.get().cloned().unwrap_or_default();
                async move {
                    if exchange.request.method == "POST" {
                        exchange.body().await?;
                        return exchange.reply(204, &[], "").await;
                    }
                    if exchange.request.target == "/again" {
                        return exchange.reply(302, &[("Location", &again)], "").await;
                    }
                    let link = exchange.request.target.split_once("frame=").map(|(_, link)| link.to_owned());
                    let page = format!(
                        "<!doctype html><iframe src='{}' {FRAME}></iframe>",
                        link.unwrap_or_default()
                    );
                    exchange.reply(200, &PAGE, page).await
                }
            })
            .await;
        let own = format!("http://{}", platform.address());
        let mut settings = json!({ "previews": { "frame_ancestors": [own] } });
        merge(&mut settings["previews"], previews);
        let tls = with_tls(&settings).await;
        let page = complete(page, &platform);
        let application = Origin::named("application")
            .serve(move |exchange: Exchange| {
                let page = page.clone();
                async move {
                    let target = exchange.request.target.clone();
                    match target.split('?').next().unwrap_or_default() {
                        "/ws" | "/hostile-ws" => scripts::websocket(exchange).await,
                        "/worker.js" => exchange.reply(200, &SCRIPT, service_worker::WORKER).await,
                        "/script.js" => exchange.reply(200, &SCRIPT, "window.scripted = true").await,
                        "/framed-page" => exchange.reply(200, &PAGE, FRAMED).await,
                        "/redirect" => exchange.reply(302, &[("Location", "/api")], "").await,
                        "/" => exchange.reply(200, &PAGE, page).await,
                        _ => exchange.reply(200, &[], "x").await,
                    }
                }
            })
            .await;
        let sandbox = tls.env.sandbox(&application).token(TOKEN).await;
        Self { tls, platform, application, sandbox, again }
    }

    fn at(&self, sandbox: &Sandbox) -> String {
        format!("https://{}:{}", sandbox.host(), self.tls.env.proxy.https().port())
    }

    fn link(&self, seconds: i64) -> String {
        format!("{}{}", self.at(&self.sandbox), with("/", &ticket_for(TOKEN, &self.sandbox, seconds)))
    }

    /// What a page told about `what`; a browser takes its time to start.
    async fn told(&self, what: &str) -> Value {
        let begin = Instant::now();
        loop {
            let told =
                self.platform.received().into_iter().find(|request| request.target == format!("/{what}"));
            if let Some(told) = told.and_then(|told| serde_json::from_slice(&told.body).ok()) {
                return told;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(90),
                "no page told of {what}: {}",
                self.tls.env.proxy.access_log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether everything of the application works in a browser, and nothing of the ticket shows.
    async fn works(&self, what: &str) {
        let told = self.told(what).await;
        let want = json!({
            "href": format!("{}/", self.at(&self.sandbox)), "cookie": "", "referrer": told["referrer"],
            "api": 200, "posted": 200, "said": "hi",
        });
        assert_eq!(told, want);
        assert!(!told["referrer"].as_str().unwrap().contains("cube_preview"));
        let begin = Instant::now();
        // A browser lets no frame of another site download unasked.
        while what == "app" && !self.application.received().iter().any(|request| request.target == "/file") {
            assert!(begin.elapsed() < Duration::from_secs(30), "the download did not arrive");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.saw_no_ticket();
    }

    /// No request that reached the application had a ticket anywhere in its head.
    fn saw_no_ticket(&self) {
        for request in self.application.received() {
            let head = String::from_utf8_lossy(&request.head).into_owned();
            assert!(!head.contains("cube_preview") && !head.contains("cube-preview"), "{head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_works_and_its_websocket_outlives_the_token() {
    let stage = Stage::new().await;
    let _browser = browser(&stage.link(600));
    stage.works("app").await;
    let new = [("TrafficAccessToken", "example-token-that-is-new")];
    stage.tls.env.write(&stage.sandbox, &new).await;
    assert_eq!(stage.told("after").await, json!({ "api": 404, "still": "still" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_open_when_its_link_expires_keeps_its_websocket_alone() {
    let stage = Stage::new().await;
    let _browser = browser(&stage.link(20));
    stage.works("app").await;
    // The browser drops the cookie in the second in which the ticket expires; before that it is told.
    let after = stage.told("after").await;
    assert_eq!(after["still"], "still");
    assert!([403, 404].contains(&after["api"].as_u64().unwrap()), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_works_in_an_iframe_of_another_site() {
    let stage = Stage::new().await;
    let page = format!("http://{}/?frame={}", stage.platform.address(), stage.link(600));
    let _browser = browser(&page);
    stage.works("framed").await;
    assert!(include_str!("../../../../../docs/previews.md").contains(FRAME));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_page_on_a_sibling_sandbox_reaches_nothing() {
    let stage = Stage::new().await;
    let page = complete(HOSTILE, &stage.platform).replace("VICTIM", &stage.at(&stage.sandbox));
    let evil = Origin::replying(200, &[("Content-Type", "text/html")], &page).await;
    let evil = stage.tls.env.sandbox(&evil).await;
    // The browser has the cookie before it sees the page.
    let first = format!(
        "<!doctype html><iframe src='{}' onload=\"location = '{}/'\"></iframe>",
        stage.link(600),
        stage.at(&evil)
    );
    let start = Origin::replying(200, &[("Content-Type", "text/html")], &first).await;
    let start = stage.tls.env.sandbox(&start).await;
    let _browser = browser(&format!("{}/", stage.at(&start)));
    assert_eq!(stage.told("hostile").await, json!({ "said": "refused" }));
    let reached: Vec<String> =
        stage.application.received().into_iter().map(|request| request.target).collect();
    assert!(!reached.iter().any(|target| target.contains("hostile")), "{reached:?}");
    // A frame is a navigation, but the browser shows nothing of it.
    let shown = ["/framed-page", "/framed-script"].map(|one| reached.iter().any(|target| target == one));
    assert_eq!(shown, [true, false], "{reached:?}");
    // The browser did send the cookie along, and that was why.
    assert!(counted(&stage.tls.env, "redirected").await >= 1.0);
    assert!(counted(&stage.tls.env, "cross_site").await >= 5.0, "{}", stage.tls.env.proxy.access_log());
}
