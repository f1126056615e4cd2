//! The reader of git's configuration against git itself: what ours reads, git reads in the same way.
//!
//! Needs `git`; without it the test is skipped by name, and fails where `CI` is set.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::process::Command;

use proptest::prelude::*;
use stockade_policy::protection::parse_git_config;

type List = Vec<(Vec<u8>, Option<Vec<u8>>)>;

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn git_is_missing() -> bool {
    let missing = Command::new("git").arg("--version").output().is_err();
    if missing {
        println!("SKIPPED git_agrees: git is not installed");
        assert!(std::env::var_os("CI").is_none(), "git is not installed");
    }
    missing
}

/// What `git config --list` makes of a text, or `None` if it refuses it.
fn by_git(text: &[u8]) -> Option<List> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let output = Command::new("git")
        .args(["config", "--no-includes", "--list", "-z", "-f"])
        .arg(file.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .unwrap();
    output.status.success().then(|| {
        let text = output.stdout.strip_suffix(b"\0").unwrap_or(&output.stdout);
        let lines = text.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        lines
            .map(|line| match line.iter().position(|byte| *byte == b'\n') {
                None => (line.to_vec(), None),
                Some(end) => (line[..end].to_vec(), Some(line[end + 1..].to_vec())),
            })
            .collect()
    })
}

fn by_us(text: &[u8]) -> Option<List> {
    let entries = parse_git_config(text).ok()?;
    let list = entries.into_iter().map(|entry| {
        let mut key = entry.section;
        if let Some(subsection) = entry.subsection {
            key.push(b'.');
            key.extend(subsection);
        }
        key.push(b'.');
        key.extend(entry.name);
        (key, entry.value)
    });
    Some(list.collect())
}

/// A key that ours refuses on purpose: one outside any section, or in a section without a name.
fn is_odd(list: &List) -> bool {
    list.iter().any(|(key, _)| !key.contains(&b'.') || key.starts_with(b"."))
}

fn fragment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "[core]",
        "[a \"b\"]",
        "[A.b]",
        "[a.b \"c\"]",
        "[a \"q\\\"r\\\\\"]",
        "[a\t\"b\"]",
        "\n",
        "\n",
        "\n\t",
        " = ",
        "=",
        "hooksPath",
        "x",
        "Y-1",
        "\"",
        "\"a b\"",
        "\\",
        "\\n",
        "\\t",
        "\\\"",
        "\\\\",
        "\\\n",
        "\\\r\n",
        "#",
        ";",
        "\r\n",
        "\r",
        "\t",
        " ",
        "  ",
        "]",
        "[",
        ".",
        "é",
        "-",
        "1",
        "!sh -c 'x'",
        "\u{feff}",
        "\u{b}",
        "\u{c}",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn what_ours_reads_git_reads_in_the_same_way(parts in prop::collection::vec(fragment(), 0..14)) {
        if git_is_missing() {
            return Ok(());
        }
        for text in [parts.concat(), format!("[s]\nk = {}", parts.concat())] {
            match (by_us(text.as_bytes()), by_git(text.as_bytes())) {
                (Some(ours), git) => prop_assert_eq!(Some(ours), git, "{:?}", text),
                (None, Some(git)) => prop_assert!(is_odd(&git) || text.contains("[]"), "{:?} {:?}", text, git),
                (None, None) => {}
            }
        }
    }
}
