//! A service worker of the sandbox stands between its pages and the proxy.

use super::*;

/// It carries out what its pages ask for, and remembers what it saw of it.
pub(super) const WORKER: &str = "const seen = []
self.addEventListener('install', () => self.skipWaiting())
self.addEventListener('activate', event => event.waitUntil(self.clients.claim()))
self.addEventListener('fetch', event => {
  const request = event.request
  seen.push({ url: request.url, mode: request.mode, referrer: request.referrer, headers: [...request.headers] })
  const made = new URL(request.url).pathname === '/made-up'
  event.respondWith(made ? new Response('of the worker') : fetch(request))
})
self.addEventListener('message', event => event.source.postMessage(seen))
";

/// The page that has it: it registers, loads again, and opens its link again.
const APPLICATION: &str = "<!doctype html><title>worker</title><script>
PRELUDE
const workers = navigator.serviceWorker
const seen = () => new Promise(done => {
  workers.onmessage = message => done(message.data)
  workers.controller.postMessage('seen')
})
;(async () => {
  const claimed = new Promise(done => { workers.oncontrollerchange = done })
  await workers.register('/worker.js')
  if (!workers.controller) await claimed
  const time = Number(sessionStorage.time || 0) + 1
  sessionStorage.time = time
  if (time === 1) {
    const made = await (await fetch('/made-up')).text()
    const posted = await status('/api', { method: 'POST', body: 'x' })
    await tell('intercepted', { made, posted, cookie: document.cookie })
    location.reload()
  } else if (time === 2) {
    await tell('reloaded', { href: location.href, seen: await seen() })
    location = 'TELL/again'
  } else {
    await tell('opened-again', { href: location.href, seen: await seen() })
  }
})()
</script>";

/// Whether a worker saw a ticket in the URL of a navigation; in nothing else it may see one.
fn saw_a_link(told: &Value) -> bool {
    let all = told["seen"].as_array().expect("what the worker saw");
    assert!(all.iter().any(|request| request["mode"] == "navigate"), "{told:#}");
    let mut link = false;
    for request in all {
        let mut rest = request.clone();
        let url = rest["url"].take();
        if url.as_str().expect("a URL").contains("cube_preview=") {
            assert_eq!(request["mode"], "navigate", "{request:#}");
            link = true;
        }
        let rest = rest.to_string().to_ascii_lowercase();
        assert!(!rest.contains("cube_preview") && !rest.contains("cube-preview"), "{request:#}");
        assert!(!rest.contains("cookie"), "{request:#}");
    }
    link
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_worker_carries_out_requests_and_sees_a_link_only_where_it_is_opened_again() {
    let stage = Stage::with(APPLICATION, &json!({})).await;
    let _ = stage.again.set(stage.link(600));
    let _browser = browser(&stage.link(600));
    let page = format!("{}/", stage.at(&stage.sandbox));
    let told = stage.told("intercepted").await;
    assert_eq!(told, json!({ "made": "of the worker", "posted": 200, "cookie": "" }));
    let told = stage.told("reloaded").await;
    assert_eq!(told["href"], page);
    assert!(!saw_a_link(&told), "{told:#}");
    // The browser asks the worker before the proxy can take the ticket out.
    let told = stage.told("opened-again").await;
    assert_eq!(told["href"], page);
    assert!(saw_a_link(&told), "docs/previews.md says that it does: {told:#}");
    let reached: Vec<String> =
        stage.application.received().into_iter().map(|request| request.target).collect();
    assert!(!reached.contains(&"/made-up".to_owned()) && reached.contains(&"/api".to_owned()), "{reached:?}");
    stage.saw_no_ticket();
    assert!(counted(&stage.tls.env, "redirected").await >= 2.0);
}
