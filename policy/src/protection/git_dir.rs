//! The inside of a repository's directory, by name.

use super::{Class, ConfigKind, ends_with_ignore_case};

const HOOKS: &str = ".git/hooks";
const MODULES: &str = ".git/modules";
/// The same, below the first name.
const IN_MODULES: &str = ".git/modules/*";
const WORKTREES: &str = ".git/worktrees";

/// Names that a submodule's own repository begins with: below them nothing is a hook or a configuration.
const ORDINARY: [&[u8]; 11] = [
    b"branches",
    b"info",
    b"lfs",
    b"logs",
    b"objects",
    b"rebase-apply",
    b"rebase-merge",
    b"refs",
    b"reftable",
    b"rr-cache",
    b"sequencer",
];

/// Classifies what follows `.git` (`dot`) or `NAME.git`.
pub(super) fn classify<'a>(mut rest: impl Iterator<Item = &'a [u8]> + Clone, dot: bool) -> Class {
    let Some(first) = rest.next() else { return Class::GitDir { dot } };
    inside(first, rest)
}

/// Classifies `first/rest` in a repository's directory.
fn inside<'a>(first: &[u8], mut rest: impl Iterator<Item = &'a [u8]> + Clone) -> Class {
    if let Some(class) = own(first, rest.clone()) {
        return class;
    }
    if first.eq_ignore_ascii_case(b"worktrees") {
        if rest.next().is_none() {
            return Class::Container(WORKTREES);
        }
        return match rest.next() {
            None => Class::Container(WORKTREES),
            Some(name) if name.eq_ignore_ascii_case(b"modules") => modules(rest),
            Some(name) => own(name, rest).unwrap_or(Class::Free),
        };
    }
    if first.eq_ignore_ascii_case(b"modules") {
        return modules(rest);
    }
    Class::Free
}

/// What a repository's directory itself holds that is protected.
fn own<'a>(name: &[u8], mut rest: impl Iterator<Item = &'a [u8]>) -> Option<Class> {
    if name.eq_ignore_ascii_case(b"hooks") {
        return Some(match (rest.next(), rest.next()) {
            (None, _) => Class::Container(HOOKS),
            // What `git init` copies from its templates; git never runs it.
            (Some(hook), None) if ends_with_ignore_case(hook, b".sample") => Class::Free,
            (Some(_), _) => Class::Refused(HOOKS),
        });
    }
    let kind = if name.eq_ignore_ascii_case(b"config") {
        ConfigKind::Repository
    } else if name.eq_ignore_ascii_case(b"config.worktree") {
        ConfigKind::Worktree
    } else if name.eq_ignore_ascii_case(b"commondir") {
        ConfigKind::CommonDir
    } else {
        return None;
    };
    // Nothing belongs below a file's name; as a directory it would only stand in git's way.
    rest.next().is_none().then_some(Class::Judged(kind))
}

/// Tells whether a symbolic link in the container `label` leads to a sibling that is protected as the link's own name
/// would be. A directory of another repository's making, such as `objects`, isn't: a link to it would stand for a
/// repository whose hooks are free.
pub(crate) fn tries_links(label: &str, target: &[u8]) -> bool {
    let plain = target.first().is_some_and(u8::is_ascii_alphanumeric)
        && target.iter().all(u8::is_ascii_alphanumeric);
    label == IN_MODULES
        && plain
        && !ORDINARY.iter().any(|ordinary| target.eq_ignore_ascii_case(ordinary))
        && own(target, std::iter::empty()).is_none()
}

/// Classifies what follows `modules`. A submodule's name may have several components, so where its repository begins
/// can't be told: `hooks` and `config` count after the first component, up to a name that a repository begins with.
fn modules<'a>(mut rest: impl Iterator<Item = &'a [u8]> + Clone) -> Class {
    if rest.next().is_none() {
        return Class::Container(MODULES);
    }
    while let Some(name) = rest.next() {
        if let Some(class) = own(name, rest.clone()) {
            return class;
        }
        if ORDINARY.iter().any(|ordinary| name.eq_ignore_ascii_case(ordinary)) {
            return Class::Free;
        }
    }
    Class::Container(IN_MODULES)
}
