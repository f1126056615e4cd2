//! `stockade why`: what would be decided, by which rule, and what would allow it. Nothing is run.

use std::fmt::Write as _;
use std::io::{self, BufRead};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use stockade_policy::text::{Bytes, sanitise, sanitise_bytes};
use stockade_policy::{
    Access, Answer, ApprovalPolicy, EntryKind, Explanation, Mode, Policy, Resolution, Rule, Rules,
    explain,
};

use crate::answer;
use crate::cli::policy_args::PolicyArgs;
use crate::cli::show;
use crate::config::own_directories;
use crate::error::{Code, Failure};
use crate::session::Session;
use crate::state;

/// Say what would be decided about a path, by which rule, and what would allow it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyArgs,
    /// The path; it need not exist.
    #[arg(long, value_name = "PATH", required_unless_present = "batch", requires = "op")]
    path: Option<PathBuf>,
    /// The operation: read, write, create, unlink, rename, … (those of the log).
    #[arg(long, value_name = "OP", value_parser = access, requires = "path")]
    op: Option<Access>,
    /// Read questions from the standard input, one JSON object {"path", "op"} a line, and answer each with one line.
    #[arg(long, conflicts_with_all = ["path", "op"])]
    batch: bool,
    /// The session whose mode and root count, by id or name.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn access(name: &str) -> Result<Access, String> {
    Access::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Access::ALL.iter().map(|access| access.as_str()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Prints the explanation.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    answer::check(args.policy.paths())?;
    let effective = args.policy.effective()?;
    let directory = state::directory()?;
    let session =
        args.session.as_deref().map(|session| Session::open(&directory, session)).transpose()?;
    let default = effective.mode();
    let (resolution, workspace, event) = match &session {
        Some(session) => {
            let state = session.state()?;
            args.policy.agree_with(session)?;
            (state.resolve(default, None), Some(state.root().to_owned()), state.approval_event())
        }
        None => (Resolution::resolve(default, None, None), None, None),
    };
    let workspace = match workspace.or_else(|| args.policy.workspace.clone()) {
        Some(workspace) => workspace,
        None => std::env::current_dir().map_err(|error| {
            Failure::new(Code::PolicyInvalid, "can't tell the current directory").because(error)
        })?,
    };
    let own = own_directories(&std::fs::canonicalize(&directory).unwrap_or(directory));
    let session = session.map(|session| session.id().to_owned());
    let policy = effective.policy(&workspace, session, resolution, &own)?;
    let settings = &effective.settings;
    let configured = settings.approval_policy.as_ref().map(|policy| policy.value);
    let asks = event.or(configured).unwrap_or_default() == ApprovalPolicy::Ask;
    let approver = settings.approver.is_some()
        || settings.ask_elsewhere.as_ref().is_some_and(|set| set.value)
        || std::fs::File::options().read(true).write(true).open("/dev/tty").is_ok();
    let judge = Judge { rules: compile(&policy)?, policy, own, can_ask: asks && approver };
    if let (Some(path), Some(op)) = (&args.path, args.op) {
        let answer = judge.answer(path, op)?;
        show(&if args.json { answer.json() } else { answer.text() });
        return Ok(ExitCode::SUCCESS);
    }
    for line in io::stdin().lock().lines() {
        let invalid = |error: io::Error| {
            Failure::new(Code::ConfigInvalid, "a question can't be read").because(error)
        };
        let line = line.map_err(invalid)?;
        let question: Question =
            serde_json::from_str(&line).map_err(|error| invalid(error.into()))?;
        show(&judge.answer(question.path.as_path(), question.op)?.json());
    }
    Ok(ExitCode::SUCCESS)
}

/// One line of a batch.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    path: Bytes,
    op: Access,
}

fn compile(policy: &Policy) -> Result<Rules, Failure> {
    Rules::compile(policy).map_err(|error| {
        Failure::new(Code::PolicyInvalid, "the policy can't be carried out").because(error)
    })
}

/// What questions are judged by.
struct Judge {
    policy: Policy,
    rules: Rules,
    own: Vec<PathBuf>,
    can_ask: bool,
}

struct Judged<'j> {
    policy: &'j Policy,
    path: PathBuf,
    op: Access,
    explained: Explanation,
}

impl Judge {
    fn answer(&self, path: &Path, op: Access) -> Result<Judged<'_>, Failure> {
        let path = real_path(path, op).map_err(|error| {
            let what = format!("can't tell what `{}` is", path.display());
            Failure::new(Code::PolicyInvalid, what).because(error)
        })?;
        let confined = self.policy.mode != Mode::DangerFullAccess;
        let explained = if confined && self.own.iter().any(|own| path.starts_with(own)) {
            Explanation {
                decision: Answer::Deny,
                rule: Some(Rule::ProtectedPath),
                source: "stockade's own files".to_owned(),
                help: vec!["no option allows it: these are Stockade's own files".to_owned()],
            }
        } else {
            explain(&self.policy, &self.rules, &path, kind(&path), op, self.can_ask)
        };
        Ok(Judged { policy: &self.policy, path, op, explained })
    }
}

/// Returns what is at a path.
fn kind(path: &Path) -> Option<EntryKind> {
    let file_type = std::fs::symlink_metadata(path).ok()?.file_type();
    Some(if file_type.is_dir() {
        EntryKind::Directory
    } else if file_type.is_file() {
        EntryKind::File
    } else if file_type.is_symlink() {
        EntryKind::Symlink
    } else {
        EntryKind::Special
    })
}

impl Judged<'_> {
    fn json(&self) -> String {
        let object = json!({
            "v": 1,
            "op": self.op,
            "path": Bytes::from(self.path.as_path()),
            "mode": self.policy.mode,
            "mode_source": self.policy.source,
            "decision": self.explained.decision,
            "rule": self.explained.rule,
            "source": self.explained.source,
            "help": self.explained.help,
        });
        format!("{object}\n")
    }

    fn text(&self) -> String {
        let explained = &self.explained;
        let decision = match explained.decision {
            Answer::Allow => "allowed",
            Answer::Deny => "refused",
            Answer::Ask => "refused in this mode; a wider one can be asked for",
        };
        let mut text = String::new();
        let shown = sanitise_bytes(self.path.as_os_str().as_bytes());
        // Writing to a String can't fail.
        let _infallible = writeln!(text, "{} {shown}: {decision}", self.op);
        let rule = explained.rule.map(|rule| format!("{rule}, ")).unwrap_or_default();
        let _infallible = writeln!(text, "by: {rule}{}", sanitise(&explained.source));
        for help in &explained.help {
            let _infallible = writeln!(text, "help: {help}");
        }
        text
    }
}

/// How many links are followed to nowhere.
const LINKS: usize = 40;

/// Returns the path that an operation acts on: every link followed, but for operations on the link itself. What doesn't
/// exist is named below what does.
fn real_path(path: &Path, op: Access) -> io::Result<PathBuf> {
    let follows = !matches!(
        op,
        Access::Unlink
            | Access::Rmdir
            | Access::Rename
            | Access::Mkdir
            | Access::Symlink
            | Access::Mknod
            | Access::Link
    );
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return std::fs::canonicalize(&path);
        };
        let found = nearest(parent)?.join(name);
        match std::fs::read_link(&found) {
            Ok(target) if follows => path = found.with_file_name("").join(target),
            Ok(_) | Err(_) => return Ok(found),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns the canonical form of a directory, as far as it exists.
fn nearest(directory: &Path) -> io::Result<PathBuf> {
    match (std::fs::canonicalize(directory), directory.parent(), directory.file_name()) {
        (Ok(found), _, _) => Ok(found),
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(nearest(parent)?.join(name))
        }
        (Err(error), _, _) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_but_for_operations_on_them() {
        let base = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(base.path()).unwrap();
        std::fs::create_dir(base.join("d")).unwrap();
        std::os::unix::fs::symlink("d", base.join("l")).unwrap();
        std::os::unix::fs::symlink("../d/new", base.join("d/dangling")).unwrap();
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        for (path, op, expected) in [
            ("l/x", Access::Write, "d/x"),
            ("l", Access::Chmod, "d"),
            ("l", Access::Unlink, "l"),
            ("l/../d/y/z", Access::Create, "d/y/z"),
            ("l/dangling", Access::Create, "d/new"),
            ("l/dangling", Access::Unlink, "d/dangling"),
        ] {
            assert_eq!(real_path(&base.join(path), op).unwrap(), base.join(expected), "{path}");
        }
        assert!(real_path(&base.join("loop"), Access::Read).is_err());
    }
}
