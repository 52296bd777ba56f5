//! The fields of the access log (operations.md), in one list: their order and number in both formats
//! follow from it, and so does the order in which texts lie in the queue's buffer.
//!
//! A new field is one line here, and its value where a request ends (`proxy/logging.rs`); for a value
//! of our own [`LineValues`] carries it. The kinds are the methods of [`LineWriter`], and say what a value is:
//!
//! - `text`: a text of the request, of the field's own name in [`Texts`], copied into the queue's buffer;
//! - `text`, `plain`, `number` or `named`, `from |line| ...`: made of [`LineParts`] by the thread that writes.

use cube_route::Port;

use super::encode::{List, Put};
use super::values::{LineValues, UpstreamTry};

/// What the thread that writes has at hand for one line.
pub(super) struct LineParts<'a> {
    pub(super) values: &'a LineValues,
    /// The attempts that the line lists.
    pub(super) upstreams: &'a [Option<UpstreamTry>],
    /// Texts, redacted.
    pub(super) texts: Texts<'a>,
    /// The query, cut from the request target after that was redacted.
    pub(super) args: &'a [u8],
    /// [`LineValues::time`] as text.
    pub(super) time: &'a str,
}

impl LineParts<'_> {
    fn tries(&self) -> impl Iterator<Item = &UpstreamTry> + Clone {
        self.upstreams.iter().flatten()
    }
}

/// A line under construction, in one of the formats.
pub(super) trait LineWriter {
    /// A value from outside; empty: absent.
    fn text(&mut self, name: &str, value: &[u8]);
    /// A value of our own that needs no escaping; `None`: absent.
    fn plain(&mut self, name: &str, value: Option<impl Put>);
    /// A number; `None`: absent.
    fn number(&mut self, name: &str, value: Option<impl Put>);
    /// As `plain`, but left out where a line has the old gateway's form: programs count its fields.
    fn named(&mut self, name: &str, value: Option<impl Put>);
}

/// Makes of the list: [`Texts`], how they are packed and unpacked, and [`write`]. The first rules go
/// through the list and sort out the texts of the request.
macro_rules! fields {
    (@sort [$($texts:tt)*] [$($line:tt)*] $(#[$doc:meta])* $name:ident: text; $($rest:tt)*) => {
        fields! { @sort
            [$($texts)* ($(#[$doc])* $name)]
            [$($line)* ($name text |line| line.texts.$name)]
            $($rest)*
        }
    };
    (@sort [$($texts:tt)*] [$($line:tt)*]
        $name:ident: $kind:ident from |$parts:ident| $value:expr; $($rest:tt)*) => {
        fields! { @sort [$($texts)*] [$($line)* ($name $kind |$parts| $value)] $($rest)* }
    };
    (@sort
        [$(($(#[$doc:meta])* $text:ident))*]
        [$(($name:ident $kind:ident |$parts:ident| $value:expr))*]) => {
        /// How many texts of the request a line has.
        pub(super) const TEXTS: usize = [$(stringify!($text)),*].len();

        /// The texts of a request, raw: the log escapes and redacts them. Empty counts as absent.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Texts<'a> {
            $($(#[$doc])* pub $text: &'a [u8],)*
        }

        impl<'a> Texts<'a> {
            /// The texts in the order in which they are packed.
            pub(super) fn packed(self) -> [&'a [u8]; TEXTS] {
                [$(self.$text),*]
            }

            /// The texts out of a line's part of the buffer.
            pub(super) fn unpack(packed: &'a [u8], lengths: &[u32; TEXTS]) -> Self {
                let mut rest = packed;
                let mut lengths = lengths.iter();
                let mut next = || {
                    let length = lengths.next().copied().unwrap_or_default() as usize;
                    let (text, after) = rest.split_at_checked(length).unwrap_or_default();
                    rest = after;
                    text
                };
                Self { $($text: next()),* }
            }
        }

        /// Writes all fields.
        pub(super) fn write(line: &mut impl LineWriter, parts: &LineParts<'_>) {
            $({
                let $parts = parts;
                line.$kind(stringify!($name), $value);
            })*
        }
    };
    ($($list:tt)*) => { fields! { @sort [] [] $($list)* } };
}

fields! {
    access_time: plain from |line| Some(line.time);
    /// The client's Host or `:authority`.
    host: text;
    /// `X-Real-IP`, as the sandbox sees it.
    x_real_ip: text;
    /// `X-Forwarded-For`, as the sandbox sees it.
    x_forwarded_for: text;
    server_addr: plain from |line| line.values.server_addr;
    /// `X-Forwarded-Proto`, as the sandbox sees it.
    x_forwarded_proto: text;
    /// The method.
    method: text;
    /// The target as the client sent it, query included; `args` is cut from it.
    request_uri: text;
    args: text from |line| line.args;
    protocol: plain from |line| line.values.protocol;
    /// The path that went upstream.
    uri: text;
    status: number from |line| line.values.status;
    body_bytes_sent: number from |line| Some(line.values.body_bytes_sent);
    request_time: number from |line| Some(line.values.took);
    connection_requests: number from |line| Some(line.values.connection_requests);
    upstream_addr: plain from |line| list(line.tries().map(|attempt| Some(attempt.address)));
    upstream_status: plain from |line| list(line.tries().map(|attempt| attempt.status));
    upstream_response_time: plain from |line| list(line.tries().map(|attempt| attempt.took));
    /// `User-Agent`.
    user_agent: text;
    /// `X-Cube-Request-Id`, the one that the response carries.
    x_cube_request_id: text;
    /// `X-Cube-Instance-Id`, as the client sent it.
    x_cube_instance_id: text;
    backend_ip: plain from |line| line.tries().last().map(|attempt| attempt.address.ip());
    retcode: number from |line| Some(line.values.retcode.code());
    /// The sandbox id that the request names.
    sandbox_id: text;
    container_port: number from |line| line.values.port.map(Port::get);
    reason: plain from |line| Some(line.values.reason.as_str());
    trace_id: named from |line| line.values.trace;
}

/// The values of several attempts; none where no attempt has one.
fn list<T: Put>(values: impl Iterator<Item = Option<T>> + Clone) -> Option<impl Put> {
    values.clone().any(|value| value.is_some()).then_some(List(values))
}
