//! Changing one record in the text of the embedded store's file, so that the comments, the order and
//! the spelling of everything else stay. Only the plain block style is understood; whoever calls
//! compares what came out with what was meant.

use crate::yaml::Fields;

/// A line of a record or of the section, without its end.
struct Line<'a> {
    indent: usize,
    /// The key before the colon, without quotes; empty on a blank line and a comment.
    key: &'a str,
    /// What follows the colon.
    rest: &'a str,
    blank: bool,
    comment: bool,
}

impl<'a> Line<'a> {
    fn of(text: &'a str) -> Self {
        let body = text.trim();
        let indent = text.len() - text.trim_start().len();
        let comment = body.starts_with('#');
        let (key, rest) = match body.split_once(':') {
            Some((key, rest)) if !comment => (key.trim(), rest.trim()),
            _ => ("", ""),
        };
        Self { indent, key: key.trim_matches(['"', '\'']), rest, blank: body.is_empty(), comment }
    }

    fn is_content(&self) -> bool {
        !self.blank && !self.comment
    }

    /// Whether the value is on the lines that follow.
    fn opens(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with('#')
    }
}

/// The lines of the section `sandboxes` and of a record in it; ends are exclusive.
struct RecordLocation {
    section: usize,
    end: usize,
    /// How many spaces stand before a sandbox id.
    indent: usize,
    record: Option<(usize, usize)>,
}

fn find(lines: &[String], id: &str) -> Option<RecordLocation> {
    let parsed: Vec<Line> = lines.iter().map(|line| Line::of(line)).collect();
    let is_section = |line: &Line| line.indent == 0 && line.key == "sandboxes" && line.opens();
    let section = parsed.iter().position(is_section)?;
    let within =
        |range: std::ops::Range<usize>| range.filter(|at| parsed.get(*at).is_some_and(Line::is_content));
    let content = |from: usize, deeper: usize| {
        within(from..parsed.len())
            .take_while(|at| parsed.get(*at).is_some_and(|line| line.indent > deeper))
            .last()
            .map_or(from, |last| last + 1)
    };
    let end = content(section + 1, 0);
    let indent = within(section + 1..end).next().and_then(|at| parsed.get(at)).map_or(2, |line| line.indent);
    let named = |at: &usize| {
        parsed.get(*at).is_some_and(|line| line.indent == indent && line.key.eq_ignore_ascii_case(id))
    };
    let record = match within(section + 1..end).find(named) {
        Some(start) if parsed.get(start).is_some_and(Line::opens) => {
            Some((start, content(start + 1, indent)))
        }
        // A record that is written in one line (`{ HostIP: .. }`) is not edited.
        Some(_) => return None,
        None => None,
    };
    Some(RecordLocation { section, end, indent, record })
}

/// The text with these fields of a record; `None`: not in this style.
pub(crate) fn put(text: &str, id: &str, fields: &Fields) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let location = find(&lines, id)?;
    let Some((start, mut end)) = location.record else {
        let mut new = vec![format!("{:1$}{2}:", "", location.indent, quoted(id)?)];
        for (name, value) in fields {
            new.push(format!("{:1$}{2}: {3}", "", 2 * location.indent, quoted(name)?, quoted(value)?));
        }
        lines.splice(location.end..location.end, new);
        return Some(joined(&lines));
    };
    let mut inner = lines.get(start + 1..end)?.iter().map(|line| Line::of(line)).filter(Line::is_content);
    let indent = inner.next().map_or(2 * location.indent, |line| line.indent);
    for (name, value) in fields {
        let mut own = (start + 1..end).filter(|at| {
            lines
                .get(*at)
                .map(|line| Line::of(line))
                .is_some_and(|line| line.indent == indent && line.key == name)
        });
        let written = format!("{:indent$}{}: {}", "", quoted(name)?, quoted(value)?);
        match own.next() {
            Some(at) => {
                let line = lines.get_mut(at)?;
                let comment = trailing_comment(line).unwrap_or_default().to_owned();
                *line = written + &comment;
            }
            None => {
                lines.insert(end, written);
                end += 1;
            }
        }
    }
    Some(joined(&lines))
}

/// The text without a record and the comment right above it; `None`: not in this style.
pub(crate) fn remove(text: &str, id: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let location = find(&lines, id)?;
    let (mut start, end) = location.record?;
    while start > location.section + 1 && lines.get(start - 1).is_some_and(|line| Line::of(line).comment) {
        start -= 1;
    }
    lines.drain(start..end);
    let left = lines.iter().skip(location.section + 1).map(|line| Line::of(line));
    if !left.filter(Line::is_content).take(1).any(|line| line.indent > 0) {
        *lines.get_mut(location.section)? = "sandboxes: {}".to_owned();
    }
    Some(joined(&lines))
}

/// Whether there is anything to lose but values.
pub(crate) fn has_comments(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with('#') || line.contains(" #"))
}

/// The comment after a value, with the space before it.
fn trailing_comment(line: &str) -> Option<&str> {
    let at = line.rfind(" #")?;
    let before = line.get(..at)?;
    let closed = |quote: char| before.matches(quote).count().is_multiple_of(2);
    (closed('"') && closed('\'')).then(|| line.get(at..)).flatten()
}

/// As YAML reads it back; `None` for what needs more than one line.
fn quoted(text: &str) -> Option<String> {
    if text.chars().any(char::is_control) {
        return None;
    }
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && !["null", "true", "false", "yes", "no", "on", "off", "y", "n"]
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word));
    Some(if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) })
}

fn joined(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::Document;

    const FILE: &str = "\
# of the file
sandboxes:
  # of a
  a:
    HostIP: 10.0.0.1 # the first node
    # container port
    \"8080\": '1'

  # of b
  B:
    HostIP: 10.0.0.2
# of the set
faulty_backend_set: []
";

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn values_change_where_they_stand_and_new_ones_follow() {
        let new =
            put(FILE, "a", &fields(&[("HostIP", "10.0.0.9"), ("8080", "2"), ("Status", "paused")])).unwrap();
        let want = FILE
            .replace("HostIP: 10.0.0.1 #", "HostIP: '10.0.0.9' #")
            .replace("\"8080\": '1'\n", "'8080': '2'\n    Status: paused\n");
        assert_eq!(new, want);
    }

    #[test]
    fn a_new_record_stands_after_the_last() {
        let new = put(FILE, "c", &fields(&[("HostIP", "::1")])).unwrap();
        assert_eq!(new, FILE.replace("10.0.0.2\n", "10.0.0.2\n  c:\n    HostIP: '::1'\n"));
        let empty = put("# nothing yet\nsandboxes:\n", "c", &fields(&[("a", "b")])).unwrap();
        assert_eq!(empty, "# nothing yet\nsandboxes:\n  c:\n    a: b\n");
    }

    #[test]
    fn a_record_goes_with_its_comment() {
        let new = remove(FILE, "b").unwrap();
        assert_eq!(new, FILE.replace("  # of b\n  B:\n    HostIP: 10.0.0.2\n", ""));
        let none = remove(&remove(FILE, "b").unwrap(), "a").unwrap();
        assert_eq!(none, "# of the file\nsandboxes: {}\n\n# of the set\nfaulty_backend_set: []\n");
    }

    #[test]
    fn other_styles_are_left_alone() {
        for text in ["sandboxes: {a: {x: y}}\n", "sandboxes:\n  a: {x: y}\n", "faulty_backend_set: []\n"] {
            assert_eq!(put(text, "a", &fields(&[("x", "z")])), None, "{text}");
        }
        assert_eq!(remove("sandboxes:\n  a: {x: y}\n", "a"), None);
        assert_eq!(put(FILE, "a", &fields(&[("x", "two\nlines")])), None);
    }

    #[test]
    fn what_is_written_reads_back() {
        for value in ["", "true", "8080", "it's", "a # b", "- x", "{", "10.0.0.1", "ü", "null", "a: b"] {
            let all = fields(&[("x", value), (value, "y"), ("HostIP", value)]);
            for id in ["a", "new", "123", "true"] {
                let read = Document::read(&put(FILE, id, &all).unwrap()).unwrap();
                let id = crate::yaml::Id(cube_route::SandboxId::parse(id).unwrap());
                let got = &read.sandboxes.0[&id].0;
                assert!(all.iter().all(|(name, value)| got.get(name) == Some(value)), "{value:?}: {got:?}");
            }
        }
    }
}
