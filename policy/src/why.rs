//! Why something would be refused, and what would allow it: `stockade why`, and the note after a refusal.
//!
//! Invariant: a [`Remedy`] that names an option is one. Where several rules stand in the way, each step takes away the
//! one that decides, and after the last the access is allowed.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::policy::escape;
use crate::text::{sanitise, show_command};
use crate::zone::OWN_FILES;
use crate::{Denial, EntryKind, Mode, Policy, Rule, Rules};

/// What somebody wants to do with a path. The names are those of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each is named for the system call")]
pub enum Access {
    Read,
    Readdir,
    Exec,
    Write,
    Truncate,
    Chmod,
    Chown,
    Utimes,
    Setxattr,
    Removexattr,
    Fallocate,
    Copy,
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Unlink,
    Rmdir,
    Rename,
}

impl Access {
    /// Every access.
    pub const ALL: [Self; 20] = [
        Self::Read,
        Self::Readdir,
        Self::Exec,
        Self::Write,
        Self::Truncate,
        Self::Chmod,
        Self::Chown,
        Self::Utimes,
        Self::Setxattr,
        Self::Removexattr,
        Self::Fallocate,
        Self::Copy,
        Self::Create,
        Self::Mkdir,
        Self::Symlink,
        Self::Mknod,
        Self::Link,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
    ];

    /// Returns the stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Readdir => "readdir",
            Self::Exec => "exec",
            Self::Write => "write",
            Self::Truncate => "truncate",
            Self::Chmod => "chmod",
            Self::Chown => "chown",
            Self::Utimes => "utimes",
            Self::Setxattr => "setxattr",
            Self::Removexattr => "removexattr",
            Self::Fallocate => "fallocate",
            Self::Copy => "copy",
            Self::Create => "create",
            Self::Mkdir => "mkdir",
            Self::Symlink => "symlink",
            Self::Mknod => "mknod",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Rename => "rename",
        }
    }

    /// Returns the access of this stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.as_str() == name)
    }

    /// Returns why the rules refuse this access to `path`. `link` speaks of the new name, `rename` of moving a file
    /// away; both ends of a move are told by [`Rules::rename_refused`].
    #[must_use]
    pub fn refused(self, rules: &Rules, path: &Path) -> Option<Arc<Denial>> {
        self.refused_at(rules, path, None)
    }

    /// Returns the same for what is there already: a `.git` that is a file is told from a directory, and a directory
    /// that is moved from a file.
    #[must_use]
    pub fn refused_at(
        self,
        rules: &Rules,
        path: &Path,
        kind: Option<EntryKind>,
    ) -> Option<Arc<Denial>> {
        match self {
            Self::Read | Self::Readdir | Self::Exec => rules.zone(path).read,
            Self::Write
            | Self::Truncate
            | Self::Setxattr
            | Self::Removexattr
            | Self::Fallocate
            | Self::Copy => change_refused(rules, path, kind),
            // A git file is protected for what it says; its permissions and times say nothing.
            Self::Chmod | Self::Chown | Self::Utimes => {
                change_refused(rules, path, kind).filter(|denial| {
                    denial.rule() != Rule::ProtectedPath || rules.config_kind(path).is_none()
                })
            }
            Self::Create => rules.create_refused(path, EntryKind::File),
            Self::Mkdir => rules.create_refused(path, EntryKind::Directory),
            Self::Symlink => rules.create_refused(path, EntryKind::Symlink),
            Self::Mknod => rules.create_refused(path, EntryKind::Special),
            Self::Link => match rules.config_kind(path) {
                Some(_) => rules.create_refused(path, EntryKind::Special),
                None => rules.create_refused(path, EntryKind::File),
            },
            Self::Unlink | Self::Rmdir => rules.remove_refused(path),
            Self::Rename => rules.move_refused(path).or_else(|| {
                let directory = kind == Some(EntryKind::Directory);
                directory.then(|| rules.rename_dir_refused(path)).flatten()
            }),
        }
    }
}

fn change_refused(rules: &Rules, path: &Path, kind: Option<EntryKind>) -> Option<Arc<Denial>> {
    match kind {
        Some(kind) => rules.write_refused(path, kind),
        None => rules.zone(path).write,
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What would be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It would be done.
    Allow,
    /// It would be refused.
    Deny,
    /// It would be refused in this mode, and somebody is there who can be asked for a wider one.
    Ask,
}

/// What would be decided, by which rule, and what would allow it. Its JSON is that of `stockade why --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What would be decided.
    pub decision: Answer,
    /// The rule that refuses.
    pub rule: Option<Rule>,
    /// What states the rule, or why nothing refuses.
    pub source: String,
    /// What would allow it, a step a sentence.
    pub help: Vec<String>,
}

/// What takes a refusal away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A wider mode.
    Mode(Mode),
    /// A further writable root.
    Writable(PathBuf),
    /// A protection is lifted for this pattern, which stands for this path.
    AllowWrite(String, PathBuf),
    /// A rule is left out.
    LeaveOut {
        /// `deny-read` or `deny-write`.
        option: &'static str,
        /// The pattern as it was given.
        pattern: String,
    },
    /// Nothing in the policy; this sentence says what else.
    Other(&'static str),
}

impl Remedy {
    /// Returns what takes away `denial`, which was met at `path` in `mode`.
    #[must_use]
    pub fn of(denial: &Denial, path: &Path, mode: Mode) -> Self {
        match denial.rule() {
            Rule::ReadOnlyMode => Self::Mode(mode.max(Mode::WorkspaceWrite)),
            Rule::OutsideWritableRoots => Self::Writable(directory_of(path)),
            Rule::ProtectedPath => protected(denial.source(), path),
            Rule::WriteDenied => left_out("deny-write", denial.source()),
            Rule::ReadDenied if denial.source() == OWN_FILES => protected(OWN_FILES, path),
            Rule::ReadDenied => left_out("deny-read", denial.source()),
            Rule::NotObserved => {
                Self::Other("let the program read the file first, or run with `--guard audit`")
            }
            Rule::StaleVersion => Self::Other(
                "let the program read the file again, since it changed, or run with `--guard audit`",
            ),
            Rule::HardLink => Self::Other("run with `--hardlinks break`"),
            Rule::DeviceNode => {
                Self::Other("no option allows it: device nodes can't be made inside")
            }
            Rule::Reserved => Self::Other("no option allows it: choose another name"),
        }
    }

    /// Changes a policy so. Returns whether it made a difference.
    pub fn apply(&self, policy: &mut Policy) -> bool {
        fn drop_from(list: &mut Vec<String>, pattern: &str) -> bool {
            let before = list.len();
            list.retain(|known| known != pattern);
            list.len() < before
        }
        match self {
            Self::Mode(mode) => {
                let wider = *mode > policy.mode;
                policy.mode = policy.mode.max(*mode);
                wider
            }
            Self::Writable(root) => {
                policy.extra_roots.push(root.clone());
                true
            }
            Self::AllowWrite(pattern, _) => {
                let known = policy.allow_write.contains(pattern);
                policy.allow_write.push(pattern.clone());
                !known
            }
            Self::LeaveOut { option: "deny-read", pattern } => {
                drop_from(&mut policy.deny_read, pattern)
            }
            Self::LeaveOut { pattern, .. } => drop_from(&mut policy.deny_write, pattern),
            Self::Other(_) => false,
        }
    }
}

/// Writes the sentence that names the option.
impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => write!(
                f,
                "run with `--mode {mode}`, or once with `--sandbox-permissions {mode} --justification TEXT`"
            ),
            Self::Writable(root) => {
                write!(f, "run with `--writable {}`", show_command([root.as_os_str().as_bytes()]))
            }
            Self::AllowWrite(pattern, _) => {
                write!(f, "run with `--allow-write {}`", show_command([pattern.as_bytes()]))
            }
            Self::LeaveOut { option, pattern } => write!(
                f,
                "leave out `--{option} {}` (or take it from `{}` in the configuration)",
                show_command([pattern.as_bytes()]),
                option.replace('-', "_")
            ),
            Self::Other(sentence) => f.write_str(sentence),
        }
    }
}

/// Returns the sentence for the note after a refusal: the option that would allow it.
#[must_use]
pub fn help_for(denial: &Denial, path: &Path, mode: Mode) -> String {
    Remedy::of(denial, path, mode).to_string()
}

/// The refusals of a protection that no option lifts, by their source.
const UNLIFTED: [(&str, &str); 4] = [
    (OWN_FILES, "no option allows it: these are Stockade's own files"),
    (
        "protection the session's root",
        "no option allows it: the session's root stays where it is while the session lives",
    ),
    (
        "protection allow-write, left by a directory",
        "copy what is needed: a directory in which protections are lifted can't be moved out",
    ),
    (
        "protection node_modules, left by a directory",
        "copy what is needed: a directory of installed packages can't be moved out",
    ),
];

fn protected(source: &str, path: &Path) -> Remedy {
    if let Some((_, sentence)) = UNLIFTED.iter().find(|(known, _)| *known == source) {
        return Remedy::Other(sentence);
    }
    match path.to_str() {
        Some(text) => Remedy::AllowWrite(escape(text), path.to_owned()),
        None => Remedy::Other("name a pattern for it with `--allow-write`, such as one with `*`"),
    }
}

fn left_out(option: &'static str, source: &str) -> Remedy {
    let pattern = source.strip_prefix(option).unwrap_or(source).trim_start();
    Remedy::LeaveOut { option, pattern: pattern.to_owned() }
}

/// Returns the directory to be made writable for `path`.
fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("/") => parent.to_owned(),
        Some(_) | None => path.to_owned(),
    }
}

/// Explains what would be decided about `path`, where there is something of this kind, or nothing. `can_ask` says that there is an approver and that the approval policy lets it be
/// asked.
#[must_use]
pub fn explain(
    policy: &Policy,
    rules: &Rules,
    path: &Path,
    kind: Option<EntryKind>,
    access: Access,
    can_ask: bool,
) -> Explanation {
    let Some(denial) = access.refused_at(rules, path, kind) else {
        return Explanation {
            decision: Answer::Allow,
            rule: None,
            source: allowed_by(rules, path, access),
            help: judged(rules, path).into_iter().collect(),
        };
    };
    let by_mode = matches!(denial.rule(), Rule::ReadOnlyMode | Rule::OutsideWritableRoots);
    Explanation {
        decision: if by_mode && can_ask { Answer::Ask } else { Answer::Deny },
        rule: Some(denial.rule()),
        source: denial.source().to_owned(),
        help: steps(policy, path, kind, access, &denial)
            .iter()
            .map(ToString::to_string)
            .chain(judged(rules, path))
            .collect(),
    }
}

/// Returns the steps after which the access is allowed; where no option does it, the last one says so.
fn steps(
    policy: &Policy,
    path: &Path,
    kind: Option<EntryKind>,
    access: Access,
    denial: &Arc<Denial>,
) -> Vec<Remedy> {
    let mut policy = policy.clone();
    let mut steps = Vec::new();
    let mut standing = Some(denial.clone());
    while let Some(denial) = standing {
        let remedy = Remedy::of(&denial, path, policy.mode);
        let changed = remedy.apply(&mut policy);
        steps.push(remedy);
        standing = match Rules::compile(&policy) {
            Ok(rules) if changed => access.refused_at(&rules, path, kind),
            Ok(_) | Err(_) => None,
        };
    }
    steps
}

fn judged(rules: &Rules, path: &Path) -> Option<String> {
    rules.config_kind(path).map(|kind| {
        format!(
            "`{}` is judged by its content: git may replace it by one that runs no code",
            kind.label()
        )
    })
}

fn allowed_by(rules: &Rules, path: &Path, access: Access) -> String {
    if matches!(access, Access::Read | Access::Readdir | Access::Exec) {
        return "no deny-read rule names it".to_owned();
    }
    match rules.roots().iter().find(|root| path.starts_with(root)) {
        Some(root) => format!("writable root {}", sanitise(&root.to_string_lossy())),
        None => match rules.writable_name(path) {
            Some(name) => format!("writable name {}", sanitise(name)),
            None => format!("mode {}", rules.mode()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(mode: Mode) -> Policy {
        let mut policy = Policy::new(mode, "/w".into());
        policy.extra_roots = vec!["/tmp".into()];
        policy.deny_read = vec![".env".into()];
        policy.deny_write = vec!["/w/locked".into()];
        policy.own_paths = vec!["/w/state".into()];
        policy
    }

    type Row<'a> = (Mode, &'a str, Access, Option<Rule>, &'a [&'a str]);

    #[test]
    fn the_table_of_explanations() {
        use Mode::{DangerFullAccess, ReadOnly, WorkspaceWrite};
        #[rustfmt::skip]
        let rows: &[Row] = &[
            (WorkspaceWrite, "/w/a", Access::Write, None, &[]),
            (ReadOnly, "/w/a", Access::Read, None, &[]),
            (ReadOnly, "/w/a", Access::Write, Some(Rule::ReadOnlyMode), &["--mode workspace-write"]),
            (ReadOnly, "/etc/x", Access::Write, Some(Rule::ReadOnlyMode),
                &["--mode workspace-write", "--writable /etc"]),
            (WorkspaceWrite, "/etc/x", Access::Create, Some(Rule::OutsideWritableRoots), &["--writable /etc"]),
            (WorkspaceWrite, "/x", Access::Create, Some(Rule::OutsideWritableRoots), &["--writable /x"]),
            (WorkspaceWrite, "/w/.env", Access::Read, Some(Rule::ReadDenied), &["--deny-read .env"]),
            (WorkspaceWrite, "/w/locked/a b", Access::Write, Some(Rule::WriteDenied), &["--deny-write /w/locked"]),
            (WorkspaceWrite, "/w/.git/hooks/x", Access::Create, Some(Rule::ProtectedPath),
                &["--allow-write /w/.git/hooks/x"]),
            (WorkspaceWrite, "/w/a[1]/.vscode", Access::Mkdir, Some(Rule::ProtectedPath),
                &["--allow-write '/w/a\\[1\\]/.vscode'"]),
            (WorkspaceWrite, "/w/.git/config", Access::Write, Some(Rule::ProtectedPath),
                &["--allow-write /w/.git/config", "judged by its content"]),
            (WorkspaceWrite, "/w/.git", Access::Rename, Some(Rule::ProtectedPath), &["--allow-write /w/.git", "judged"]),
            (WorkspaceWrite, "/w/state/x", Access::Write, Some(Rule::ProtectedPath), &["no option allows it"]),
            (DangerFullAccess, "/etc/x", Access::Write, None, &[]),
        ];
        for (mode, path, access, rule, help) in rows {
            let policy = policy(*mode);
            let rules = Rules::compile(&policy).unwrap();
            let explained = explain(&policy, &rules, Path::new(path), None, *access, false);
            assert_eq!(explained.rule, *rule, "{path} {access}");
            let expected = if rule.is_some() { Answer::Deny } else { Answer::Allow };
            assert_eq!(explained.decision, expected, "{path} {access}");
            assert_eq!(explained.help.len(), help.len(), "{path} {access} {explained:?}");
            for (sentence, part) in explained.help.iter().zip(*help) {
                assert!(sentence.contains(part), "{sentence} lacks {part}");
            }
            assert!(!explained.source.is_empty());
        }
    }

    #[test]
    fn what_is_there_can_decide() {
        let policy = policy(Mode::WorkspaceWrite);
        let rules = Rules::compile(&policy).unwrap();
        for (path, kind, access, refused) in [
            ("/w/.git", EntryKind::File, Access::Write, true),
            ("/w/.git", EntryKind::Directory, Access::Chmod, false),
            ("/w/.git", EntryKind::Directory, Access::Rename, true),
            ("/w/a", EntryKind::Directory, Access::Rename, false),
            ("/w/a", EntryKind::File, Access::Write, false),
        ] {
            let explained = explain(&policy, &rules, Path::new(path), Some(kind), access, false);
            assert_eq!(explained.rule.is_some(), refused, "{access} {path} {kind:?}");
            if refused {
                assert!(explained.help[0].contains("--allow-write /w/.git"), "{explained:?}");
            }
        }
    }

    #[test]
    fn a_refusal_by_the_mode_may_be_asked_about() {
        let policy = policy(Mode::ReadOnly);
        let rules = Rules::compile(&policy).unwrap();
        let ask = |path: &str, access| {
            explain(&policy, &rules, Path::new(path), None, access, true).decision
        };
        assert_eq!(ask("/w/a", Access::Write), Answer::Ask);
        assert_eq!(ask("/w/.env", Access::Read), Answer::Deny);
        assert_eq!(ask("/w/a", Access::Read), Answer::Allow);
    }

    #[test]
    fn the_json_is_the_contracts() {
        let policy = policy(Mode::WorkspaceWrite);
        let rules = Rules::compile(&policy).unwrap();
        let explained = explain(&policy, &rules, Path::new("/w/.env"), None, Access::Read, false);
        let json = serde_json::to_value(&explained).unwrap();
        assert_eq!(json["decision"], "deny");
        assert_eq!(json["rule"], "read-denied");
        assert_eq!(json["source"], "deny-read .env");
        assert!(json["help"][0].as_str().unwrap().contains("--deny-read"));
    }

    #[test]
    fn the_note_says_the_same_as_the_explanation() {
        let policy = policy(Mode::WorkspaceWrite);
        let rules = Rules::compile(&policy).unwrap();
        for (path, access) in [
            ("/etc/x", Access::Write),
            ("/w/.env", Access::Read),
            ("/w/.idea/x", Access::Write),
            ("/w/locked", Access::Rmdir),
        ] {
            let path = Path::new(path);
            let denial = access.refused(&rules, path).unwrap();
            let explained = explain(&policy, &rules, path, None, access, false);
            assert_eq!(explained.help[0], help_for(&denial, path, policy.mode));
        }
        let rename = "\x1b[2J\u{202e}";
        let denial = Denial::new(Rule::OutsideWritableRoots, "mode workspace-write");
        let shown =
            help_for(&denial, &Path::new("/x").join(rename).join("y"), Mode::WorkspaceWrite);
        assert!(!shown.chars().any(char::is_control) && shown.contains("\\x1b"), "{shown}");
    }

    fn name() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "a",
            "b",
            ".git",
            "hooks",
            "config",
            "x.git",
            ".vscode",
            ".env",
            "modules",
            "k.pem",
            "node_modules",
            "[x]",
            ".config",
            "fish",
            ".ssh",
            "etc",
            "w",
            "tmp",
            "q*",
            "worktrees",
        ])
        .prop_map(str::to_owned)
    }

    fn path() -> impl Strategy<Value = PathBuf> {
        (prop::sample::select(vec!["/w", "/tmp", "/", "/etc"]), prop::collection::vec(name(), 0..5))
            .prop_map(|(top, names)| {
                names.iter().fold(PathBuf::from(top), |path, name| path.join(name))
            })
    }

    fn patterns() -> impl Strategy<Value = Vec<String>> {
        let pattern = prop_oneof![
            name().prop_map(|name| if name == "[x]" { "\\[x\\]".to_owned() } else { name }),
            Just("*.pem".to_owned()),
            Just("**/a/b".to_owned()),
            Just("a/*/b".to_owned()),
            path().prop_map(|path| escape(&path.to_string_lossy())),
        ];
        prop::collection::vec(pattern, 0..3)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn what_is_refused_is_allowed_after_the_steps_that_help_names(
            mode in prop::sample::select(Mode::ALL.to_vec()),
            path in path(),
            access in prop::sample::select(Access::ALL.to_vec()),
            deny_read in patterns(),
            deny_write in patterns(),
            allow_write in patterns(),
        ) {
            let mut policy = Policy::new(mode, "/w".into());
            policy.extra_roots = vec!["/tmp".into()];
            policy.deny_read = deny_read;
            policy.deny_write = deny_write;
            policy.allow_write = allow_write;
            let rules = Rules::compile(&policy).unwrap();
            // The same answer every time, and from a policy that was stored.
            let stored: Policy =
                serde_json::from_str(&serde_json::to_string(&policy).unwrap()).unwrap();
            let again = Rules::compile(&stored).unwrap();
            prop_assert_eq!(access.refused(&rules, &path), access.refused(&again, &path));
            let Some(denial) = access.refused(&rules, &path) else { return Ok(()) };
            let steps = steps(&policy, &path, None, access, &denial);
            let mut changed = policy.clone();
            for step in &steps {
                step.apply(&mut changed);
            }
            let after = access.refused(&Rules::compile(&changed).unwrap(), &path);
            match steps.last() {
                Some(Remedy::Other(_)) => prop_assert!(after.is_some()),
                _ => prop_assert!(after.is_none(), "{:?} {:?}", steps, after),
            }
            // Each step names only what is needed: without the last one it is still refused.
            let mut before = policy.clone();
            for step in steps.iter().take(steps.len() - 1) {
                step.apply(&mut before);
            }
            prop_assert!(access.refused(&Rules::compile(&before).unwrap(), &path).is_some());
        }

        #[test]
        fn a_narrower_mode_never_allows_more(
            path in path(),
            access in prop::sample::select(Access::ALL.to_vec()),
            deny in patterns(),
        ) {
            let allowed = Mode::ALL.map(|mode| {
                let mut policy = Policy::new(mode, "/w".into());
                policy.extra_roots = vec!["/tmp".into()];
                policy.deny_read.clone_from(&deny);
                policy.deny_write.clone_from(&deny);
                access.refused(&Rules::compile(&policy).unwrap(), &path).is_none()
            });
            // Patterns without an anchor hold in every writable root, and full access has more of those.
            if deny.is_empty() {
                prop_assert!(allowed.is_sorted(), "{:?}", allowed);
            }
            prop_assert!(!allowed[0] || allowed[1] || !deny.is_empty());
        }
    }
}
