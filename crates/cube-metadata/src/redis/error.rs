//! What fred's errors mean to us.

use fred::error::{Error, ErrorKind};

use crate::StoreError;

/// The code that a server's error reply begins with (`WRONGTYPE`, `LOADING`, ...).
pub(crate) fn code(error: &StoreError) -> Option<&str> {
    match error {
        StoreError::Refused(told) => told.split(' ').next(),
        _ => None,
    }
}

/// Whether the error is about one key, and says nothing about the server that sent it.
pub(crate) fn is_about_the_key(error: &StoreError) -> bool {
    matches!(code(error), Some("WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT"))
}

/// A server's error reply is recognised by its first word; everything else comes from the client or the
/// network.
pub(crate) fn store_error(error: &Error) -> StoreError {
    if matches!(error.kind(), ErrorKind::Timeout) {
        return StoreError::Timeout;
    }
    let told = error.details();
    let word = told.split(' ').next().unwrap_or_default();
    if word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase()) {
        // Redis repeats the arguments of a command it does not know.
        StoreError::Refused(told.split_once(", with args").map_or(told, |(told, _)| told).to_owned())
    } else {
        StoreError::Unreachable(in_words(told))
    }
}

/// fred hands on errors of the system and of TLS as Rust writes them for debugging
/// (`Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }`). What is meant for
/// people in it.
fn in_words(told: &str) -> String {
    let inner = |name: &str| told.split_once(name).and_then(|(_, rest)| rest.strip_suffix(" }"));
    let debugged = ["Os {", "Custom {", "Error {"].iter().any(|kind| told.starts_with(kind));
    if let Some(inner) = inner("message: ").or_else(|| inner("error: ")).filter(|_| debugged) {
        let quoted = inner.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        if let Some(text) = quoted {
            return text.replace("\\\"", "\"");
        }
        let certificate = inner.strip_prefix("InvalidCertificate(").and_then(|why| why.strip_suffix(')'));
        return certificate
            .map_or_else(|| inner.to_owned(), |why| format!("invalid peer certificate: {why}"));
    }
    match told.strip_prefix("Kind(").and_then(|kind| kind.strip_suffix(')')) {
        Some(kind) => kind.chars().fold(String::new(), |mut words, letter| {
            if letter.is_ascii_uppercase() && !words.is_empty() {
                words.push(' ');
            }
            words.push(letter.to_ascii_lowercase());
            words
        }),
        None => told.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: ErrorKind, details: &'static str) -> StoreError {
        store_error(&Error::new(kind, details))
    }

    #[test]
    fn a_reply_of_the_server_is_told_from_a_broken_connection() {
        assert_eq!(of(ErrorKind::Timeout, "Request timed out."), StoreError::Timeout);
        assert!(matches!(of(ErrorKind::IO, "Connection refused (os error 111)"), StoreError::Unreachable(_)));
        assert!(matches!(
            of(ErrorKind::Unknown, "Too many failed write attempts."),
            StoreError::Unreachable(_)
        ));
        assert!(matches!(of(ErrorKind::Unknown, "LOADING Redis is loading"), StoreError::Refused(_)));
        assert_eq!(
            of(ErrorKind::Unknown, "ERR unknown command 'X', with args beginning with: 'example-token'"),
            StoreError::Refused("ERR unknown command 'X'".to_owned())
        );
    }

    #[test]
    fn errors_of_the_system_are_told_in_words() {
        for (told, words) in [
            (
                "Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }",
                "Connection refused",
            ),
            (
                "Custom { kind: Uncategorized, error: \"failed to lookup address information: unknown\" }",
                "failed to lookup address information: unknown",
            ),
            (
                "Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) }",
                "invalid peer certificate: UnknownIssuer",
            ),
            ("Error { kind: UnexpectedEof, message: \"early eof\" }", "early eof"),
            ("Kind(UnexpectedEof)", "unexpected eof"),
            ("Too many failed write attempts.", "Too many failed write attempts."),
        ] {
            assert_eq!(in_words(told), words);
        }
        // What the library makes of one today.
        let refused: Error = std::io::Error::from_raw_os_error(111).into();
        assert_eq!(store_error(&refused), StoreError::Unreachable("Connection refused".to_owned()));
    }

    #[test]
    fn a_wrong_type_is_the_fault_of_the_key_only() {
        assert!(is_about_the_key(&of(ErrorKind::InvalidArgument, "WRONGTYPE Operation")));
        assert!(!is_about_the_key(&of(ErrorKind::Unknown, "LOADING Redis is loading")));
        assert!(!is_about_the_key(&of(ErrorKind::IO, "Connection closed.")));
    }
}
