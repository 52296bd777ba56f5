//! A command that runs while the proxy is replaced (connections.md, "Draining"). The JavaScript SDK
//! gives up every stream of a connection that announces its end, so none may.

use cube_testkit::Envd;
use cube_testkit::serde_json::json;

use super::{Flavour, Place, Way, until};

/// Runs commands that count, by the SDKs over HTTP/2, and upgrades three times meanwhile.
async fn a_command_outlives_three_upgrades(step: &str, to: usize) {
    let place = Place::new(Way::Hosts, &json!({})).await;
    let envd = Envd::start().await;
    let sandbox = place.sandbox(&envd).await;
    let arguments = [format!("row:{}:{step},is_running", sandbox.id)];
    let upgrades = async {
        until("both commands at envd", || envd.running() == 2).await;
        for _ in 0..3 {
            place.env.proxy.upgrade().await;
        }
        assert_eq!(envd.running(), 2, "the commands were over before the upgrades");
    };
    let (javascript, python, ()) = tokio::join!(
        place.run(Flavour::JavaScript, "effects", &arguments),
        place.run(Flavour::PythonSync, "effects", &arguments),
        upgrades,
    );
    let counted: String = (1..=to).map(|n| format!("{n}\n")).collect();
    for results in [javascript, python] {
        assert_eq!(results.of(&format!("row/{step}")), json!({ "ok": counted }));
        assert_eq!(results.of("row/is_running"), json!({ "ok": true }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_outlives_three_upgrades_in_a_row() {
    a_command_outlives_three_upgrades("count", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn a_command_of_a_minute_outlives_three_upgrades_in_a_row() {
    a_command_outlives_three_upgrades("count_long", 600).await;
}
