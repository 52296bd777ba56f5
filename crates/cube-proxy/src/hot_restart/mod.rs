//! Replacing the running process by another one, of a new binary or with a new configuration,
//! without losing a connection (operations.md, "Hot restart"; lifecycle.md, "Across a hot restart").
//!
//! Three roles, all over one socket in the run directory:
//!
//! - The *incumbent* (`incumbent`) serves. It listens on the socket, gives its listening sockets
//!   to a successor, and serves on whatever becomes of that one until it says that it is ready.
//! - The *successor* (`successor`) is what `run --upgrade` becomes: it takes the sockets, gets
//!   ready, takes what the incumbent knows, serves.
//! - The *drainer* (`drainer`) was an incumbent and still has streams. It stays linked to whoever
//!   is the main process: what it sees of activity goes there, what the admin API is told comes
//!   from there.

mod channel;
mod child;
mod drainer;
mod incumbent;
mod init;
pub(crate) mod launcher;
mod link;
mod presence;
mod socket;
mod successor;

use cube_edge::{Counted, Ledger, ProcessStanding};
use cube_lifecycle::{ListingCursors, StateRow};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use child::StartedAs;
pub(crate) use drainer::DrainEnd;
pub(crate) use incumbent::{Incumbent, ProcessPhase, Settings};
pub(crate) use presence::Presence;
pub(crate) use socket::{Inherited, ListenerHandle, UpgradeSocket};
pub(crate) use successor::{Predecessor, RestartReply, Takeover, ask};

/// Changes when two processes could no longer understand each other.
const PROTOCOL: u32 = 1;
/// How long the other process may take for something that needs no waiting.
const PROMPT: Duration = Duration::from_secs(5);
/// Rows of a table in one message.
const ROWS: usize = 2_000;

/// What the processes say to each other. Each message is JSON behind its length; new fields are
/// ignored by who does not know them. So are new messages, but by the first versions, whose link breaks
/// over them: what may come to one of those is sent only where it has said that it understands.
#[derive(Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
enum Message {
    /// The first word of `run --upgrade`.
    Upgrade { protocol: u32, version: String },
    /// The first word of a drainer, and how it stands.
    Drainer {
        protocol: u32,
        #[serde(default)]
        standing: Option<ProcessStanding>,
    },

    /// No, and why. Ends the attempt.
    Refused { text: String },
    /// To who asked while a service manager holds the incumbent: it starts the successor itself.
    Starting,
    /// And how that went: an exit code, and what to say.
    Outcome { code: u8, text: String },

    /// To the successor: the sockets, whose descriptors come along, in this order.
    Sockets { pid: u32, sockets: Vec<SocketName> },
    /// The successor could serve.
    Ready,
    /// It cannot, and why.
    Failed { text: String },
    /// States and lifecycle metadata.
    States { rows: Vec<StateRow> },
    /// Stamps of activity; from a drainer too. In unix milliseconds, `offset` ahead of the steady clock.
    Activity {
        rows: Vec<(String, u64)>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<i64>,
    },
    /// That was all. How far activity has been listed, and how many processes besides will link to the
    /// successor.
    Known {
        #[serde(flatten)]
        listings: ListingCursors,
        drainers: usize,
        /// What was counted before and beside the successor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ledger: Option<Box<Ledger>>,
    },
    /// The successor has taken it.
    Taken,
    /// It may begin.
    Begin,
    /// It accepts connections: the incumbent may stop.
    Serving,
    /// Pid file and socket are the successor's.
    Settled,

    /// To a drainer: it is linked. Whether its reports are understood.
    Welcome {
        #[serde(default)]
        reports: bool,
    },
    /// From a drainer, every second and at its end, where they are understood: how it stands, and the
    /// counts that are other than in its last report over this link.
    Report { standing: ProcessStanding, counted: Counted },
    /// A change that the admin API took, numbered where its hearing is waited for.
    Push { number: Option<u64>, path: String, body: String },
    /// That change has been taken.
    Heard { number: u64 },
    /// The access log is to be opened anew.
    Reopen,
    /// The service is being stopped, or is to end now.
    Stop { now: bool },
    /// A request that came to the drainer's admin API.
    #[serde(rename = "errand")]
    Forwarded { number: u64, method: String, target: String, body: String },
    /// Its response.
    Done { number: u64, status: u16, body: String },

    /// Something that a later version says.
    #[serde(other)]
    Unknown,
}

/// The name alone: what is said may be a request of the admin API, which no log is to have.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Upgrade { .. } => "Upgrade",
            Self::Drainer { .. } => "Drainer",
            Self::Refused { .. } => "Refused",
            Self::Starting => "Starting",
            Self::Outcome { .. } => "Outcome",
            Self::Sockets { .. } => "Sockets",
            Self::Ready => "Ready",
            Self::Failed { .. } => "Failed",
            Self::States { .. } => "States",
            Self::Activity { .. } => "Activity",
            Self::Known { .. } => "Known",
            Self::Taken => "Taken",
            Self::Begin => "Begin",
            Self::Serving => "Serving",
            Self::Settled => "Settled",
            Self::Welcome { .. } => "Welcome",
            Self::Report { .. } => "Report",
            Self::Push { .. } => "Push",
            Self::Heard { .. } => "Heard",
            Self::Reopen => "Reopen",
            Self::Stop { .. } => "Stop",
            Self::Forwarded { .. } => "Forwarded",
            Self::Done { .. } => "Done",
            Self::Unknown => "Unknown",
        })
    }
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SocketName {
    /// The option that named it, e.g. `listen.http`.
    option: String,
    /// What it was bound to.
    address: SocketAddr,
}

/// Why an upgrade came to nothing.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct UpgradeError {
    /// What happened, for people.
    pub text: String,
    /// The exit code of who asked.
    pub code: u8,
}

impl UpgradeError {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: crate::error::EXIT_FAILURE }
    }
}
