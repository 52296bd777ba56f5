//! Preview links: how a browser opens a private sandbox without its traffic token (previews.md).
//!
//! [`Ticket`] is what a link carries: made from the token, judged without asking anybody. [`query`] and
//! [`cookie`] take tickets out of requests, [`CookieRequest`] says when a cookie counts, and [`LoginUrl`]
//! where those are sent who have none.

pub mod cookie;
mod cross_site;
mod link;
mod login;
mod origin;
pub mod query;
mod ticket;

pub use cross_site::CookieRequest;
pub use link::{Link, LinkBase, LinkForm, LinkRefusal, LinkRequest};
pub use login::{LoginUrl, LoginUrlError};
pub use origin::{OriginError, check_origin};
pub use ticket::{MIN_TOKEN, Ticket, TicketCheck, TicketPort, TicketVerdict};
