//! `POST /admin/sandboxes/<id>/link`: a preview link (previews.md, "Making links").

use std::time::{SystemTime, UNIX_EPOCH};

use cube_metadata::Access;
use cube_resolver::Lookup;
use cube_route::preview::{LinkForm, LinkRefusal, LinkRequest};
use cube_route::{Port, SandboxId};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::response::AdminResponse;
use crate::proxy::state::ProxyState;

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    port: u16,
    #[serde(default = "an_hour")]
    ttl_seconds: u64,
    #[serde(default = "root")]
    path: String,
    #[serde(default)]
    any_port: bool,
    #[serde(default)]
    form: Form,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Form {
    #[default]
    Host,
    Path,
}

fn an_hour() -> u64 {
    3600
}

fn root() -> String {
    "/".to_owned()
}

/// Makes the link.
pub(super) async fn make(state: &ProxyState, id: &str, body: &[u8]) -> AdminResponse {
    let malformed = |text: &str| AdminResponse::error(StatusCode::BAD_REQUEST, text);
    let Ok(id) = SandboxId::parse(id) else {
        return malformed("not a sandbox id: 1 to 128 of A-Z a-z 0-9 _ -");
    };
    // The error of the parser could repeat what was sent.
    let Ok(asked) = serde_json::from_slice::<Asked>(body) else {
        return malformed("must be {\"port\":3000,\"ttl_seconds\":3600,\"path\":\"/\"}");
    };
    let Some(port) = Port::new(asked.port) else { return malformed("port must be 1 to 65535") };
    let entry = match state.resolver.lookup_fresh(&id).await {
        Ok(Lookup::Found(entry)) => entry,
        Ok(Lookup::Unknown) => return AdminResponse::error(StatusCode::NOT_FOUND, "no such sandbox"),
        Err(error) => {
            tracing::warn!(sandbox = %id, %error, "the store cannot answer the admin API");
            return AdminResponse::error(StatusCode::SERVICE_UNAVAILABLE, "the store cannot answer");
        }
    };
    let settings = state.settings.load();
    let request = LinkRequest {
        id: &id,
        port,
        any_port: asked.any_port,
        form: match asked.form {
            Form::Host => LinkForm::Host,
            Form::Path => LinkForm::Path,
        },
        path: &asked.path,
        ttl: asked.ttl_seconds,
        max_ttl: settings.previews.max_ttl.as_secs(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
    };
    let made = match &entry.record.access {
        _ if !settings.previews.enabled => Err(LinkRefusal::Off),
        Access::Public => Err(LinkRefusal::Public),
        Access::Closed => Err(LinkRefusal::NoToken),
        Access::Token(token) => request.make(settings.previews.base_url.as_ref(), Some(token.expose())),
    };
    match made {
        Ok(link) => AdminResponse::json(
            StatusCode::OK,
            &json!({ "url": link.url, "ticket": link.ticket, "expires_at": link.expires_at }),
        ),
        Err(refusal) if refusal.is_malformed() => malformed(&refusal.to_string()),
        Err(refusal) => AdminResponse::error(StatusCode::CONFLICT, &refusal.to_string()),
    }
}
