//! What was learnt, as a profile that a configuration takes, and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_policy::config::unexpanded;
use stockade_policy::text::{Bytes, sanitise, shorten};
use stockade_policy::{Denial, Mode, Remedy, Rule};

use super::needs::{Needs, Seen, Why};
use crate::cli::log::{path, program};

/// How many sensitive reads are named.
const NAMED: usize = 50;

/// Everything that is printed.
pub(super) struct Learnt<'a> {
    pub(super) name: &'a str,
    pub(super) command: String,
    pub(super) mode: Mode,
    pub(super) needs: &'a Needs,
    pub(super) last: &'a Seen,
    pub(super) rounds: Vec<Value>,
    /// The last run was refused nothing, ended with 0, and ran under this very profile or a wider one.
    pub(super) passed: bool,
    /// It was this very profile.
    pub(super) checked: bool,
}

/// Writes a string as TOML takes it: as JSON does, with whatever isn't seen, or would turn the line around, written out.
fn quoted(text: &str) -> String {
    let mut toml = String::new();
    for character in serde_json::to_string(text).unwrap_or_default().chars() {
        let shown = character.to_string();
        // A backslash is JSON's by now.
        if character == '\\' || sanitise(&shown) == shown {
            toml.push(character);
        } else {
            // Writing to a String can't fail.
            let _infallible = write!(toml, "\\U{:08x}", u32::from(character));
        }
    }
    toml
}

/// Returns the pattern that stands for a path alone, as a configuration has it.
fn pattern(name: &Path) -> Option<String> {
    let denial = Denial::new(Rule::ProtectedPath, "protection");
    match Remedy::of(&denial, name, Mode::WorkspaceWrite) {
        Remedy::AllowWrite(pattern, _) => Some(unexpanded(&pattern)),
        Remedy::Mode(_) | Remedy::Writable(_) | Remedy::LeaveOut { .. } | Remedy::Other(_) => None,
    }
}

fn because(why: &Why) -> String {
    format!("{} {} by {}", why.op, path(&why.path), program(&why.exe))
}

fn list<'r>(toml: &mut String, key: &str, rows: impl Iterator<Item = (String, &'r Why)>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    // Writing to a String can't fail.
    let _infallible = writeln!(toml, "{key} = [");
    for (value, why) in rows {
        let _infallible = writeln!(toml, "    {},  # {}", quoted(&value), because(why));
    }
    toml.push_str("]\n");
}

fn comment<'r>(
    toml: &mut String,
    heading: &str,
    rows: impl ExactSizeIterator<Item = (String, String)> + 'r,
) {
    if rows.len() == 0 {
        return;
    }
    let more = rows.len().saturating_sub(NAMED);
    let _infallible = writeln!(toml, "\n# {heading}");
    for (value, note) in rows.take(NAMED) {
        let _infallible = writeln!(toml, "#     {value},  # {note}");
    }
    if more > 0 {
        let _infallible = writeln!(toml, "#     and {more} more: --json names all");
    }
}

impl Learnt<'_> {
    /// Returns the profile, with what isn't granted as comments.
    pub(super) fn toml(&self) -> String {
        let needs = self.needs;
        let mut toml = String::new();
        let said = match (self.passed, self.checked) {
            (true, true) => "the last run passed under this profile",
            (true, false) => "the last run passed; the grants that it didn't use are left out",
            (false, _) => "the command did not pass yet",
        };
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = if self.name.chars().all(bare) && !self.name.is_empty() {
            self.name.to_owned()
        } else {
            quoted(self.name)
        };
        let runs = self.rounds.len();
        let plural = if runs == 1 { "run" } else { "runs" };
        let _infallible = writeln!(toml, "# Learnt from {runs} {plural}: {said}.");
        let _infallible = writeln!(toml, "[profile.{name}]");
        let what = shorten(&self.command, 200);
        let _infallible = writeln!(toml, "description = {}", quoted(&format!("learnt: {what}")));
        let _infallible = writeln!(toml, "mode = \"{}\"", self.mode);
        let roots = needs
            .roots
            .iter()
            .filter_map(|(root, why)| root.to_str().map(|text| (unexpanded(text), why)));
        list(&mut toml, "writable_roots", roots);
        let lifts = needs.lifts.values().map(|(pattern, why)| (unexpanded(pattern), why));
        list(&mut toml, "allow_write", lifts);
        let shown = |list: &BTreeMap<PathBuf, Why>| -> Vec<(String, String)> {
            let text = |root: &Path| quoted(&unexpanded(&root.to_string_lossy()));
            list.iter().map(|(root, why)| (text(root), because(why))).collect()
        };
        comment(
            &mut toml,
            "Not granted, since it reaches far: learn with --wide, or add it to writable_roots.",
            shown(&needs.wide).into_iter(),
        );
        comment(
            &mut toml,
            "Not granted: make the directory first (mkdir), and add it to writable_roots.",
            shown(&needs.missing).into_iter(),
        );
        comment(
            &mut toml,
            "Refused, and no profile allows it.",
            needs.refused.iter().map(|(refused, (sentence, why))| {
                (path(refused), format!("{}: {}", because(why), sanitise(sentence)))
            }),
        );
        comment(
            &mut toml,
            "Read, though the profile `secrets` would deny it. Name here what the command should not read: deny_read = [",
            self.last.sensitive.iter().map(|(read, (rule, exe))| {
                let value = pattern(read).map_or_else(|| path(read), |text| quoted(&text));
                (value, format!("by {}, {}", program(exe), sanitise(rule)))
            }),
        );
        toml
    }

    /// Returns one object.
    pub(super) fn json(&self) -> Value {
        let needs = self.needs;
        let name = |path: &Path| json!(Bytes::from(path));
        let grant = |value: Value, why: &Why| {
            json!({
                "value": value,
                "op": why.op.as_str(),
                "path": name(&why.path),
                "exe": name(&why.exe),
            })
        };
        let plain = |list: &BTreeMap<PathBuf, Why>| -> Vec<Value> {
            list.iter().map(|(path, why)| grant(name(path), why)).collect()
        };
        let lifts = needs.lifts.values().map(|(pattern, why)| grant(json!(pattern), why));
        let refused = needs.refused.iter().map(|(path, (help, why))| {
            let mut row = grant(name(path), why);
            if let Some(map) = row.as_object_mut() {
                map.insert("help".to_owned(), json!(help));
            }
            row
        });
        let sensitive =
            self.last.sensitive.iter().map(
                |(path, (rule, exe))| json!({"path": name(path), "rule": rule, "exe": name(exe)}),
            );
        json!({
            "v": 1,
            "name": self.name,
            "passed": self.passed,
            "checked": self.checked,
            "mode": self.mode,
            "writable_roots": plain(&needs.roots),
            "allow_write": lifts.collect::<Vec<_>>(),
            "wide": plain(&needs.wide),
            "missing": plain(&needs.missing),
            "refused": refused.collect::<Vec<_>>(),
            "sensitive": sensitive.collect::<Vec<_>>(),
            "rounds": self.rounds,
            "toml": self.toml(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_policy::Config;

    #[test]
    fn what_is_written_is_read_back_and_seen() {
        for text in ["a", "\"q\" \\ \n\t", "\u{7f}\u{9b}", "\u{202e}x", "é漢", "# x]", "\u{0}"] {
            let toml = format!("deny_read = [{}]\n", quoted(&format!("/{text}")));
            assert!(!toml.trim_end().chars().any(|c| c.is_control() || c == '\u{202e}'), "{toml}");
            let config =
                Config::parse(&toml, "x").unwrap_or_else(|error| panic!("{error}: {toml}"));
            assert_eq!(config.settings.deny_read[0].value, format!("/{text}"));
        }
    }
}
