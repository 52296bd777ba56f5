//! What hostile bytes may not do to this crate, a function a target (fuzz/README.md).

use crate::yaml::{Document, Fields};
use crate::{Access, FieldValue, HostMask, RecordField, SandboxRecord, check_field, yaml_edit};

/// The hash of a sandbox, a field a line, `name=value`: what an operator may write has no warnings, and
/// what says who may come in is never read as more than it says.
pub fn record(data: &[u8]) {
    let fields: Vec<(&[u8], &[u8])> = data
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split_at_checked(line.iter().position(|b| *b == b'=')?))
        .map(|(name, value)| (name, value.get(1..).unwrap_or_default()))
        .collect();
    let record = SandboxRecord::parse(fields.iter().copied(), 0);
    assert_eq!(record, SandboxRecord::parse(fields.iter().copied(), 0));
    let last = |name: &str| {
        fields.iter().rev().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| *value)
    };
    let closed = last("AllowPublicTraffic").is_some_and(|value| value != b"true");
    assert!(!(closed && record.access == Access::Public), "a closed sandbox is open");
    if let FieldValue::Value(mask) = &record.mask_request_host {
        for (port, _) in record.ports() {
            let host = mask.render(*port);
            assert!(HostMask::parse(&host).is_some() && host.bytes().all(|b| b.is_ascii_graphic()), "{host}");
        }
    }
    let good = |(name, value): &(&[u8], &[u8])| match (str::from_utf8(name), str::from_utf8(value)) {
        (Ok(name), Ok(value)) => check_field(name, value).is_ok(),
        _ => RecordField::of(name).is_none(),
    };
    if fields.iter().all(good) {
        assert_eq!(record.warnings().count(), 0, "what may be written is read with a warning");
    }
    let _ = record.warnings().map(|warning| warning.to_string()).collect::<Vec<_>>();
}

/// The file of the embedded store: what is read is the same when it is written and read again, and an edit
/// that can be read holds what was put.
pub fn records_file(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok(document) = Document::read(text) else { return };
    if let Ok(written) = document.write() {
        assert_eq!(Document::read(&written).as_ref(), Ok(&document), "{written}");
    }
    let fields: Fields = [("HostIP".to_owned(), "10.0.0.1".to_owned())].into();
    // Whoever edits compares what comes out with what was meant, so it need not be right; it has to be there.
    let _ = yaml_edit::put(text, "abc", &fields);
    let _ = yaml_edit::remove(text, "abc");
}

#[cfg(test)]
mod tests {
    use cube_fuzz::run_corpus;

    #[test]
    fn corpora_of_fuzzing() {
        run_corpus("record", super::record);
        run_corpus("records-file", super::records_file);
    }
}
