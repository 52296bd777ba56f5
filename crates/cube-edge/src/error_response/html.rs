//! The page that a browser shows for a response of the proxy (errors.md, "Browsers that meet an
//! error"). No script, nothing that is loaded; it reloads by itself where waiting helps.

use std::fmt::{self, Display, Formatter, Write};

use http::StatusCode;

use super::format::ResponseFormat;
use super::table::ProxyError;

const STYLE: &str = include_str!("page.css");

/// What the style in the page needs, and nothing else.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Writes the page. `error` is what the client may know of what happened.
pub(super) fn page(status: StatusCode, error: ProxyError, format: &ResponseFormat) -> String {
    let words = error.page(format.sandbox.as_ref().map(|(_, port)| *port));
    let (number, reason) = (status.as_str(), status.canonical_reason().unwrap_or_default());
    let reload = error.retry_after().filter(|_| format.get);
    let mut out = String::with_capacity(4096);
    // Writing to a String does not fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"{class}>\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"robots\" content=\"noindex\">\n",
        class = if reload.is_some() { " class=\"wait\"" } else { "" },
    );
    if let Some(seconds) = reload {
        let _ = writeln!(out, "<meta http-equiv=\"refresh\" content=\"{seconds}\">");
    }
    let _ = write!(
        out,
        "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <p class=\"status\">{number} {reason}</p>\n<h1>{title}</h1>\n<p>{advice}</p>\n",
        title = words.title,
        advice = words.advice,
    );
    if error.retry_after().is_some() {
        let what = if reload.is_some() { "This page reloads by itself." } else { "Try again in a moment." };
        let _ = writeln!(out, "<p>{what}</p>");
    }
    out.push_str("<dl>\n");
    let mut row = |name: &str, value: &dyn Display| {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{value}</dd>");
    };
    if let Some((id, port)) = &format.sandbox {
        row("Sandbox", id);
        row("Port", port);
    }
    row("Code", &error.retcode());
    if let Some(id) = &format.request_id {
        row("Request ID", &Escaped(id.to_str().unwrap_or_default()));
    }
    out.push_str("</dl>\n</main>\n</body>\n</html>\n");
    out
}

/// Text of the request, which HTML must not take for its own. A client may choose its request id.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            _ => f.write_char(letter),
        })
    }
}
