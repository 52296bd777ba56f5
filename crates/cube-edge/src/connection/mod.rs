//! From an accepted connection to its requests: the connection driver.
//!
//! It takes the place of Pingora's own services, since deadlines, limits, draining, kills and
//! the memory of an idle connection all hang on it (docs/architecture.md, "What Pingora
//! handles, what we handle"). Pingora gets one request at a time, through
//! `HttpServerApp::process_new_http`, which it offers for accept loops like this.

mod body;
mod certificate;
mod conn;
mod connection_table;
mod downstream;
mod driver;
mod frames;
mod h1;
mod h2;
mod h2_frame;
mod head_watch;
mod kill;
mod listener;
mod proxy_protocol;
mod rst_stream_code;
mod rst_stream_limit;
mod settings;
mod stream;
mod tls;
mod transport;
mod unsent;

pub(crate) use body::Framing;
pub use certificate::{Certificate, CertificateError, CertificateExpiry, CertificateFiles, TlsSettings};
pub use conn::ListenerProtocol;
pub(crate) use conn::{Conn, ConnectionPhase, Refuse, ip_value};
pub(crate) use downstream::{DOWNSTREAM, Downstream};
pub use driver::Driver;
pub(crate) use head_watch::is_line_of;
pub(crate) use kill::Kill;
pub use listener::{BindError, Listener, listen_plain};
pub use settings::ConnectionSettings;
pub(crate) use stream::ClientStream;
pub use tls::{Certificates, NewCertificates};
pub(crate) use transport::{Ahead, poll_fill, poll_out};
