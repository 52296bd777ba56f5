//! The page that a browser shows for an answer of the proxy (`e2b` dialect).

use std::fmt::Write;

use cube_route::{Port, SandboxId};

use crate::retcode::Retcode;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto 0;max-width:34rem;\
    padding:0 1.5rem;color:#1c1f23;background:#fff}h1{font-size:1.4rem;margin:0 0 1rem}\
    p{margin:.4rem 0;color:#555b63}code{font-size:.95em;overflow-wrap:anywhere}\
    @media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#16181b}p{color:#a2a8b0}}";

/// What the style in the page needs, and nothing else.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Writes the page. `message` is one of ours; the id has no byte that HTML minds.
pub(super) fn page(
    status: u16,
    message: &str,
    sandbox: Option<&(SandboxId, Port)>,
    retcode: Retcode,
) -> String {
    let mut out = String::with_capacity(1024);
    // Writing to a String does not fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{status} - {message}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{message}</h1>\n"
    );
    if let Some((id, port)) = sandbox {
        let _ = writeln!(out, "<p>Sandbox <code>{id}</code>, port <code>{port}</code></p>");
    }
    let _ = writeln!(out, "<p>Status {status}, code {retcode}</p>\n</body>\n</html>");
    out
}
