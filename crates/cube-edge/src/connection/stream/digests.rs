//! What Pingora asks of every stream and this one has nowhere else: most of it is in `Conn`.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType,
};

use super::ClientStream;

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.conn.tcp.as_raw_fd()
    }
}

// What these would tell is in `Conn`; Pingora only passes it through.
impl Ssl for ClientStream {}
impl Peek for ClientStream {}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
