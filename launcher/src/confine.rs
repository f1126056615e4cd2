//! For harnesses that spawn for themselves: a command and a policy in; out come the words to spawn, how much of the policy will
//! hold, and how to tell afterwards what happened.
//!
//! The words are `stockade run …`. The file system's server, the recorder and whoever ends every descendant live in that
//! process: it must stay alive as long as the command, and it does, since it is the command's parent and ends with it. Its
//! streams, its process group, its signals and its exit status are the command's own, as with `exec`.
//!
//! - C1: nothing but the policy counts. The operator's configuration isn't read by that process.
//! - C2: where everything will hold, the words say so too (`--require-full`): a machine that has changed meanwhile refuses.
//! - C3: a policy that the words can't say exactly is refused here.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stockade_policy::{
    Guard, Hardlinks, Mode, Network, ObserveLevel, Policy, Publish, config::Backend,
};

use crate::config::own_directories;
use crate::enforcement::Enforcement;
use crate::error::{Code, Failure};
use crate::plan::{Facts, Plan, Wanted};
use crate::resolve::Places;
use crate::state;

/// What is to be confined.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// The program `stockade`.
    pub stockade: &'a Path,
    /// The policy, as [`crate::resolve::resolve`] gives it.
    pub policy: &'a Policy,
    /// What to confine by.
    pub backend: Backend,
    /// The command and its arguments.
    pub argv: &'a [OsString],
    /// The directory that the words will be spawned in.
    pub cwd: &'a Path,
    /// Where the result is to be written: a file that the command can't write.
    pub result: &'a Path,
}

/// What to spawn, and what to think of it.
#[derive(Clone, Debug)]
pub struct Confined {
    /// The words to spawn in the place of the command's.
    pub argv: Vec<OsString>,
    /// How much of the policy will hold; the result says how much did.
    pub enforcement: Enforcement,
    /// What confines.
    pub backend: &'static str,
    /// How to tell that something was refused.
    pub denials: DenialSignatures,
    /// How to tell that the command didn't run, or that nothing can be said about it.
    pub failures: FailureRules,
    result: PathBuf,
}

/// How to tell that something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenialSignatures {
    /// The member of the result that counts them exactly.
    pub count: &'static str,
    /// The member of the result that names each.
    pub list: &'static str,
    /// What programs print then. A guess: they print it for other reasons too, and whatever they like.
    pub texts: [&'static str; 2],
}

/// How to tell that the command didn't run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRules {
    /// The exit status then. A command may end with it, too: the result's `outcome` decides.
    pub status: u8,
    /// What the line on standard error begins with. A command may print that, too.
    pub prefix: &'static str,
    /// The outcomes of the result with which the command ran; every other one means that it didn't, or not to an end of its own.
    pub ran: [&'static str; 3],
}

/// What the result says.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// The command ran.
    Ran {
        /// Its exit code, if it ended by itself.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// Whether its time was up.
        timed_out: bool,
        /// How many accesses were refused.
        denials: u64,
        /// The gaps that were there in the end.
        gaps: Vec<String>,
    },
    /// It didn't run, or nothing can be said about how it ended.
    Failed {
        /// The stable code.
        code: String,
        /// What happened.
        message: String,
    },
}

/// Turns a command into what a harness spawns.
///
/// # Errors
/// The policy can't be said in words, or nothing here can confine the command as asked.
pub fn confine(command: &Command<'_>) -> Result<Confined, Failure> {
    let policy = command.policy;
    let invalid = |what: String| Failure::new(Code::PolicyInvalid, what);
    if command.argv.is_empty() {
        return Err(invalid("there is no command".to_owned()));
    }
    if policy.writable_roots().iter().any(|root| command.result.starts_with(root))
        && policy.mode != Mode::DangerFullAccess
    {
        let what = format!("the command could write the result `{}`", command.result.display());
        return Err(invalid(what).help("name a file outside of the writable roots"));
    }
    if policy.mode == Mode::WorkspaceWrite {
        // `stockade run` adds these to every policy of this mode (contract P6).
        let temporary = Places::of_this_machine(Vec::new()).temporary;
        let temporary = temporary.iter().filter_map(|path| std::fs::canonicalize(path).ok());
        let roots = policy.writable_roots();
        for path in temporary {
            if !roots.iter().any(|root| path.starts_with(root)) {
                let what = format!("the policy leaves out `{}`", path.display());
                return Err(invalid(what).help("make the policy with `resolve`"));
            }
        }
    }
    let own = state::directory().map(|state| {
        state::create(&state)?;
        Ok::<_, Failure>(own_directories(&std::fs::canonicalize(&state).unwrap_or(state)))
    })??;
    let mut facts = Facts::look(own);
    facts.wanted = match command.backend {
        Backend::Auto => Wanted::Auto,
        Backend::Bwrap => Wanted::Bubblewrap,
        Backend::Landlock => Wanted::Landlock,
        Backend::Custom => {
            let what = "a custom runner is named in the configuration, which doesn't count here";
            return Err(invalid(what.to_owned()));
        }
    };
    let plan = Plan::new(policy.clone(), command.argv.to_vec(), command.cwd.to_owned(), &facts)?;
    Ok(Confined {
        argv: words(command, plan.enforcement == Enforcement::Full),
        backend: plan.backend(),
        enforcement: plan.enforcement,
        denials: DenialSignatures {
            count: "denial_count",
            list: "denials",
            texts: ["Read-only file system", "Permission denied"],
        },
        failures: FailureRules {
            status: crate::result::NOT_RUN,
            prefix: "stockade: error[",
            ran: ["exited", "signaled", "timed_out"],
        },
        result: command.result.to_owned(),
    })
}

fn words(command: &Command<'_>, full: bool) -> Vec<OsString> {
    let policy = command.policy;
    let mut words: Vec<OsString> = vec![command.stockade.into()];
    words.extend(["run", "--quiet", "--config", "/dev/null", "--mode"].map(OsString::from));
    words.push(policy.mode.as_str().into());
    let mut option = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
        words.push(name.into());
        words.push(value.as_ref().to_owned());
    };
    option("--workspace", &policy.root);
    if let Some(session) = &policy.session {
        option("--session", session);
    }
    for root in &policy.extra_roots {
        option("--writable", root);
    }
    for root in &policy.observed_roots {
        option("--observe-root", root);
    }
    let lists = [
        ("--deny-read", &policy.deny_read),
        ("--deny-write", &policy.deny_write),
        ("--allow-write", &policy.allow_write),
        ("--publish-direct", &policy.publish_direct),
    ];
    for (name, list) in lists {
        list.iter().for_each(|pattern| option(name, pattern));
    }
    option(
        "--guard",
        &match policy.guard {
            Guard::Off => "off",
            Guard::Audit => "audit",
            Guard::Enforce => "enforce",
        },
    );
    option(
        "--publish",
        &match policy.publish {
            Publish::Atomic => "atomic",
            Publish::Direct => "direct",
        },
    );
    option(
        "--network",
        &match policy.network {
            Network::Host => "host",
            Network::None => "none",
        },
    );
    option(
        "--hardlinks",
        &match policy.hardlinks {
            Hardlinks::Break => "break",
            Hardlinks::Deny => "deny",
            Hardlinks::Follow => "follow",
        },
    );
    option(
        "--observe",
        &match policy.observe {
            ObserveLevel::Open => "open",
            ObserveLevel::Full => "full",
        },
    );
    option(
        "--backend",
        &match command.backend {
            Backend::Auto | Backend::Custom => "auto",
            Backend::Bwrap => "bwrap",
            Backend::Landlock => "landlock",
        },
    );
    option("--result", &command.result);
    if policy.durable {
        words.push("--durable".into());
    }
    if full {
        words.push("--require-full".into());
    }
    words.push("--".into());
    words.extend(command.argv.iter().cloned());
    words
}

impl Confined {
    /// Says what came of it, once what was spawned has ended.
    ///
    /// # Errors
    /// There is no result: whatever was spawned didn't get as far as writing one (it was killed). Nothing is known then.
    pub fn judge(&self) -> io::Result<Judgement> {
        let result: Value = serde_json::from_slice(&std::fs::read(&self.result)?)?;
        let outcome = result["outcome"].as_str().unwrap_or_default();
        let number =
            |name: &str| result[name].as_i64().and_then(|number| i32::try_from(number).ok());
        if self.failures.ran.contains(&outcome) {
            let gaps = result["enforcement"]["gaps"].as_array();
            return Ok(Judgement::Ran {
                exit_code: number("exit_code"),
                signal: number("signal"),
                timed_out: outcome == "timed_out",
                denials: result[self.denials.count].as_u64().unwrap_or_default(),
                gaps: gaps
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            });
        }
        let text = |name: &str| result["error"][name].as_str().unwrap_or_default().to_owned();
        Ok(Judgement::Failed { code: text("code"), message: text("message") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_the_words_cannot_say_is_refused() {
        let base = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
        let argv = ["true".into()];
        let result = base.path().join("result");
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/usr".into());
        let refused = |policy: &Policy, result: &Path| {
            let command = Command {
                stockade: Path::new("stockade"),
                policy,
                backend: Backend::Auto,
                argv: &argv,
                cwd: Path::new("/"),
                result,
            };
            confine(&command).unwrap_err().lines()[0].clone()
        };
        assert!(refused(&policy, &result).contains("the policy leaves out `/tmp`"));
        policy.extra_roots = vec!["/tmp".into(), base.path().to_owned()];
        assert!(refused(&policy, &result).contains("could write the result"));
    }
}
