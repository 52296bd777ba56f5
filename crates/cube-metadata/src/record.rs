//! The record of a sandbox: the Redis hash, parsed once when it is read.

use std::fmt;
use std::net::IpAddr;

use cube_route::Port;
use subtle::ConstantTimeEq;

/// A field that a request may need. Only the request that needs it minds what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<T> {
    /// Absent or empty: `310507`.
    Missing,
    /// There, but not what it should be: `310508`.
    Malformed,
    /// Good.
    Value(T),
}

/// Where a sandbox is in its life (lifecycle.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Serving.
    Running,
    /// On its way to sleep.
    Pausing,
    /// Asleep.
    Paused,
    /// Waking.
    Resuming,
    /// Being removed.
    Killing,
    /// Removed.
    Killed,
}

impl SandboxState {
    /// All six, in the order of the specification.
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

/// A state as somebody else wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// One of the six.
    Known(SandboxState),
    /// Some other word: passes the gate, with a warning.
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

/// A secret that callers present. Compared in constant time, never shown.
#[derive(Clone)]
pub struct TrafficToken(Box<[u8]>);

impl TrafficToken {
    /// `None` for an empty one, which is no token.
    #[must_use]
    pub fn new(secret: &[u8]) -> Option<Self> {
        (!secret.is_empty()).then(|| Self(secret.into()))
    }

    /// Whether `presented` is this token; takes the same time wherever they differ.
    #[must_use]
    pub fn matches(&self, presented: &[u8]) -> bool {
        self.0.ct_eq(presented).into()
    }
}

impl fmt::Debug for TrafficToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrafficToken(..)")
    }
}

/// Who may reach a sandbox, decided from `AllowPublicTraffic` and `TrafficAccessToken`.
#[derive(Debug, Clone)]
pub enum Access {
    /// Everyone.
    Public,
    /// Whoever presents the token.
    Token(TrafficToken),
    /// Nobody: a token is needed and the record has none.
    Closed,
}

/// `MaskRequestHost`: the Host a sandbox sees, with `${PORT}` for the container port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMask(Box<str>);

/// A sandbox as the store knows it.
#[derive(Debug, Clone)]
pub struct SandboxRecord {
    /// Address of the node.
    pub host_ip: Field<IpAddr>,
    /// Address of the sandbox on its node.
    pub sandbox_ip: Field<IpAddr>,
    /// Who may reach it.
    pub access: Access,
    /// What the sandbox sees as Host; missing: the client's own.
    pub mask_request_host: Field<HostMask>,
    /// `CreatedAt` as written (unix nanoseconds); part of the generation.
    pub created_at: Option<Box<str>>,
    /// `Status`, where set.
    pub status: Option<Status>,
    /// Index of the key prefix the record was found under.
    pub prefix: u8,
    ports: Box<[(Port, Field<Port>)]>,
}

impl SandboxRecord {
    /// The host port that a container port is mapped to on the node.
    #[must_use]
    pub fn host_port(&self, container: Port) -> Field<Port> {
        match self.ports.binary_search_by_key(&container, |(port, _)| *port) {
            Ok(at) => self.ports.get(at).map_or(Field::Missing, |(_, mapped)| *mapped),
            Err(_) => Field::Missing,
        }
    }

    /// All mappings, by container port.
    #[must_use]
    pub fn ports(&self) -> &[(Port, Field<Port>)] {
        &self.ports
    }
}
