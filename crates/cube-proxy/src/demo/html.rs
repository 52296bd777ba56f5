//! The demo's pages: templates in the binary, filled in with escaped text.

const STYLE: &str = include_str!("style.css");

/// Fills `{{name}}` in `template`. Values are HTML already: text goes through [`escape`] first.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.replace("{{style}}", STYLE), |page, (name, value)| {
        page.replace(&format!("{{{{{name}}}}}"), value)
    })
}

/// `text` so that it is only ever shown, never read as HTML.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // So that a value can name no place of a template.
            '{' => safe.push_str("&#123;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_and_never_run() {
        let hostile = "<script>\"'&{{style}}";
        let page = fill("<p title=\"{{a}}\">{{a}} {{b}}</p>", &[("a", &escape(hostile)), ("b", "<b>x</b>")]);
        assert!(page.contains("<b>x</b>") && !page.contains("<script>") && !page.contains(STYLE), "{page}");
    }
}
