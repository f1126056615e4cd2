//! Text that others wrote, made safe to show to a person.
//!
//! A justification, a command or a file name may hold control characters that move the cursor, or marks that turn the
//! direction of reading, so that a prompt says something else than what is approved. Everything here returns one line
//! in which each character is visible, or a space.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are usually text, such as an argument or a path. Serialised as a string where they are UTF-8, else as a
/// list of numbers, so that nothing is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(Vec<u8>);

impl Bytes {
    /// Takes bytes as they are.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes as a path.
    #[must_use]
    pub fn as_path(&self) -> &std::path::Path {
        std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&self.0))
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<&std::path::Path> for Bytes {
    fn from(path: &std::path::Path) -> Self {
        Self(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Form::deserialize(deserializer)? {
            Form::Text(text) => text.into_bytes(),
            Form::Bytes(bytes) => bytes,
        }))
    }
}

/// Returns `text` on one line in which nothing is invisible or acts on a terminal: such characters appear as `\n`,
/// `\x1b` or `\u{202e}`.
#[must_use]
pub fn sanitise(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        push(&mut shown, character);
    }
    shown
}

/// Returns the same for bytes; those that aren't UTF-8 appear as `\xff`.
#[must_use]
pub fn sanitise_bytes(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push(&mut shown, character);
        }
        for byte in chunk.invalid() {
            // Writing to a String can't fail.
            _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// Returns a command as a shell would take it, safe to show. Arguments that hold more than plain characters are
/// quoted.
#[must_use]
pub fn show_command<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut shown = String::new();
    for argument in arguments {
        if !shown.is_empty() {
            shown.push(' ');
        }
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%^".contains(byte);
        if !argument.is_empty() && argument.iter().all(plain) {
            shown.push_str(&sanitise_bytes(argument));
        } else {
            shown.push('\'');
            shown.push_str(&sanitise_bytes(argument).replace('\'', "'\\''"));
            shown.push('\'');
        }
    }
    shown
}

/// Returns at most `limit` characters of a text that is already safe, and says how many are left out.
#[must_use]
pub fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => {
            let left = text.chars().count() - limit;
            format!("{}… ({left} more characters)", text.get(..end).unwrap_or_default())
        }
    }
}

fn push(shown: &mut String, character: char) {
    match character {
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        control if control.is_control() && control.is_ascii() => {
            _ = write!(shown, "\\x{:02x}", u32::from(control));
        }
        hidden if is_hidden(hidden) => {
            _ = write!(shown, "\\u{{{:x}}}", u32::from(hidden));
        }
        visible => shown.push(visible),
    }
}

/// Characters that can't be seen, change the direction of reading, or break the line.
const fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{e000}'..='\u{f8ff}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}'
        | '\u{f0000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shown_acts_on_a_terminal() {
        for (text, expected) in [
            ("plain é 漢", "plain é 漢"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\x1b[2J\x07", "\\x1b[2J\\x07"),
            ("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("x\u{200b}y\u{2028}z\u{feff}", "x\\u{200b}y\\u{2028}z\\u{feff}"),
            ("\u{7f}", "\\x7f"),
            ("\u{e0041}", "\\u{e0041}"),
        ] {
            assert_eq!(sanitise(text), expected);
            assert_eq!(sanitise_bytes(text.as_bytes()), expected);
        }
        assert_eq!(sanitise_bytes(b"a\xffb\x1b"), "a\\xffb\\x1b");
    }

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let arguments: [&[u8]; 5] = [b"sh", b"-c", b"echo 'hi'", b"", b"\x1b]0;x\x07"];
        assert_eq!(show_command(arguments), "sh -c 'echo '\\''hi'\\''' '' '\\x1b]0;x\\x07'");
    }

    #[test]
    fn a_long_text_says_what_is_left_out() {
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("äbcde", 2), "äb… (3 more characters)");
    }

    #[test]
    fn bytes_survive_json() {
        for bytes in [&b"plain"[..], b"\xff\x00a", b""] {
            let json = serde_json::to_string(&Bytes::new(bytes)).unwrap();
            assert_eq!(serde_json::from_str::<Bytes>(&json).unwrap(), Bytes::new(bytes), "{json}");
        }
    }
}
