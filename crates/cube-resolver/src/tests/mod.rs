//! The rules of the cache, one by one (metadata.md). Sequences of all rules are in `model`.

mod freshness;
mod identity;
mod outage;

use std::sync::Arc;
use std::time::Duration;

use crate::testbed::{Testbed, id};
use crate::{RouteEntry, Settings};

const HERE: &[(&str, &str)] = &[("HostIP", "10.0.0.1"), ("SandboxIP", "192.168.0.1"), ("CreatedAt", "1")];
const THERE: &[(&str, &str)] = &[("HostIP", "10.0.0.2"), ("SandboxIP", "192.168.0.1"), ("CreatedAt", "1")];
const REBORN: &[(&str, &str)] = &[("HostIP", "10.0.0.1"), ("SandboxIP", "192.168.0.1"), ("CreatedAt", "2")];
const SECOND: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings { ttl_min: 500 * SECOND, ttl_max: 500 * SECOND, ..Settings::default() }
}

async fn testbed_with(fields: &[(&str, &str)]) -> Testbed {
    let testbed = Testbed::new(settings()).await;
    testbed.write(&id("a"), fields).await;
    testbed
}

fn host(entry: &Arc<RouteEntry>) -> String {
    format!("{:?}", entry.record.host_ip)
}
