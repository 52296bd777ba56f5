//! What hostile bytes may not do to this crate, a function a target (fuzz/README.md).

use crate::admin::{Upsert, object, since, state};

/// The body of a call of the admin API, whichever it is, and a query: the readers agree on which sandbox is
/// meant, and a refusal is a text that JSON carries.
pub fn admin(data: &[u8]) {
    let ids = [
        object(data).map(|(id, _)| id),
        Upsert::parse(data).map(|upsert| upsert.id),
        state(data).map(|(id, _)| id),
    ];
    let [object, upsert, state] = &ids;
    assert_eq!(object, upsert, "an upsert needs no more than the sandbox");
    assert!(state.is_err() || state == object, "another sandbox");
    for text in ids.iter().filter_map(|read| read.as_ref().err()) {
        assert!(!text.is_empty() && text.len() < 1024, "a refusal of {} bytes", text.len());
    }
    let query = std::str::from_utf8(data).ok();
    if let (Ok(1..), Some(query)) = (since(query), query) {
        assert!(query.contains("since="));
    }
}

#[cfg(test)]
mod tests {
    use cube_fuzz::run_corpus;

    #[test]
    fn corpora_of_fuzzing() {
        run_corpus("admin", super::admin);
    }
}
