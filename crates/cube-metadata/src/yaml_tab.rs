//! Finds tabs in indentation, the most frequent slip in hand-written YAML. The YAML library reports one
//! only as "a character that cannot start any token".

/// Line and column, from 1, of a tab in the indentation of `line` (from 1) of a text that is no
/// YAML, or of the line before it, where a reader may have noticed it late.
#[must_use]
pub fn tab_in_indentation(text: &str, line: usize) -> Option<(usize, usize)> {
    let at = |line: usize| {
        let written = text.lines().nth(line.checked_sub(1)?)?;
        let indentation = written.len() - written.trim_start().len();
        let column = written.get(..indentation)?.find('\t')? + 1;
        Some((line, column))
    };
    at(line).or_else(|| at(line.checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tab_is_found_where_it_indents() {
        let text = "a:\n\tb: 1\n  \tc: 2\nd: \t3\n";
        assert_eq!(tab_in_indentation(text, 2), Some((2, 1)));
        assert_eq!(tab_in_indentation(text, 3), Some((3, 3)));
        assert_eq!(tab_in_indentation(text, 4), Some((3, 3)), "noticed a line late");
        assert_eq!(tab_in_indentation(text, 1), None);
        assert_eq!(tab_in_indentation("a:\t1\n", 1), None);
        assert_eq!([0, 9].map(|line| tab_in_indentation(text, line)), [None, None]);
    }
}
