//! See Cargo.toml.

mod answer;
mod reason;
mod retcode;

pub use answer::{Asker, Dialect, Fault, OwnAnswer, Settings as AnswerSettings, is_preflight, render};
pub use reason::Reason;
pub use retcode::Retcode;
