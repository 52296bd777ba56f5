//! Pingora doing nothing but forwarding: what a proxy on Pingora costs at the least.
//!
//! `noop-pingora LISTEN UPSTREAM`, with one thread and Pingora's own server.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::prelude::{HttpPeer, Opt, Result, Server};
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::configuration::ServerConf;

struct Noop(SocketAddr);

#[async_trait]
impl ProxyHttp for Noop {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut Self::CTX) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let addresses = (arguments.next(), arguments.next().and_then(|text| text.parse().ok()));
    let (Some(listen), Some(upstream)) = addresses else { return std::process::ExitCode::from(64) };
    let conf = ServerConf { threads: 1, upstream_keepalive_pool_size: 1500, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(Opt::default(), conf);
    server.bootstrap();
    let mut service = http_proxy_service(&Arc::clone(&server.configuration), Noop(upstream));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever()
}
