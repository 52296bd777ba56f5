//! A command that says nothing but that it lives: envd's keepalive messages, every 50 s.

use cube_testkit::Envd;
use cube_testkit::serde_json::json;

use super::{Flavour, Place, Way};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes more than a minute"]
async fn a_quiet_command_ends_well() {
    let place = Place::new(Way::Hosts, &json!({})).await;
    let plain = Place::new(Way::Headers, &json!({})).await;
    let envd = Envd::start().await;
    let (by_host, by_header) = (place.sandbox(&envd).await, plain.sandbox(&envd).await);
    let arguments = |id: &str| [format!("row:{id}:quiet")];
    let (hosts, headers) = (arguments(&by_host.id), arguments(&by_header.id));
    let (a, b, c, d) = tokio::join!(
        place.run(Flavour::JavaScript, "effects", &hosts),
        place.run(Flavour::PythonSync, "effects", &hosts),
        plain.run(Flavour::JavaScript, "effects", &headers),
        plain.run(Flavour::PythonAsync, "effects", &headers),
    );
    for results in [a, b, c, d] {
        assert_eq!(results.of("row/quiet"), json!({ "ok": "awake\n" }));
    }
}
