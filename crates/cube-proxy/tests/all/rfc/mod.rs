//! What the RFCs of HTTP ask for, a module an RFC, each case with its section.

mod downgrade;
mod fence;
mod grpc_responses;
mod h2spec;
mod responses;
mod rfc6455;
mod rfc7541;
mod rfc8441;
mod rfc9110;
mod rfc9112;
pub(crate) mod rfc9113;
