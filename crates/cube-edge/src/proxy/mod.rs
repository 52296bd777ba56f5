//! A request on its way through the proxy: [`hooks`] is what Pingora calls, with a file a phase below it,
//! and [`state`] what they all share.

pub(crate) mod access;
pub(crate) mod cache_filters;
pub(crate) mod context;
pub(crate) mod control_plane;
mod fail_to_proxy;
pub(crate) mod hooks;
pub(crate) mod hop_by_hop;
pub(crate) mod http_upgrade;
mod logging;
pub(crate) mod media_type;
pub(crate) mod own_headers;
mod path_redirect;
pub(crate) mod pool_key;
mod preview_headers;
mod preview_redirect;
mod redirect;
mod rejection;
mod request_body_filter;
pub(crate) mod request_filter;
pub(crate) mod request_id;
pub(crate) mod response_filter;
mod retry;
mod spans;
pub(crate) mod state;
pub(crate) mod upstream_peer;
pub(crate) mod upstream_request_filter;
