//! Classes of bytes. Ids and host names are checked for every request, so a byte costs one look into a
//! table and no branch.

/// A byte of a sandbox id or of a label of a host name.
pub(crate) const ID: u8 = 1;
/// Such a byte in upper case.
pub(crate) const UPPER: u8 = 2;
/// The dot between the labels of a host name.
pub(crate) const DOT: u8 = 4;
/// Any other byte.
pub(crate) const OTHER: u8 = 8;

#[expect(clippy::indexing_slicing, reason = "a byte is within 256, and this runs in the compiler")]
static CLASSES: [u8; 256] = {
    let mut classes = [OTHER; 256];
    let mut byte: u8 = 0;
    while byte < 0x80 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => ID,
            b'A'..=b'Z' => UPPER,
            b'.' => DOT,
            _ => OTHER,
        };
        byte += 1;
    }
    classes
};

/// The class of a byte.
pub(crate) fn of(byte: u8) -> u8 {
    CLASSES.get(usize::from(byte)).copied().unwrap_or(OTHER)
}

/// All classes that occur in `text`.
pub(crate) fn among(text: &str) -> u8 {
    text.bytes().fold(0, |seen, byte| seen | of(byte))
}
