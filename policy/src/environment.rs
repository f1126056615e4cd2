//! Which variables of the environment a command isn't given: those that look like secrets.

/// Patterns of names that are withheld, and of those that pass all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withholding {
    /// Names that are withheld.
    pub withhold: Vec<String>,
    /// Names that pass, whatever withholds them.
    pub pass: Vec<String>,
}

impl Withholding {
    /// Tells whether a variable of this name is withheld. Names are bytes.
    #[must_use]
    pub fn withholds(&self, name: &[u8]) -> bool {
        let any =
            |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern.as_bytes(), name));
        any(&self.withhold) && !any(&self.pass)
    }
}

/// Matches a whole name; `*` stands for any number of bytes, and the case of ASCII letters makes no difference.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|&byte| byte == b'*');
    let first = parts.next().unwrap_or_default();
    let same = |part: &[u8], text: &[u8]| part.eq_ignore_ascii_case(text);
    let Some((head, mut rest)) = name.split_at_checked(first.len()) else { return false };
    if !same(first, head) {
        return false;
    }
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            let Some(start) = rest.len().checked_sub(part.len()) else { return false };
            return rest.get(start..).is_some_and(|tail| same(part, tail));
        }
        if part.is_empty() {
            continue;
        }
        let Some(at) = rest.windows(part.len()).position(|window| same(part, window)) else {
            return false;
        };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_patterns() {
        let rows: [(&str, &[u8], bool); 14] = [
            ("HOME", b"HOME", true),
            ("HOME", b"HOMES", false),
            ("*_TOKEN", b"GH_TOKEN", true),
            ("*_TOKEN", b"gh_token", true),
            ("*_TOKEN", b"TOKEN", false),
            ("*_TOKEN", b"X_TOKENS", false),
            ("AWS_*", b"AWS_", true),
            ("AWS_*", b"MY_AWS_X", false),
            ("*SECRET*", b"THE_SECRET_KEY", true),
            ("*SECRET*", b"\xff\xfesecret", true),
            ("a*b*c", b"axxbyyc", true),
            ("a*b*c", b"acb", false),
            ("ab*ba", b"aba", false),
            ("*", b"", true),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(
                matches(pattern.as_bytes(), name),
                expected,
                "{pattern} {}",
                name.escape_ascii()
            );
        }
    }

    #[test]
    fn what_passes_goes_before_what_is_withheld() {
        let both = Withholding { withhold: vec!["*_KEY".into()], pass: vec!["MY_*".into()] };
        assert!(
            both.withholds(b"API_KEY") && !both.withholds(b"MY_KEY") && !both.withholds(b"PATH")
        );
        assert!(!Withholding::default().withholds(b"API_KEY"));
    }
}
