//! The listeners for operators (admin, metrics, health) against whoever reaches them
//! (operations.md, Listeners).

use std::net::SocketAddr;
use std::time::Instant;

use cube_testkit::serde_json::json;
use cube_testkit::{Client, Env, Wire, within};
use tokio::net::TcpStream;

use crate::support::{A_SECOND, own};

const FLOOD: usize = 1200;
const HOST: (&str, &str) = ("Host", "127.0.0.1");

/// A proxy with all three listeners, and where they are.
async fn all_three() -> (Env, [SocketAddr; 3]) {
    let health = format!("127.0.0.1:{}", cube_testkit::free_port("127.0.0.1"));
    let env = own(json!({ "listen": { "health": health } })).await;
    let addresses = [env.proxy.admin_address(), env.proxy.metrics_address(), health.parse().unwrap()];
    (env, addresses)
}

/// A connection that said `bytes` and says no more.
async fn silent(address: SocketAddr, bytes: &str) -> Wire<TcpStream> {
    let mut wire = Wire::new(within("a connection", TcpStream::connect(address)).await.unwrap());
    // One that was ended already may take no bytes.
    let _ = wire.send(bytes).await;
    wire
}

#[tokio::test]
async fn silent_connections_take_no_listener_from_others() {
    let (_env, addresses) = all_three().await;
    for address in addresses {
        for bytes in ["", "GET /readyz HTTP/1.1\r\nHost: 127."] {
            let mut flood = Vec::new();
            for _ in 0..FLOOD {
                flood.push(silent(address, bytes).await);
            }
            let begun = Instant::now();
            let mut client = Client::connect(address).await;
            assert_eq!(client.call("GET", "/readyz", &[HOST], "").await.status, 200);
            assert!(begun.elapsed() < A_SECOND, "{:?} after {bytes:?}", begun.elapsed());
        }
    }
}

#[tokio::test]
async fn a_connection_must_bring_a_request_soon_and_may_rest_between_two() {
    let (_env, [_, metrics, _]) = all_three().await;
    let mut scraper = Client::connect(metrics).await;
    assert_eq!(scraper.call("GET", "/metrics", &[HOST], "").await.status, 200);
    let begun = Instant::now();
    let (mut nothing, mut a_part) = (silent(metrics, "").await, silent(metrics, "GET /re").await);
    for wire in [&mut nothing, &mut a_part] {
        assert_eq!(within("the end of the connection", wire.some(1)).await.unwrap_or_default(), b"");
    }
    assert!(begun.elapsed().as_secs() >= 4, "no time for a slow network: {:?}", begun.elapsed());
    assert_eq!(scraper.call("GET", "/metrics", &[HOST], "").await.status, 200);
}
