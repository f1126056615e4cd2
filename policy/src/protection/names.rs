//! Names outside git that make an editor, an agent or a shell run code.

use crate::pattern::components;

use super::ends_with_ignore_case;

/// Names that are protected wherever they stand, with everything below them. Lower case, sorted.
const NAMES: &[&str] = &[
    ".aider.conf.yml",
    ".amp",
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".claude",
    ".claude.json",
    ".codex",
    ".continue",
    ".cshrc",
    ".cursor",
    ".devcontainer",
    ".devcontainer.json",
    ".dir-locals.el",
    ".emacs",
    ".emacs.d",
    ".exrc",
    ".fleet",
    ".gemini",
    ".gitconfig",
    ".gvimrc",
    ".idea",
    ".inputrc",
    ".kiro",
    ".kshrc",
    ".login",
    ".logout",
    ".mcp.json",
    ".mkshrc",
    ".nvim.lua",
    ".nvimrc",
    ".opencode",
    ".pam_environment",
    ".profile",
    ".qwen",
    ".ripgreprc",
    ".roo",
    ".spacemacs",
    ".tcshrc",
    ".tmux.conf",
    ".vimrc",
    ".vscode",
    ".windsurf",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".zed",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    "opencode.json",
    "opencode.jsonc",
];

/// Names that are protected below another one: what a home directory starts. The label is the path.
const NESTED: &[&str] = &[
    ".config/autostart",
    ".config/environment.d",
    ".config/fish",
    ".config/git",
    ".config/nvim",
    ".config/opencode",
    ".config/stockade",
    ".config/systemd",
    ".config/zed",
    ".local/state/stockade",
    ".ssh/authorized_keys",
    ".ssh/authorized_keys2",
    ".ssh/config",
    ".ssh/environment",
    ".ssh/rc",
];

/// What the nested names begin with.
const NESTED_PARENTS: &[&[u8]] = &[b".config", b".local", b".ssh"];

/// No protected name is longer.
const LONGEST: usize = 24;

/// Returns what protects the name `part`, which is followed by `rest`.
pub(super) fn protected(part: &[u8], rest: &[u8]) -> Option<&'static str> {
    if ends_with_ignore_case(part, b".code-workspace") {
        return Some("*.code-workspace");
    }
    if part.len() > LONGEST || !matches!(part.first(), Some(b'.' | b'o' | b'O')) {
        return None;
    }
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..part.len())?;
    lower.copy_from_slice(part);
    lower.make_ascii_lowercase();
    let lower: &[u8] = lower;
    if let Ok(index) = NAMES.binary_search_by(|name| name.as_bytes().cmp(lower)) {
        return NAMES.get(index).copied();
    }
    if !NESTED_PARENTS.contains(&lower) {
        return None;
    }
    NESTED.iter().copied().find(|label| {
        let names = components(label.as_bytes()).skip(1);
        let mut rest = components(rest);
        components(label.as_bytes()).next() == Some(lower)
            && names
                .into_iter()
                .all(|name| rest.next().is_some_and(|part| part.eq_ignore_ascii_case(name)))
    })
}

/// Returns what lies below the directory `below` by a name of several components, all but the last of which
/// `below` ends with.
pub(crate) fn leads_to(below: &[u8]) -> Option<&'static str> {
    NESTED.iter().copied().find(|label| {
        let names: Vec<&[u8]> = components(label.as_bytes()).collect();
        let parts: Vec<&[u8]> = components(below).collect();
        (1..names.len()).any(|count| {
            let tail = parts.len().checked_sub(count).and_then(|start| parts.get(start..));
            tail.zip(names.get(..count)).is_some_and(|(tail, head)| {
                tail.iter().zip(head).all(|(a, b)| a.eq_ignore_ascii_case(b))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_lower_case_and_within_the_bound() {
        assert!(NAMES.is_sorted());
        for name in NAMES {
            assert_eq!(*name, name.to_ascii_lowercase());
            assert!(name.len() <= LONGEST, "{name}");
            assert!(name.starts_with(['.', 'o']), "{name}");
        }
        for label in NESTED {
            assert!(
                NESTED_PARENTS.contains(&components(label.as_bytes()).next().unwrap()),
                "{label}"
            );
        }
    }

    #[test]
    fn a_directory_that_leads_to_a_nested_name_is_known() {
        for (below, expected) in [
            ("a/.config", true),
            (".SSH", true),
            (".local", true),
            (".local/state", true),
            ("state", false),
            (".config/x", false),
            ("", false),
        ] {
            assert_eq!(leads_to(below.as_bytes()).is_some(), expected, "{below}");
        }
    }
}
