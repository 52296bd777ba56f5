//! An application that keeps its connections, and neighbours that ask it over the same pool: what a
//! hostile message would have to move for it to harm anybody.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use cube_testkit::{Client, Env, Exchange, Origin, eventually, scripts};

/// A sandbox whose application tells each request what it was, on connections that it keeps.
pub(super) struct Fence {
    pub(super) origin: Origin,
    pub(super) host: String,
    proxy: SocketAddr,
    whole: Arc<Mutex<Vec<String>>>,
}

impl Fence {
    /// Behind this proxy.
    pub(super) async fn behind(env: &Env) -> Self {
        Self::answering(env, b"").await
    }

    /// The same, but a request for `/attack` is answered with these bytes, and the connection kept.
    pub(super) async fn answering(env: &Env, attack: &[u8]) -> Self {
        let whole = Arc::new(Mutex::new(Vec::new()));
        let (seen, attack) = (Arc::clone(&whole), attack.to_vec());
        let script = move |mut exchange: Exchange| {
            let (seen, attack) = (Arc::clone(&seen), attack.clone());
            async move {
                let body = exchange.body().await?;
                let (method, target) = (&exchange.request.method, &exchange.request.target);
                let line = format!("{method} {target} {}", body.escape_ascii());
                seen.lock().unwrap().push(line.trim_end().to_owned());
                if target.starts_with("/attack") {
                    exchange.send(attack).await?;
                    return Ok(exchange);
                }
                scripts::echo(exchange).await
            }
        };
        let origin = Origin::scripted(script).await;
        let host = env.sandbox(&origin).await.host();
        Self { origin, host, proxy: env.proxy.http(), whole }
    }

    /// Bytes of a client, with `{host}` for the sandbox's name.
    pub(super) fn bytes(&self, text: &str) -> Vec<u8> {
        // One character is one byte, so that cases can hold any.
        text.replace("{host}", &self.host).chars().map(|c| u8::try_from(c).expect("latin-1")).collect()
    }

    /// A client that has said this.
    pub(super) async fn told(&self, text: &str) -> Client {
        let mut client = Client::connect(self.proxy).await;
        client.send(self.bytes(text)).await;
        client
    }

    /// The requests that have arrived whole since this was asked before, each `METHOD target body`. No
    /// head of one may have what another recipient could take for the end of a line.
    pub(super) fn arrived(&self) -> Vec<String> {
        for request in self.origin.received() {
            let text = String::from_utf8_lossy(&request.head).replace("\r\n", "");
            assert!(!text.contains(['\r', '\n', '\0']), "{text:?}");
        }
        std::mem::take(&mut *self.whole.lock().unwrap())
    }

    /// Waits until exactly this has arrived whole.
    pub(super) async fn whole(&self, request: &str) {
        eventually("a whole request", || async {
            let all = self.arrived();
            assert!(all.iter().all(|one| one == request), "{all:?}");
            (!all.is_empty()).then_some(())
        })
        .await;
    }

    /// Others ask, each gets the response to its own request, and each request is one at the application.
    pub(super) async fn others_are_served(&self, case: &str) {
        self.arrived();
        for n in 0..3 {
            let target = format!("/other/{n}");
            let mut client = Client::connect(self.proxy).await;
            let response = client.call("GET", &target, &[("Host", &self.host)], "").await;
            assert_eq!(response.passed(200).seen().target, target, "{case}");
        }
        let all = ["GET /other/0", "GET /other/1", "GET /other/2"];
        assert_eq!(self.arrived(), all, "{case}");
    }
}
