//! What fred's errors mean to us.

use fred::error::{Error, ErrorKind};

use crate::StoreError;

/// The code that a server's error answer begins with (`WRONGTYPE`, `LOADING`, ...).
pub(crate) fn code(error: &StoreError) -> Option<&str> {
    match error {
        StoreError::Refused(told) => told.split(' ').next(),
        _ => None,
    }
}

/// Whether the error is about one key, and says nothing about the server that answered it.
pub(crate) fn is_about_the_key(error: &StoreError) -> bool {
    matches!(code(error), Some("WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT"))
}

/// A server's error answer is told from what the client or the network says by its first word.
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
        StoreError::Unreachable(told.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: ErrorKind, details: &'static str) -> StoreError {
        store_error(&Error::new(kind, details))
    }

    #[test]
    fn an_answer_of_the_server_is_told_from_a_broken_connection() {
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
    fn a_wrong_type_is_the_fault_of_the_key_only() {
        assert!(is_about_the_key(&of(ErrorKind::InvalidArgument, "WRONGTYPE Operation")));
        assert!(!is_about_the_key(&of(ErrorKind::Unknown, "LOADING Redis is loading")));
        assert!(!is_about_the_key(&of(ErrorKind::IO, "Connection closed.")));
    }
}
