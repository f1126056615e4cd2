//! Contents compared line by line.

use std::time::{Duration, Instant};

use similar::{Algorithm, DiffTag, capture_diff_slices_deadline, group_diff_ops};

/// A comparison of two contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diff {
    /// They are the same.
    Same,
    /// One of them isn't text.
    Binary,
    /// Hunks, and how many lines came and went.
    Text {
        /// Each with the lines of a unified diff: the `@@` line, then the others with their sign; none ends in a newline.
        hunks: Vec<Vec<Vec<u8>>>,
        /// Lines that came.
        added: usize,
        /// Lines that went.
        removed: usize,
    },
}

/// Lines around a change.
const CONTEXT: usize = 3;
/// Binary is told from so many bytes (contract F8).
const LOOKED_AT: usize = 8192;
/// A comparison that takes longer ends with a coarser answer.
const PATIENCE: Duration = Duration::from_secs(5);

fn is_binary(content: &[u8]) -> bool {
    content.iter().take(LOOKED_AT).any(|byte| *byte == 0)
}

fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Compares two contents.
#[must_use]
pub fn diff(old: &[u8], new: &[u8]) -> Diff {
    if old == new {
        return Diff::Same;
    }
    if is_binary(old) || is_binary(new) {
        return Diff::Binary;
    }
    let (old, new) = (lines(old), lines(new));
    let deadline = Some(Instant::now() + PATIENCE);
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    let (mut added, mut removed) = (0, 0);
    let mut hunks = Vec::new();
    for group in group_diff_ops(ops, CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |start: usize, end: usize| match end - start {
            1 => format!("{}", start + 1),
            0 => format!("{start},0"),
            length => format!("{},{length}", start + 1),
        };
        let head = format!(
            "@@ -{} +{} @@",
            range(first.old_range().start, last.old_range().end),
            range(first.new_range().start, last.new_range().end)
        );
        let mut hunk = vec![head.into_bytes()];
        for op in &group {
            let (tag, from, to) = (op.tag(), op.old_range(), op.new_range());
            if tag == DiffTag::Equal {
                old[from].iter().for_each(|line| push(&mut hunk, b' ', line));
                continue;
            }
            removed += from.len();
            added += to.len();
            old[from].iter().for_each(|line| push(&mut hunk, b'-', line));
            new[to].iter().for_each(|line| push(&mut hunk, b'+', line));
        }
        hunks.push(hunk);
    }
    Diff::Text { hunks, added, removed }
}

fn push(hunk: &mut Vec<Vec<u8>>, sign: u8, line: &[u8]) {
    let (text, ends) = match line.strip_suffix(b"\n") {
        Some(text) => (text, true),
        None => (line, false),
    };
    hunk.push([&[sign], text].concat());
    if !ends {
        hunk.push(b"\\ No newline at end of file".to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(old: &str, new: &str) -> String {
        match diff(old.as_bytes(), new.as_bytes()) {
            Diff::Text { hunks, .. } => {
                let lines: Vec<_> = hunks.concat();
                lines.iter().map(|line| String::from_utf8_lossy(line).into_owned() + "\n").collect()
            }
            other @ (Diff::Same | Diff::Binary) => format!("{other:?}"),
        }
    }

    #[test]
    fn hunks_are_as_diff_writes_them() {
        for (old, new, expected) in [
            ("a\nb\n", "a\nc\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
            ("", "a\n", "@@ -0,0 +1 @@\n+a\n"),
            ("a\n", "", "@@ -1 +0,0 @@\n-a\n"),
            ("a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
            (
                "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
                "1\n2\n3\n4\n5\n6\n7\n8\nx\n",
                "@@ -6,4 +6,4 @@\n 6\n 7\n 8\n-9\n+x\n",
            ),
            ("a", "a", "Same"),
            ("a\0", "b", "Binary"),
        ] {
            assert_eq!(shown(old, new), expected, "{old:?} {new:?}");
        }
    }
}
