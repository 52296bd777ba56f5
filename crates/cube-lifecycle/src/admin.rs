//! The routes of the admin API that are about lifecycles (lifecycle.md, "Admin API"). Who may
//! call, and how long a body may be, is the listener's business.

use bytes::Bytes;
use cube_metadata::SandboxState;
use cube_route::SandboxId;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::Lifecycle;

/// A response of the admin API; the body is JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleResponse {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
}

/// The body of `POST /admin/meta/upsert`. Fields that nothing here depends on are not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upsert {
    /// Whose metadata it is.
    pub id: SandboxId,
    /// `auto_resume`; `None`: not named, which leaves what is known. `Some(None)`: null.
    pub auto_resume: Option<Option<bool>>,
}

impl Upsert {
    /// Reads the body.
    ///
    /// # Errors
    /// The text of the 400.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let (id, fields) = object(body)?;
        let auto_resume = match fields.get("auto_resume") {
            None => None,
            Some(Value::Null) => Some(None),
            Some(Value::Bool(resume)) => Some(Some(*resume)),
            Some(_) => {
                tracing::warn!(sandbox = %id, "auto_resume of an upsert is no boolean; taken as not said");
                Some(None)
            }
        };
        Ok(Self { id, auto_resume })
    }
}

impl Lifecycle {
    /// Handles `/admin/meta/upsert`, `/admin/meta/delete`, `/admin/backend_cache/delete`,
    /// `/admin/state` and `/admin/last_active`. `None`: not one of them, or not with that method.
    pub fn admin(
        &self,
        method: &Method,
        path: &str,
        query: Option<&str>,
        body: &[u8],
    ) -> Option<LifecycleResponse> {
        let response = match (method, path) {
            (&Method::POST, "/admin/meta/upsert") => Upsert::parse(body).map(|upsert| {
                self.upsert(&upsert);
                json!({"ok": true}).to_string()
            }),
            (&Method::POST, "/admin/meta/delete") => object(body).map(|(id, _)| {
                let deleted = u8::from(self.delete(&id));
                json!({"ok": true, "backend_cache_deleted": deleted}).to_string()
            }),
            (&Method::POST, "/admin/backend_cache/delete") => object(body).map(|(id, _)| {
                let deleted = u8::from(self.forget_route(&id));
                json!({"ok": true, "deleted": deleted}).to_string()
            }),
            (&Method::POST, "/admin/state") => state(body).map(|(id, state)| {
                self.push_state(&id, state);
                json!({"ok": true}).to_string()
            }),
            (&Method::GET, "/admin/last_active") => {
                since(query).map(|since| self.last_active(since).to_json())
            }
            _ => return None,
        };
        Some(match response {
            Ok(body) => LifecycleResponse { status: StatusCode::OK, body: body.into() },
            Err(text) => LifecycleResponse {
                status: StatusCode::BAD_REQUEST,
                body: json!({ "error": text }).to_string().into(),
            },
        })
    }

    /// Takes the lifecycle metadata of a sandbox.
    pub fn upsert(&self, upsert: &Upsert) {
        if let Some(auto_resume) = upsert.auto_resume {
            self.set_auto_resume(&upsert.id, auto_resume);
        }
    }
}

/// A body that is an object with a good `sandbox_id`.
fn object(body: &[u8]) -> Result<(SandboxId, Map<String, Value>), String> {
    if body.is_empty() {
        return Err("empty body".to_owned());
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| format!("invalid json: {error}"))?;
    let Value::Object(fields) = value else { return Err("body must be a JSON object".to_owned()) };
    let text = fields.get("sandbox_id").and_then(Value::as_str).filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| r#"field "sandbox_id" must be a non-empty string"#.to_owned())?;
    let id = SandboxId::parse(text).map_err(|error| format!(r#"field "sandbox_id": {error}"#))?;
    Ok((id, fields))
}

fn state(body: &[u8]) -> Result<(SandboxId, SandboxState), String> {
    let (id, fields) = object(body)?;
    let state = fields.get("state").and_then(Value::as_str).and_then(SandboxState::parse);
    match state {
        Some(state) => Ok((id, state)),
        None => {
            let names = SandboxState::ALL.map(SandboxState::as_str).join(", ");
            Err(format!(r#"field "state" must be one of {names}"#))
        }
    }
}

fn since(query: Option<&str>) -> Result<u64, String> {
    let given = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("since="));
    match given {
        None | Some("") => Ok(0),
        Some(text) => {
            text.parse().map_err(|_| r#"query "since" must be unix time in milliseconds"#.to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
