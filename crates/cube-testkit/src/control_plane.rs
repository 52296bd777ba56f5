//! The API that the real SDKs ask for a sandbox before they talk to it (e2b.md, "What the SDKs ask for").

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::origin::ExchangeResult;
use crate::{Exchange, Origin, OriginBuilder, Sandbox};

/// The version of envd that sandboxes are said to have: all that the SDKs know is used with it.
const ENVD_VERSION: &str = "0.6.4";

type Known = Arc<Mutex<HashMap<String, Value>>>;

/// A running control plane.
pub struct ControlPlane {
    origin: Origin,
    known: Known,
}

impl ControlPlane {
    /// One on 127.0.0.1 that knows no sandbox.
    pub async fn start() -> Self {
        Self::over(Origin::named("control-plane")).await
    }

    /// One that listens where the builder says.
    pub async fn over(builder: OriginBuilder) -> Self {
        let known = Known::default();
        let serving = Arc::clone(&known);
        let origin = builder.serve(move |exchange| response(exchange, Arc::clone(&serving))).await;
        Self { origin, known }
    }

    /// What has arrived there.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.origin.address())
    }

    /// Lets the SDKs connect to a sandbox; `more` is merged into what they are told.
    pub fn know(&self, sandbox: &Sandbox, more: &Value) {
        let mut told = json!({
            "templateID": "base",
            "sandboxID": sandbox.id,
            "clientID": "example-client",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": "example-envd-token",
        });
        crate::merge(&mut told, more);
        self.known.lock().unwrap().insert(sandbox.id.clone(), told);
    }
}

async fn response(exchange: Exchange, known: Known) -> ExchangeResult {
    let json = [("Content-Type", "application/json")];
    let fault = |code: u16, message: &str| (code, json!({ "code": code, "message": message }).to_string());
    let (status, body) = {
        let request = &exchange.request;
        let mut known = known.lock().unwrap();
        let segments: Vec<&str> = request.target.split('/').skip(1).collect();
        match (request.method.as_str(), segments.as_slice()) {
            _ if !request.headers.has("x-api-key") => fault(401, "no API key"),
            ("POST", ["v2", "sandboxes", id, "connect"]) => match known.get(*id) {
                Some(told) => (200, told.to_string()),
                None => fault(404, "sandbox not found"),
            },
            ("DELETE", ["sandboxes", id]) => match known.remove(*id) {
                Some(_) => (204, String::new()),
                None => fault(404, "sandbox not found"),
            },
            _ => fault(404, "no such endpoint"),
        }
    };
    exchange.reply(status, &json, body).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[tokio::test]
    async fn a_known_sandbox_can_be_connected_to_until_it_is_killed() {
        let control_plane = ControlPlane::start().await;
        let sandbox = Sandbox::named("abc");
        control_plane.know(&sandbox, &json!({ "domain": "e2b.test" }));
        let mut client = Client::connect(control_plane.origin().address()).await;
        let key = [("X-API-Key", "example-key")];
        let response = client.call("POST", "/v2/sandboxes/abc/connect", &key, "{}").await;
        let told: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(
            (response.status, &told["sandboxID"], &told["domain"]),
            (200, &json!("abc"), &json!("e2b.test"))
        );
        assert_eq!(client.call("POST", "/v2/sandboxes/abc/connect", &[], "{}").await.status, 401);
        assert_eq!(client.call("DELETE", "/sandboxes/abc", &key, "").await.status, 204);
        assert_eq!(client.call("POST", "/v2/sandboxes/abc/connect", &key, "{}").await.status, 404);
    }
}
