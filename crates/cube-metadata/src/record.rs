//! The record of a sandbox: the Redis hash, parsed once when it is read.

use std::fmt;
use std::net::IpAddr;

use cube_route::Port;
use cube_settings::Secret;

use crate::HostMask;
use crate::record_field::{RecordField, address};

/// The value of a field. A malformed one fails only the requests that need the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<T> {
    /// Absent or empty: `310507`.
    Missing,
    /// Present but not of the field's type: `310508`.
    Malformed,
    /// Present and well-formed.
    Value(T),
}

/// The lifecycle state of a sandbox (lifecycle.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// It serves requests.
    Running,
    /// It is being paused.
    Pausing,
    /// It is paused.
    Paused,
    /// It is being resumed.
    Resuming,
    /// It is being removed.
    Killing,
    /// It was removed.
    Killed,
}

impl SandboxState {
    /// All six, in the order of the contract.
    pub const ALL: [SandboxState; 6] = [
        SandboxState::Running,
        SandboxState::Pausing,
        SandboxState::Paused,
        SandboxState::Resuming,
        SandboxState::Killing,
        SandboxState::Killed,
    ];

    /// The word that is written in the store and in the admin API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SandboxState::Running => "running",
            SandboxState::Pausing => "pausing",
            SandboxState::Paused => "paused",
            SandboxState::Resuming => "resuming",
            SandboxState::Killing => "killing",
            SandboxState::Killed => "killed",
        }
    }

    /// The state with that word, exactly as written.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A lifecycle state as another component wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// One of the six states.
    Known(SandboxState),
    /// A word that is not one of the six: requests pass the gate, with a warning.
    Unknown,
}

impl Status {
    /// Reads the word; `None` for an empty one.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        if word.is_empty() {
            return None;
        }
        Some(SandboxState::parse(word).map_or(Status::Unknown, Status::Known))
    }
}

/// Who may reach a sandbox, decided from `AllowPublicTraffic` and `TrafficAccessToken`.
#[derive(Debug, Clone, PartialEq)]
pub enum Access {
    /// Everyone.
    Public,
    /// Whoever presents the token.
    Token(Secret),
    /// Nobody: a token is needed and the record has none.
    Closed,
}

/// A field of a record that is malformed. The record still serves the requests that do not need the
/// field; each warning is logged once a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordWarning {
    /// `HostIP` is no address.
    HostIp,
    /// `SandboxIP` is no address.
    SandboxIp,
    /// The value of this container port is no port.
    HostPort(Port),
    /// `AllowPublicTraffic` is neither `true` nor `false`: the sandbox is not public.
    AllowPublicTraffic,
    /// `MaskRequestHost` is not `host[:port]`.
    MaskRequestHost,
    /// `Status` is none of the six words.
    Status,
}

impl fmt::Display for RecordWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordWarning::HostIp => f.write_str("HostIP is not an address"),
            RecordWarning::SandboxIp => f.write_str("SandboxIP is not an address"),
            RecordWarning::HostPort(container) => write!(f, "the value of {container} is not a port"),
            RecordWarning::AllowPublicTraffic => f.write_str("AllowPublicTraffic is neither true nor false"),
            RecordWarning::MaskRequestHost => f.write_str("MaskRequestHost is not host[:port]"),
            RecordWarning::Status => f.write_str("Status is an unknown word"),
        }
    }
}

/// A sandbox as the store knows it. Equal: every field that is read says the same.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// Address of the node that the sandbox runs on.
    pub host_ip: FieldValue<IpAddr>,
    /// Address of the sandbox on its node.
    pub sandbox_ip: FieldValue<IpAddr>,
    /// Who may reach the sandbox.
    pub access: Access,
    /// What the sandbox sees as Host; missing: the client's own.
    pub mask_request_host: FieldValue<HostMask>,
    /// `CreatedAt` as written (unix nanoseconds); part of the generation.
    pub created_at: Option<Box<str>>,
    /// `Status`, where set.
    pub status: Option<Status>,
    /// Index of the key prefix the record was found under.
    pub prefix: u8,
    ports: Box<[(Port, FieldValue<Port>)]>,
    malformed_access: bool,
}

impl SandboxRecord {
    /// Reads the fields of a hash found under the prefix with that index. Whatever they hold, a
    /// record comes out: what is wrong is said field by field.
    #[must_use]
    pub fn parse<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, prefix: u8) -> Self {
        let mut host_ip = FieldValue::Missing;
        let mut sandbox_ip = FieldValue::Missing;
        let mut mask_request_host = FieldValue::Missing;
        let mut created_at = None;
        let mut status = None;
        let mut public = None;
        let mut token = None;
        let mut ports = Vec::new();
        for (name, value) in fields {
            let Some(known) = RecordField::of(name) else { continue };
            match known {
                RecordField::HostIp => host_ip = field(value, address),
                RecordField::SandboxIp => sandbox_ip = field(value, address),
                RecordField::AllowPublicTraffic => public = Some(value),
                RecordField::TrafficAccessToken => token = Secret::non_empty(value),
                RecordField::MaskRequestHost => mask_request_host = field(value, HostMask::parse),
                RecordField::CreatedAt if value.is_empty() => {}
                RecordField::CreatedAt => {
                    created_at = Some(String::from_utf8_lossy(value).into_owned().into_boxed_str());
                }
                // What is not even text is not one of the six words.
                RecordField::Status => status = Status::parse(str::from_utf8(value).unwrap_or("\u{fffd}")),
                RecordField::HostPort(container) => {
                    ports.push((container, field(value, |text| Port::parse(text).ok())));
                }
            }
        }
        ports.sort_unstable_by_key(|(container, _)| *container);
        let access = match (public, token) {
            (Some(b"true"), _) | (None, None) => Access::Public,
            (_, Some(token)) => Access::Token(token),
            (Some(_), None) => Access::Closed,
        };
        Self {
            host_ip,
            sandbox_ip,
            access,
            mask_request_host,
            created_at,
            status,
            prefix,
            ports: ports.into_boxed_slice(),
            malformed_access: !matches!(public, None | Some(b"true" | b"false")),
        }
    }

    /// All malformed fields, whether a request needs them or not.
    pub fn warnings(&self) -> impl Iterator<Item = RecordWarning> + '_ {
        let of_fields = [
            matches!(self.host_ip, FieldValue::Malformed).then_some(RecordWarning::HostIp),
            matches!(self.sandbox_ip, FieldValue::Malformed).then_some(RecordWarning::SandboxIp),
            self.malformed_access.then_some(RecordWarning::AllowPublicTraffic),
            matches!(self.mask_request_host, FieldValue::Malformed).then_some(RecordWarning::MaskRequestHost),
            matches!(self.status, Some(Status::Unknown)).then_some(RecordWarning::Status),
        ];
        let of_ports = self
            .ports
            .iter()
            .filter(|(_, mapped)| matches!(mapped, FieldValue::Malformed))
            .map(|(container, _)| RecordWarning::HostPort(*container));
        of_fields.into_iter().flatten().chain(of_ports)
    }

    /// The host port that a container port is mapped to on the node.
    #[must_use]
    pub fn host_port(&self, container: Port) -> FieldValue<Port> {
        match self.ports.binary_search_by_key(&container, |(port, _)| *port) {
            Ok(at) => self.ports.get(at).map_or(FieldValue::Missing, |(_, mapped)| *mapped),
            Err(_) => FieldValue::Missing,
        }
    }

    /// All mappings, by container port.
    #[must_use]
    pub fn ports(&self) -> &[(Port, FieldValue<Port>)] {
        &self.ports
    }
}

/// Empty is missing; what `read` does not know is malformed.
fn field<T>(value: &[u8], read: impl FnOnce(&str) -> Option<T>) -> FieldValue<T> {
    if value.is_empty() {
        return FieldValue::Missing;
    }
    str::from_utf8(value).ok().and_then(read).map_or(FieldValue::Malformed, FieldValue::Value)
}

#[cfg(test)]
mod tests;
