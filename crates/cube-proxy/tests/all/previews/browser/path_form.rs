//! The path form, where all sandboxes share one origin.

use super::*;

/// An application that names everything of its own relative to its page.
const APPLICATION: &str =
    "<!doctype html><title>path</title><script src=script.js></script><img id=image src=image>
<iframe name=frame></iframe><script>
PRELUDE
(async () => {
  const [said] = await socket(new URL('ws', location).href.replace('https', 'wss'))
  await tell('path', { ticket: location.search.includes('cube_preview'), cookie: document.cookie, said,
    script: window.scripted === true, api: await status('api?x'), worker: await status('worker.js'),
    posted: await status('api', { method: 'POST', body: 'x' }), redirected: await status('redirect'),
    reloaded: await status(location.pathname) })
})()
</script>";

/// A page of another sandbox that wants a worker over the whole origin.
const SIBLING: &str = "<!doctype html><title>sibling</title><script>
PRELUDE
(async () => {
  const register = scope => navigator.serviceWorker.register('worker.js', { scope }).then(r => r.scope, e => e.name)
  await tell('sibling', { all: await register('/'), victim: await register('VICTIM/'), own: await register('./') })
})()
</script>";

impl Stage {
    /// Where the path form is.
    fn shared(&self) -> String {
        format!("https://shared.cube.test:{}", self.tls.env.proxy.https().port())
    }

    fn path_link(&self) -> String {
        let target = with(&format!("{}/", self.sandbox.prefix()), &ticket(&self.sandbox));
        format!("{}{target}", self.shared())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_the_path_form_a_link_opens_the_one_request_that_has_it() {
    let stage = Stage::with(APPLICATION, &json!({})).await;
    let _browser = browser(&stage.path_link());
    let nothing = json!({
        "ticket": true, "cookie": "", "said": "refused", "script": false, "api": 404, "worker": 404,
        "posted": 404, "redirected": 404, "reloaded": 404,
    });
    assert_eq!(stage.told("path").await, nothing);
    let request = stage.application.last();
    assert_eq!((request.target.as_str(), request.headers.has("cookie")), ("/", false));
    assert_eq!(stage.application.count(), 1);
    stage.saw_no_ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_path_cookie_an_application_works_below_its_prefix() {
    let stage = Stage::with(APPLICATION, &json!({ "path_cookie": true })).await;
    let _browser = browser(&stage.path_link());
    let all = json!({
        "ticket": false, "cookie": "", "said": "hi", "script": true, "api": 200, "worker": 200,
        "posted": 200, "redirected": 200, "reloaded": 200,
    });
    assert_eq!(stage.told("path").await, all);
    let reached: Vec<String> =
        stage.application.received().into_iter().map(|request| request.target).collect();
    for target in ["/", "/script.js", "/image", "/ws", "/api?x", "/redirect", "/api"] {
        assert!(reached.iter().any(|one| one == target), "{target} of {reached:?}");
    }
    stage.saw_no_ticket();
}

/// Else it would see every link that is opened in the path form.
#[tokio::test(flavor = "multi_thread")]
async fn in_the_path_form_a_service_worker_of_a_sibling_stays_below_its_prefix() {
    let stage = Stage::with(APPLICATION, &json!({})).await;
    let page = complete(SIBLING, &stage.platform).replace("VICTIM", &stage.sandbox.prefix());
    let sibling = Origin::named("sibling")
        .serve(move |exchange: Exchange| {
            let page = page.clone();
            async move {
                if exchange.request.target == "/worker.js" {
                    let fields = [SCRIPT[0], ("Service-Worker-Allowed", "/")];
                    return exchange.reply(200, &fields, service_worker::WORKER).await;
                }
                exchange.reply(200, &PAGE, page).await
            }
        })
        .await;
    let sibling = stage.tls.env.sandbox(&sibling).await;
    let own = format!("{}{}/", stage.shared(), sibling.prefix());
    let _browser = browser(&own);
    let told = json!({ "all": "SecurityError", "victim": "SecurityError", "own": own });
    assert_eq!(stage.told("sibling").await, told);
}
