//! The complete policy of one call (contract P2) and its writable roots (contract P6).

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Mode;

/// Where the mode of a resolved policy came from (contract P4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSource {
    /// The deployment default.
    #[default]
    Default,
    /// The session's last `sandbox/mode` event.
    Session,
    /// A mode approved for this one call.
    Approved,
}

/// What happens when a write meets content that the session hasn't seen (contract O3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// Nothing.
    Off,
    /// It is recorded.
    #[default]
    Audit,
    /// It is refused.
    Enforce,
}

/// How rewritten content reaches its name (contract F5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Publish {
    /// Old or new content, never a part.
    #[default]
    Atomic,
    /// As the program writes it.
    Direct,
}

/// Whether the command sees the host's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// The host's network.
    #[default]
    Host,
    /// A network namespace with nothing but loopback.
    None,
}

/// What a write to a file with a name outside does (contract F11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hardlinks {
    /// The write goes to a fresh inode.
    #[default]
    Break,
    /// The write is refused.
    Deny,
    /// The write reaches the shared inode (a gap).
    Follow,
}

/// How much of the reading and writing is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObserveLevel {
    /// One event from open to last close.
    #[default]
    Open,
    /// Each read and write.
    Full,
}

/// Everything that confines one call. It travels with the call; nothing that confines keeps a mode elsewhere.
///
/// Paths are absolute and canonical; the caller canonicalises, since this crate does no I/O.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// What the call may do to files.
    pub mode: Mode,
    /// Where the mode came from.
    pub source: ModeSource,
    /// The session's working directory, or the deployment's root.
    pub root: PathBuf,
    /// The session, if the call belongs to one.
    pub session: Option<String>,
    /// What the operator and the platform add to the root (`/tmp`, `$TMPDIR`, `--writable`).
    pub extra_roots: Vec<PathBuf>,
    /// Globs of absolute paths that may be written like a root: names that needn't be there yet.
    #[serde(default)]
    pub extra_names: Vec<String>,
    /// Directories that are served, so that what is read and refused there is recorded; nothing may be written for that.
    #[serde(default)]
    pub observed_roots: Vec<PathBuf>,
    /// Paths and globs that can't be read.
    pub deny_read: Vec<String>,
    /// Paths and globs that can't be written.
    pub deny_write: Vec<String>,
    /// Paths and globs whose protection is lifted.
    pub allow_write: Vec<String>,
    /// Stockade's own files: never written, whatever lifts a protection.
    #[serde(default)]
    pub own_paths: Vec<PathBuf>,
    /// Those of them that can't be read either.
    #[serde(default)]
    pub hidden_paths: Vec<PathBuf>,
    /// See [`Guard`].
    pub guard: Guard,
    /// See [`Publish`].
    pub publish: Publish,
    /// Paths and globs whose content is written directly, whatever `publish` says.
    #[serde(default)]
    pub publish_direct: Vec<String>,
    /// Whether each publication waits for the disk.
    #[serde(default)]
    pub durable: bool,
    /// See [`Network`].
    pub network: Network,
    /// See [`Hardlinks`].
    pub hardlinks: Hardlinks,
    /// See [`ObserveLevel`].
    pub observe: ObserveLevel,
}

/// A policy that can't be carried out.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A path must be absolute.
    #[error("path `{}` is not absolute", .0.display())]
    NotAbsolute(PathBuf),
    /// A pattern that can't hold for any path.
    #[error("pattern `{pattern}` can't be used: {reason}")]
    Pattern {
        /// The pattern as it was given.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A glob can't be parsed.
    #[error("pattern `{pattern}` is not a glob")]
    Glob {
        /// The pattern as it was given.
        pattern: String,
        /// Why it can't be parsed.
        source: globset::Error,
    },
}

impl Policy {
    /// Makes a policy with every other setting at its default.
    #[must_use]
    pub fn new(mode: Mode, root: PathBuf) -> Self {
        Self {
            mode,
            source: ModeSource::Default,
            root,
            session: None,
            extra_roots: Vec::new(),
            extra_names: Vec::new(),
            observed_roots: Vec::new(),
            deny_read: Vec::new(),
            deny_write: Vec::new(),
            allow_write: Vec::new(),
            own_paths: Vec::new(),
            hidden_paths: Vec::new(),
            guard: Guard::default(),
            publish: Publish::default(),
            publish_direct: Vec::new(),
            durable: false,
            network: Network::default(),
            hardlinks: Hardlinks::default(),
            observe: ObserveLevel::default(),
        }
    }

    /// Returns the directories below which files may be changed, folded: the one source for the FUSE rules, the
    /// bubblewrap arguments and the Landlock rules (contract P6). `read-only` has none; `danger-full-access` has `/`.
    #[must_use]
    pub fn writable_roots(&self) -> Vec<PathBuf> {
        match self.mode {
            Mode::ReadOnly => Vec::new(),
            Mode::WorkspaceWrite => {
                fold_roots(std::iter::once(&self.root).chain(&self.extra_roots))
            }
            Mode::DangerFullAccess => vec![PathBuf::from("/")],
        }
    }

    /// Returns the globs whose matches may be written beside the roots. Only the file system can tell a name that isn't
    /// there yet: what works without it refuses them.
    #[must_use]
    pub fn writable_names(&self) -> &[String] {
        match self.mode {
            Mode::WorkspaceWrite => &self.extra_names,
            Mode::ReadOnly | Mode::DangerFullAccess => &[],
        }
    }

    /// Returns the roots and the names, as a person is told them.
    #[must_use]
    pub fn writable(&self) -> Vec<PathBuf> {
        let names = self.writable_names().iter().map(PathBuf::from);
        self.writable_roots().into_iter().chain(names).collect()
    }
}

/// Other spellings.
impl Policy {
    /// Adds the real path of each pattern whose leading part is reached through a symbolic link, so that a rule holds
    /// under every spelling (contract P10). `resolve` gives the canonical form of an existing path.
    ///
    /// A link that lies in a writable root may have been made by the command: it widens what is denied, but never lifts a
    /// protection elsewhere.
    pub fn add_aliases(&mut self, resolve: &dyn Fn(&Path) -> Option<PathBuf>) {
        let roots = self.writable_roots();
        let root = &self.root;
        let trusted = |path: &Path| {
            if roots.iter().any(|root| path.starts_with(root)) { None } else { resolve(path) }
        };
        let trusted: &dyn Fn(&Path) -> Option<PathBuf> = &trusted;
        let lists = [
            (&mut self.deny_read, resolve),
            (&mut self.deny_write, resolve),
            (&mut self.publish_direct, resolve),
            (&mut self.allow_write, trusted),
        ];
        for (list, resolve) in lists {
            let aliases: Vec<String> =
                list.iter().filter_map(|pattern| alias(root, pattern, resolve)).collect();
            for alias in aliases {
                if !list.contains(&alias) {
                    list.push(alias);
                }
            }
        }
    }
}

/// Returns the pattern with the longest existing part before its first glob character made canonical, if that differs.
fn alias(root: &Path, pattern: &str, resolve: &dyn Fn(&Path) -> Option<PathBuf>) -> Option<String> {
    let bare = !pattern.trim_end_matches('/').contains('/');
    if bare || pattern.starts_with("**/") || pattern.starts_with('!') {
        return None;
    }
    let literal = |part: &&str| !part.contains(['*', '?', '[', '{', '\\']);
    let parts: Vec<&str> =
        pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let count = parts.iter().take_while(|part| literal(part)).count();
    let start = if pattern.starts_with('/') { Path::new("/") } else { root };
    (1..=count).rev().find_map(|count| {
        let (head, tail) = parts.split_at(count);
        let spelled = start.join(head.join("/"));
        let real = resolve(&spelled)?;
        let mut text = escape(real.to_str()?);
        for part in tail {
            text.push('/');
            text.push_str(part);
        }
        Some((real != spelled).then_some(text))
    })?
}

/// Writes a path so that as a pattern it stands for itself alone.
pub(crate) fn escape(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for character in path.chars() {
        if "*?[]{}\\".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Deduplicates directories and drops those that lie below another one. The order of the first mention is kept.
pub fn fold_roots<'a>(roots: impl IntoIterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let all: Vec<PathBuf> = roots.into_iter().map(|root| normalise(root)).collect();
    let mut kept: Vec<PathBuf> = Vec::new();
    for root in &all {
        let covered = all.iter().any(|other| other != root && root.starts_with(other));
        if !covered && !kept.contains(root) {
            kept.push(root.clone());
        }
    }
    kept
}

/// Drops `.` and repeated separators; `..` is left alone, since only the file system knows what it means.
fn normalise(path: &Path) -> PathBuf {
    path.components().filter(|part| !matches!(part, Component::CurDir)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_repeated_roots_are_folded() {
        let roots =
            ["/tmp/w", "/tmp", "/home/a", "/home/ab", "/home/a/", "/home/a/b"].map(PathBuf::from);
        assert_eq!(fold_roots(&roots), ["/tmp", "/home/a", "/home/ab"].map(PathBuf::from));
    }

    #[test]
    fn a_pattern_through_a_link_gets_its_real_path_too() {
        let resolve = |path: &Path| {
            let text = path.to_str()?;
            let real = match text {
                "/home" | "/home/u" | "/w" | "/w/a" | "/etc" => text,
                "/link" => "/data/[1]",
                "/link/sub" => "/data/[1]/sub",
                "/w/out" => "/elsewhere",
                _ => return None,
            };
            Some(PathBuf::from(real))
        };
        for (pattern, alias) in [
            ("/link/sub/key", Some("/data/\\[1\\]/sub/key")),
            ("/link/*.key", Some("/data/\\[1\\]/*.key")),
            ("out/x", Some("/elsewhere/x")),
            ("./out", Some("/elsewhere")),
            ("a/x", None),
            ("/home/u/.ssh", None),
            (".env", None),
            ("**/.env", None),
            ("/nowhere/x", None),
        ] {
            let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
            policy.deny_read = vec![pattern.to_owned()];
            policy.add_aliases(&resolve);
            let expected: Vec<&str> = std::iter::once(pattern).chain(alias).collect();
            assert_eq!(policy.deny_read, expected, "{pattern}");
        }
    }

    #[test]
    fn a_link_that_a_command_can_make_lifts_no_protection() {
        let resolve = |path: &Path| match path.to_str()? {
            "/w/vendor" => Some("/w/.git".into()),
            "/home/u/.cargo" => Some("/data/cargo".into()),
            known => Some(known.into()),
        };
        for (pattern, lifted) in [
            ("vendor/hooks", vec!["vendor/hooks"]),
            ("/w/vendor/hooks", vec!["/w/vendor/hooks"]),
            ("/home/u/.cargo/x", vec!["/home/u/.cargo/x", "/data/cargo/x"]),
        ] {
            let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
            policy.allow_write = vec![pattern.to_owned()];
            let resolve = |path: &Path| {
                // The longest part that exists.
                (!path.ends_with("hooks") && !path.ends_with("x")).then(|| resolve(path)).flatten()
            };
            policy.add_aliases(&resolve);
            assert_eq!(policy.allow_write, lifted, "{pattern}");
        }
    }

    #[test]
    fn only_workspace_write_has_the_root_and_the_extras() {
        let mut policy = Policy::new(Mode::ReadOnly, "/w".into());
        policy.extra_roots = vec!["/tmp".into()];
        assert!(policy.writable_roots().is_empty());
        policy.mode = Mode::WorkspaceWrite;
        assert_eq!(policy.writable_roots(), ["/w", "/tmp"].map(PathBuf::from));
        policy.mode = Mode::DangerFullAccess;
        assert_eq!(policy.writable_roots(), [PathBuf::from("/")]);
    }
}
