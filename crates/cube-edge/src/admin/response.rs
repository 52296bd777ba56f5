//! Responses of the listeners beside the data plane.

use bytes::Bytes;
use cube_lifecycle::LifecycleResponse;
use http::StatusCode;
use pingora::Result;
use pingora::http::ResponseHeader;
use serde_json::{Value, json};

use super::health::Readiness;

/// Status, type and body; never cached, never sniffed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdminResponse {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) body: Bytes,
}

impl AdminResponse {
    pub(super) fn json(status: StatusCode, body: &Value) -> Self {
        Self { status, kind: "application/json", body: body.to_string().into() }
    }

    pub(super) fn error(status: StatusCode, text: &str) -> Self {
        Self::json(status, &json!({ "error": text }))
    }

    /// The 404 of every listener.
    pub(super) fn no_route(method: &str, path: &str) -> Self {
        Self::error(StatusCode::NOT_FOUND, &format!("no route for {method} {path}"))
    }

    /// The head for Pingora.
    pub(super) fn head(&self) -> Result<ResponseHeader> {
        let mut head = ResponseHeader::build(self.status, Some(6))?;
        head.append_header("Content-Type", self.kind)?;
        head.append_header("Content-Length", self.body.len())?;
        head.append_header("Cache-Control", "no-store")?;
        head.append_header("X-Content-Type-Options", "nosniff")?;
        Ok(head)
    }
}

impl From<LifecycleResponse> for AdminResponse {
    fn from(response: LifecycleResponse) -> Self {
        Self { status: response.status, kind: "application/json", body: response.body }
    }
}

/// `/healthz` and `/readyz`, which every one of these listeners has.
pub(super) fn probe(readiness: &Readiness, method: &str, path: &str) -> Option<AdminResponse> {
    if !matches!(method, "GET" | "HEAD") {
        return None;
    }
    match path {
        "/healthz" => Some(AdminResponse::json(StatusCode::OK, &json!({ "ok": true }))),
        "/readyz" => Some(match readiness.unready() {
            None => AdminResponse::json(StatusCode::OK, &json!({ "ready": true })),
            Some(reason) => AdminResponse::json(
                StatusCode::SERVICE_UNAVAILABLE,
                &json!({ "ready": false, "reason": reason }),
            ),
        }),
        _ => None,
    }
}
