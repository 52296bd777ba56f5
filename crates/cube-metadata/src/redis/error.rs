//! What fred's errors mean to us.

use fred::error::{Error, ErrorKind};

use crate::StoreError;

/// The code that an error answer of a server begins with (`WRONGTYPE`, `LOADING`, ...); none for
/// what the client or the network says.
pub(crate) fn code(error: &Error) -> Option<&str> {
    let word = error.details().split(' ').next()?;
    (word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase())).then_some(word)
}

/// Whether the error is about one key, and says nothing about the server that answered it.
pub(crate) fn is_about_the_key(error: &Error) -> bool {
    matches!(code(error), Some("WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT"))
}

pub(crate) fn store_error(error: &Error) -> StoreError {
    if matches!(error.kind(), ErrorKind::Timeout) {
        return StoreError::Timeout;
    }
    match code(error) {
        // Redis repeats the arguments of a command it does not know.
        Some(_) => {
            let told = error.details();
            StoreError::Refused(told.split_once(", with args").map_or(told, |(told, _)| told).to_owned())
        }
        None => StoreError::Unreachable(error.details().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_server_is_told_from_a_broken_connection() {
        let of = |kind, details: &'static str| store_error(&Error::new(kind, details));
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
        assert!(is_about_the_key(&Error::new(ErrorKind::InvalidArgument, "WRONGTYPE Operation")));
        assert!(!is_about_the_key(&Error::new(ErrorKind::Unknown, "LOADING Redis is loading")));
        assert!(!is_about_the_key(&Error::new(ErrorKind::IO, "Connection closed.")));
    }
}
