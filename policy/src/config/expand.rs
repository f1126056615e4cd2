//! `~`, `$NAME`, `${NAME}` and `${NAME:-DEFAULT}` in a path; `$$` is a `$`.

/// A variable that a path needs isn't set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("variable `{0}` is not set")]
pub struct Unset(pub String);

/// Replaces a leading `~` and every variable in `text`. `variable` gives a variable's value; an empty one counts as
/// unset, and the directories of the XDG specification have its defaults. A default may hold `~` and variables itself.
/// A `$` that names nothing stays, and `$$` is one `$`, whatever comes after it.
///
/// # Errors
/// A variable that isn't set and has no default.
pub fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, Unset> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    if let Some(after) = text.strip_prefix('~')
        && (after.is_empty() || after.starts_with('/'))
    {
        result.push_str(value("HOME", variable)?.trim_end_matches('/'));
        rest = after;
    }
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        }
        if let Some(braced) = after.strip_prefix('{')
            && let Some(end) = closing(braced)
        {
            let (inner, tail) = (&braced[..end], &braced[end + 1..]);
            let (name, default) =
                inner.split_once(":-").map_or((inner, None), |(name, text)| (name, Some(text)));
            match (value(name, variable), default) {
                (Ok(value), _) => result.push_str(&value),
                (Err(_), Some(default)) => result.push_str(&expand(default, variable)?),
                (Err(unset), None) => return Err(unset),
            }
            rest = tail;
            continue;
        }
        let end = after
            .find(|character: char| !(character.is_ascii_alphanumeric() || character == '_'))
            .unwrap_or(after.len());
        let (name, tail) = after.split_at(end);
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
            result.push('$');
            rest = after;
        } else {
            result.push_str(&value(name, variable)?);
            rest = tail;
        }
    }
    result.push_str(rest);
    Ok(result)
}

/// Writes a path so that [`expand`] makes it what it is now. It must not begin with `~`.
#[must_use]
pub fn unexpanded(text: &str) -> String {
    text.replace('$', "$$")
}

/// Returns where the brace that is open at the start of `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (index, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(index),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn value(name: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, Unset> {
    if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
        return Ok(value);
    }
    let below_home = match name {
        "XDG_CACHE_HOME" => ".cache",
        "XDG_CONFIG_HOME" => ".config",
        "XDG_DATA_HOME" => ".local/share",
        "XDG_STATE_HOME" => ".local/state",
        _ => return Err(Unset(name.to_owned())),
    };
    let home = value("HOME", variable)?;
    Ok(format!("{}/{below_home}", home.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_expansions() {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/u/".to_owned()),
            "XDG_STATE_HOME" => Some("/s".to_owned()),
            "EMPTY" => Some(String::new()),
            "A" => Some("x/y".to_owned()),
            _ => None,
        };
        for (text, expected) in [
            ("~", Ok("/home/u")),
            ("~/.ssh", Ok("/home/u/.ssh")),
            ("~user/x", Ok("~user/x")),
            ("/a/~", Ok("/a/~")),
            ("$A/b", Ok("x/y/b")),
            ("${A}b", Ok("x/yb")),
            ("$Ab", Err("Ab")),
            ("$XDG_CACHE_HOME/pip", Ok("/home/u/.cache/pip")),
            ("$XDG_STATE_HOME/x", Ok("/s/x")),
            ("$XDG_RUNTIME_DIR/x", Err("XDG_RUNTIME_DIR")),
            ("${NONE:-~/.cargo}/registry", Ok("/home/u/.cargo/registry")),
            ("${NONE:-${A}/z}/q", Ok("x/y/z/q")),
            ("${EMPTY:-d}", Ok("d")),
            ("$EMPTY", Err("EMPTY")),
            ("${NONE}", Err("NONE")),
            ("a$", Ok("a$")),
            ("a$1", Ok("a$1")),
            ("/a$$A/$$", Ok("/a$A/$")),
            ("$$$A", Ok("$x/y")),
            ("$${A}", Ok("${A}")),
            ("${NONE:-$$A}", Ok("$A")),
            ("${A", Ok("${A")),
            ("*.{a,b}", Ok("*.{a,b}")),
        ] {
            let expected = expected.map(str::to_owned).map_err(|name| Unset(name.to_owned()));
            assert_eq!(expand(text, &variable), expected, "{text}");
        }
        for text in ["/a/$A", "/${A}", "/$$", "/a$", "/$$A$", "/plain"] {
            assert_eq!(expand(&unexpanded(text), &variable).as_deref(), Ok(text));
        }
        assert_eq!(expand("~/x", &|_| None), Err(Unset("HOME".to_owned())));
    }
}
