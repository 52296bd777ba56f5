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
    /// The sandbox.
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

/// Carries a route out: from query and body to the body of the 200, or the text of the 400.
type RouteHandler = fn(&Lifecycle, Option<&str>, &[u8]) -> Result<String, String>;

/// One route of the admin API that is about lifecycles.
pub struct LifecycleRoute {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: &'static str,
    handle: RouteHandler,
}

/// All routes of the admin API that are about lifecycles.
pub const LIFECYCLE_ROUTES: &[LifecycleRoute] = &[
    LifecycleRoute {
        method: Method::POST,
        path: "/admin/meta/upsert",
        handle: |lifecycle, _, body| {
            lifecycle.upsert(&Upsert::parse(body)?);
            Ok(json!({"ok": true}).to_string())
        },
    },
    LifecycleRoute {
        method: Method::POST,
        path: "/admin/meta/delete",
        handle: |lifecycle, _, body| {
            let deleted = u8::from(lifecycle.delete(&object(body)?.0));
            Ok(json!({"ok": true, "backend_cache_deleted": deleted}).to_string())
        },
    },
    LifecycleRoute {
        method: Method::POST,
        path: "/admin/backend_cache/delete",
        handle: |lifecycle, _, body| {
            let deleted = u8::from(lifecycle.forget_route(&object(body)?.0));
            Ok(json!({"ok": true, "deleted": deleted}).to_string())
        },
    },
    LifecycleRoute {
        method: Method::POST,
        path: "/admin/state",
        handle: |lifecycle, _, body| {
            let (id, state) = state(body)?;
            lifecycle.push_state(&id, state);
            Ok(json!({"ok": true}).to_string())
        },
    },
    LifecycleRoute {
        method: Method::GET,
        path: "/admin/last_active",
        handle: |lifecycle, query, _| Ok(lifecycle.last_active(since(query)?).to_json()),
    },
];

impl Lifecycle {
    /// Handles what [`LIFECYCLE_ROUTES`] lists. `None`: not one of them, or not with that method.
    pub fn admin(
        &self,
        method: &Method,
        path: &str,
        query: Option<&str>,
        body: &[u8],
    ) -> Option<LifecycleResponse> {
        let route = LIFECYCLE_ROUTES.iter().find(|route| route.method == *method && route.path == path)?;
        Some(match (route.handle)(self, query, body) {
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
pub(crate) fn object(body: &[u8]) -> Result<(SandboxId, Map<String, Value>), String> {
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

pub(crate) fn state(body: &[u8]) -> Result<(SandboxId, SandboxState), String> {
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

pub(crate) fn since(query: Option<&str>) -> Result<u64, String> {
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
