//! A route as operators see it (`GET /admin/routes/<id>`): everything but the token.

use std::fmt::Display;

use cube_breaker::Breaker;
use cube_lifecycle::Lifecycle;
use cube_metadata::{Access, FieldValue, Status};
use cube_resolver::Inspection;
use serde_json::{Map, Value, json};

/// The record, how the cache holds it, and what state and breaker say.
pub(crate) fn describe(found: &Inspection, lifecycle: &Lifecycle, breaker: &Breaker) -> Value {
    let entry = &found.entry;
    let record = &entry.record;
    let ports: Map<String, Value> =
        record.ports().iter().map(|(container, host)| (container.to_string(), field(*host))).collect();
    let breaker = match record.host_ip {
        FieldValue::Value(node) if breaker.faulty().contains(&node) => "faulty",
        FieldValue::Value(node) if breaker.open_nodes().contains(&node) => "open",
        FieldValue::Value(_) => "closed",
        FieldValue::Missing | FieldValue::Malformed => "unknown",
    };
    json!({
        "sandbox_id": entry.id.as_str(),
        "record": {
            "host_ip": field(record.host_ip),
            "sandbox_ip": field(record.sandbox_ip),
            "ports": ports,
            "access": match record.access {
                Access::Public => "public",
                Access::Token(_) => "token",
                Access::Closed => "closed",
            },
            "mask_request_host": match record.mask_request_host {
                FieldValue::Missing => "missing",
                FieldValue::Malformed => "malformed",
                FieldValue::Value(_) => "set",
            },
            "created_at": record.created_at,
            "status": record.status.map(word),
            "prefix": record.prefix,
        },
        "age_ms": u64::try_from(found.age.as_millis()).unwrap_or(u64::MAX),
        "tracked": found.tracked,
        "must_be_read": found.must_be_read,
        "generation": entry.generation.get(),
        "state": lifecycle.state(&entry.id).map(word),
        "auto_resume": lifecycle.auto_resume(&entry.id),
        "breaker": breaker,
    })
}

/// The value as text, `null` where missing, `"malformed"` where it is.
fn field<T: Display>(field: FieldValue<T>) -> Value {
    match field {
        FieldValue::Missing => Value::Null,
        FieldValue::Malformed => "malformed".into(),
        FieldValue::Value(value) => value.to_string().into(),
    }
}

/// The state's word.
pub(crate) fn word(status: Status) -> &'static str {
    match status {
        Status::Known(state) => state.as_str(),
        Status::Unknown => "unknown",
    }
}
