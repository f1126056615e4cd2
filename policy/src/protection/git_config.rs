//! Git's configuration language, read the way git reads it (`config.c`).
//!
//! Whatever git would refuse is refused, and so is what different readers take differently: a NUL, a setting before
//! the first section, and a section without a name.

use std::fmt;

/// One setting, in the order of the file. Bytes, since git's values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The section, in lower case.
    pub section: Vec<u8>,
    /// What stands between the section and the name, as it was written in quotes, or in lower case for
    /// `[section.sub]`.
    pub subsection: Option<Vec<u8>>,
    /// The name, in lower case.
    pub name: Vec<u8>,
    /// The value, or `None` for a name alone, which means true.
    pub value: Option<Vec<u8>>,
}

impl Entry {
    /// Returns the setting's full name as `git config --list` prints it, with bytes that aren't UTF-8 replaced.
    #[must_use]
    pub fn key(&self) -> String {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.subsection {
            None => format!("{}.{}", lossy(&self.section), lossy(&self.name)),
            Some(sub) => format!("{}.{}.{}", lossy(&self.section), lossy(sub), lossy(&self.name)),
        }
    }
}

/// The text isn't a git configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line that can't be read, from 1.
    pub line: usize,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} can't be read", self.line)
    }
}

impl std::error::Error for ConfigError {}

/// Reads a configuration.
///
/// # Errors
/// The first line that git wouldn't read.
pub fn parse(text: &[u8]) -> Result<Vec<Entry>, ConfigError> {
    let mut reader =
        Reader { text: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text), at: 0, line: 1 };
    reader.file().ok_or(ConfigError { line: reader.line })
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
}

/// A section's name and subsection.
type Header = (Vec<u8>, Option<Vec<u8>>);

impl Reader<'_> {
    /// Returns the next byte with CRLF as LF. The end of the text is a last LF, and `None` after it.
    fn next(&mut self) -> Option<u8> {
        let byte = match self.text.get(self.at) {
            Some(b'\r') if self.text.get(self.at + 1) == Some(&b'\n') => {
                self.at += 1;
                b'\n'
            }
            Some(&byte) => byte,
            None if self.at == self.text.len() => b'\n',
            None => return None,
        };
        self.at += 1;
        if byte == b'\n' {
            self.line += 1;
        }
        Some(byte)
    }

    fn ended(&self) -> bool {
        self.at > self.text.len()
    }

    fn file(&mut self) -> Option<Vec<Entry>> {
        if self.text.contains(&0) {
            return None;
        }
        let mut entries = Vec::new();
        let mut header: Option<Header> = None;
        while let Some(byte) = self.next() {
            match byte {
                b'#' | b';' => while self.next()? != b'\n' {},
                b'[' => header = Some(self.header()?),
                byte if is_space(byte) => {}
                byte if byte.is_ascii_alphabetic() => {
                    let (section, subsection) = header.clone()?;
                    let (name, value) = self.setting(byte)?;
                    entries.push(Entry { section, subsection, name, value });
                }
                _ => return None,
            }
        }
        Some(entries)
    }

    /// Reads what follows `[`.
    fn header(&mut self) -> Option<Header> {
        let mut base = Vec::new();
        loop {
            let byte = self.next()?;
            if self.ended() {
                return None;
            }
            match byte {
                b']' => return split_base(&base),
                byte if is_space(byte) => {
                    let subsection = self.quoted_subsection(byte)?;
                    // `[a.b "c"]` is `a.b.c`, which git splits at the first and the last dot.
                    let (section, middle) = split_base(&base)?;
                    let whole = match middle {
                        None => subsection,
                        Some(middle) => [middle.as_slice(), b".", &subsection].concat(),
                    };
                    return Some((section, Some(whole)));
                }
                byte if is_key(byte) || byte == b'.' => base.push(byte.to_ascii_lowercase()),
                _ => return None,
            }
        }
    }

    fn quoted_subsection(&mut self, mut byte: u8) -> Option<Vec<u8>> {
        while is_space(byte) {
            if byte == b'\n' {
                return None;
            }
            byte = self.next()?;
        }
        if byte != b'"' {
            return None;
        }
        let mut name = Vec::new();
        loop {
            match self.next()? {
                b'\n' => return None,
                b'"' => break,
                b'\\' => match self.next()? {
                    b'\n' => return None,
                    byte => name.push(byte),
                },
                byte => name.push(byte),
            }
        }
        (self.next()? == b']').then_some(name)
    }

    /// Reads a setting whose name begins with `first`.
    fn setting(&mut self, first: u8) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut name = vec![first.to_ascii_lowercase()];
        let mut byte = self.next()?;
        while !self.ended() && is_key(byte) {
            name.push(byte.to_ascii_lowercase());
            byte = self.next()?;
        }
        while matches!(byte, b' ' | b'\t') {
            byte = self.next()?;
        }
        match byte {
            b'\n' => Some((name, None)),
            b'=' => Some((name, Some(self.value()?))),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let (mut quoted, mut comment) = (false, false);
        let mut value = Vec::new();
        let mut trimmed: Option<usize> = None;
        loop {
            // A `\` at the very end continues into nothing, which git reads as the end of the value.
            let byte = self.next().unwrap_or(b'\n');
            if byte == b'\n' {
                if quoted {
                    return None;
                }
                value.truncate(trimmed.unwrap_or(value.len()));
                return Some(value);
            }
            if comment {
                continue;
            }
            if is_space(byte) && !quoted {
                if !value.is_empty() {
                    trimmed.get_or_insert(value.len());
                    value.push(byte);
                }
                continue;
            }
            if !quoted && matches!(byte, b';' | b'#') {
                comment = true;
                continue;
            }
            trimmed = None;
            match byte {
                b'\\' => match self.next()? {
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(0x08),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return None,
                },
                b'"' => quoted = !quoted,
                byte => value.push(byte),
            }
        }
    }
}

/// Splits `section.sub` as git does when it looks for a key: at the first dot.
fn split_base(base: &[u8]) -> Option<Header> {
    let (section, subsection) = match base.iter().position(|byte| *byte == b'.') {
        None => (base, None),
        Some(dot) => (base.get(..dot)?, base.get(dot + 1..)),
    };
    (!section.is_empty()).then(|| (section.to_vec(), subsection.map(<[u8]>::to_vec)))
}

/// What git takes for white space.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

const fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row<'a> = &'a [(&'a str, Option<&'a str>)];

    fn list(text: &str) -> Option<Vec<(String, Option<String>)>> {
        let entries = parse(text.as_bytes()).ok()?;
        let show = |value: Vec<u8>| String::from_utf8(value).unwrap();
        Some(entries.into_iter().map(|entry| (entry.key(), entry.value.map(show))).collect())
    }

    #[test]
    fn the_table_of_texts() {
        #[rustfmt::skip]
        let rows: &[(&str, Option<Row>)] = &[
            ("", Some(&[])),
            ("[core]\n\tbare = false\n", Some(&[("core.bare", Some("false"))])),
            ("[CORE]\nHooksPath=x", Some(&[("core.hookspath", Some("x"))])),
            ("[core] hooksPath = x", Some(&[("core.hookspath", Some("x"))])),
            ("[core]bare", Some(&[("core.bare", None)])),
            ("[a \"B.c\"]\nx=1", Some(&[("a.B.c.x", Some("1"))])),
            ("[a \"q\\\"\\z\"]\nx=1", Some(&[("a.q\"z.x", Some("1"))])),
            ("[A.B]\nx=1", Some(&[("a.b.x", Some("1"))])),
            ("[a]\nx = one\\\ntwo", Some(&[("a.x", Some("onetwo"))])),
            ("[a]\nx = \" y \" z  # c", Some(&[("a.x", Some(" y  z"))])),
            ("[a]\nx = \"a#b;c\" ;d", Some(&[("a.x", Some("a#b;c"))])),
            ("[a]\nx = a\\tb\\nc\\\\d", Some(&[("a.x", Some("a\tb\nc\\d"))])),
            ("[a]\r\nx = 1\r\n", Some(&[("a.x", Some("1"))])),
            ("\u{feff}[a]\nx=1", Some(&[("a.x", Some("1"))])),
            ("# c\n;d\n[a] # e\nx=1", Some(&[("a.x", Some("1"))])),
            ("[a]\nx =", Some(&[("a.x", Some(""))])),
            ("[a]\nx = y\\", Some(&[("a.x", Some("y"))])),
            ("[a]\nx = \"y", None),
            ("[a]\nx = y\\q", None),
            ("[a\nx=1", None),
            ("[a \"b]\n", None),
            ("[a b]\n", None),
            ("[]\nx=1", None),
            ("x=1", None),
            ("[a]\n1x=1", None),
            ("[a]\nx y", None),
            ("[a]\nx\0=1", None),
            ("gibberish", None),
        ];
        for (text, expected) in rows {
            let expected = expected.map(|rows| {
                rows.iter().map(|(k, v)| ((*k).to_owned(), v.map(str::to_owned))).collect()
            });
            assert_eq!(list(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_error_names_the_line() {
        assert_eq!(parse(b"[a]\nx=1\n?"), Err(ConfigError { line: 3 }));
    }
}
