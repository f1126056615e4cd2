//! What a run will do, decided before anything is touched.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_policy::{Mode, Policy, Rules};

use crate::backend::{bwrap, landlock};
use crate::enforcement::{Enforcement, Gap};
use crate::error::{Code, Failure};
use crate::limits::{self, Limit, Limits};
use crate::resolve::{self, regions};
use crate::{probe, restrict};

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A user namespace that maps the caller to itself.
    UserNamespace,
    /// A private mount namespace.
    MountNamespace,
    /// A mount of our file system over a directory's own path.
    Mount(PathBuf),
    /// bubblewrap, with its options.
    Sandbox(PathBuf, Vec<OsString>),
    /// Making this directory must fail inside.
    ProveReadOnly(PathBuf),
    /// Signals and abstract sockets stay inside.
    Scope,
    /// Connections are made by the helper.
    GuardConnections,
    /// No input can be pushed into the terminal.
    NoTerminalInjection,
    /// Everything inside uses no more than this.
    Limit(Limit),
    /// The command, in this directory.
    Run(PathBuf, Vec<OsString>),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserNamespace => f.write_str("create a user namespace for the caller alone"),
            Self::MountNamespace => f.write_str("create a private mount namespace"),
            Self::Mount(path) => write!(f, "mount the file system over {}", quoted(path)),
            Self::Sandbox(program, options) => {
                write!(f, "start {}", quoted(program))?;
                options.iter().try_for_each(|option| write!(f, " {}", quoted(option)))
            }
            Self::ProveReadOnly(path) => {
                write!(f, "prove that {} can't be made inside", quoted(path))
            }
            Self::Scope => f.write_str("keep signals and abstract sockets inside"),
            Self::GuardConnections => f.write_str("connect only to sockets of the run's own"),
            Self::NoTerminalInjection => f.write_str("refuse input pushed into the terminal"),
            Self::Limit(limit) => write!(f, "limit everything inside to {limit}"),
            Self::Run(cwd, argv) => {
                write!(f, "run in {}:", quoted(cwd))?;
                argv.iter().try_for_each(|word| write!(f, " {}", quoted(word)))
            }
        }
    }
}

/// Shows a word as a shell would take it.
fn quoted(word: impl AsRef<OsStr>) -> String {
    let text = word.as_ref().to_string_lossy().into_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=+:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// What a caller wants to be confined by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// The first of the chain that works here (contract L2).
    #[default]
    Auto,
    /// bubblewrap.
    Bubblewrap,
    /// Landlock.
    Landlock,
    /// A program of the operator's, with its first arguments (contract L4).
    Custom(Vec<OsString>),
}

/// What confines a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// bubblewrap.
    Bubblewrap,
    /// Our own namespaces, and the Landlock runner in them.
    Namespaces,
    /// The Landlock runner alone.
    Runner,
    /// The operator's own program.
    Custom,
}

/// A run, complete.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policy that it runs under.
    pub policy: Policy,
    /// The policy, compiled.
    pub rules: Arc<Rules>,
    /// What our file system serves.
    pub regions: Vec<PathBuf>,
    /// What confines it.
    pub kind: Kind,
    /// Its program.
    pub program: PathBuf,
    /// Its options.
    pub options: Vec<OsString>,
    /// Whether a user namespace is needed to mount.
    pub user_namespace: bool,
    /// Whether signals and abstract sockets are kept inside.
    pub scoped: bool,
    /// Whether connections are made by the helper.
    pub guarded: bool,
    /// Directories of the file systems that are the run's own.
    pub inside: Vec<PathBuf>,
    /// Sockets of the host's that the command may reach.
    pub sockets: Vec<PathBuf>,
    /// What must not be makeable inside.
    pub check: Option<PathBuf>,
    /// Directories that our own namespaces cover.
    pub hidden: Vec<PathBuf>,
    /// The caller's terminal.
    pub terminal: Option<PathBuf>,
    /// What everything inside is limited to.
    pub limits: Vec<Limit>,
    /// How much of the policy holds.
    pub enforcement: Enforcement,
    /// The command.
    pub argv: Vec<OsString>,
    /// Its working directory.
    pub cwd: PathBuf,
}

/// What of this machine and this caller a plan depends on.
#[derive(Clone, Debug)]
pub struct Facts {
    /// See [`bwrap::Machine`].
    pub machine: bwrap::Machine,
    /// What the caller wants to be confined by.
    pub wanted: Wanted,
    /// The caller's `PATH`.
    pub path: OsString,
    /// Whether mounts can be made without a user namespace.
    pub can_mount: bool,
    /// Whether the kernel can keep signals and abstract sockets inside.
    pub can_scope: bool,
    /// Whether connections can be made by the helper.
    pub can_guard: bool,
    /// What the run may use at most.
    pub limits: Limits,
}

impl Facts {
    /// Looks at this machine; `own` are Stockade's directories.
    #[must_use]
    pub fn look(own: Vec<PathBuf>) -> Self {
        Self {
            machine: bwrap::Machine::look(own),
            wanted: Wanted::Auto,
            path: std::env::var_os("PATH").unwrap_or_default(),
            can_mount: probe::can_mount(),
            can_scope: restrict::can_scope(),
            can_guard: restrict::can_guard_connections(),
            limits: Limits::default(),
        }
    }
}

/// Leaves sockets uncovered where the helper makes the connections: one that goes away meanwhile would fail the run.
fn covering(machine: &bwrap::Machine, guarded: bool) -> bwrap::Machine {
    let mut machine = machine.clone();
    if guarded {
        machine.sockets.clear();
    }
    machine
}

/// What was chosen.
struct Chosen {
    kind: Kind,
    program: PathBuf,
    options: Vec<OsString>,
    abi: i64,
}

impl Chosen {
    fn new(kind: Kind, program: PathBuf) -> Self {
        Self { kind, program, options: Vec::new(), abi: 0 }
    }
}

/// Chooses what confines: what the caller names, or the first of the chain that works here. Nothing is chosen that
/// confines less than that.
fn choose(policy: &Policy, facts: &Facts) -> Result<Chosen, Failure> {
    let state = facts.machine.own.first().map(PathBuf::as_path);
    let namespaces = || probe::remembered(state, "namespaces", None, probe::check_namespaces);
    let bubblewrap = || {
        let program = bwrap::find(policy, &facts.path)?;
        namespaces()?;
        probe::remembered(state, "bwrap", Some(&program), || probe::confine(&program)).map_err(
            |why| {
                Failure::new(Code::SandboxUnavailable, format!("bubblewrap: {why}"))
                    .help("`stockade doctor` shows what this machine can enforce")
            },
        )?;
        Ok(Chosen::new(Kind::Bubblewrap, program))
    };
    let landlock = |asked: bool| {
        let abi = landlock::usable()?;
        let kind = match namespaces() {
            Ok(()) => Kind::Namespaces,
            Err(failure) if policy.mode == Mode::DangerFullAccess => return Err(failure),
            Err(_) if asked => Kind::Runner,
            Err(_) => {
                landlock::check_alone(policy, &facts.machine.own)?;
                Kind::Runner
            }
        };
        Ok(Chosen { abi, ..Chosen::new(kind, "/proc/self/exe".into()) })
    };
    match &facts.wanted {
        Wanted::Bubblewrap => bubblewrap(),
        Wanted::Landlock => landlock(true),
        Wanted::Custom(words) => {
            let (program, options) = words.split_first().ok_or_else(|| {
                Failure::new(Code::ConfigInvalid, "the custom runner is empty")
                    .help("name its program with --runner, and its arguments with --runner each")
            })?;
            namespaces()?;
            let program = bwrap::trusted(policy, program.as_ref(), &facts.path)?;
            Ok(Chosen { options: options.to_vec(), ..Chosen::new(Kind::Custom, program) })
        }
        Wanted::Auto => {
            bubblewrap().or_else(|first| landlock(false).map_err(|second| first.and(&second)))
        }
    }
}

impl Plan {
    /// Plans a run. Nothing is touched.
    ///
    /// # Errors
    /// The policy can't be compiled, or nothing here can confine the command.
    pub fn new(
        policy: Policy,
        argv: Vec<OsString>,
        cwd: PathBuf,
        facts: &Facts,
    ) -> Result<Self, Failure> {
        let rules = Rules::compile(&policy).map_err(|error| {
            Failure::new(Code::PolicyInvalid, "the policy can't be carried out").because(error)
        })?;
        let confined = policy.mode != Mode::DangerFullAccess;
        let chosen = choose(&policy, facts)?;
        let regions = if chosen.kind == Kind::Runner { Vec::new() } else { regions(&policy) };
        let scoped = confined && facts.can_scope;
        // Without mounts of our own, no socket can be told to be the run's.
        let guarded = confined && facts.can_guard && chosen.kind != Kind::Runner;
        let own = &facts.machine.own;
        let (options, enforcement) = match chosen.kind {
            Kind::Bubblewrap => (
                bwrap::options(&policy, &regions, &covering(&facts.machine, guarded)),
                Enforcement::of(&policy, scoped, guarded),
            ),
            Kind::Custom => (chosen.options, Enforcement::Full),
            Kind::Namespaces => {
                let mut gaps = Enforcement::of(&policy, scoped, true).gaps().to_vec();
                gaps.extend(landlock::gaps_with_namespaces(&facts.machine, guarded));
                (landlock::options(&policy, &regions, true), Enforcement::from_gaps(gaps))
            }
            Kind::Runner => (
                landlock::options(&policy, &regions, false),
                Enforcement::from_gaps(landlock::gaps_alone(&policy, chosen.abi)),
            ),
        };
        let mut gaps = enforcement.gaps().to_vec();
        if chosen.kind != Kind::Runner && resolve::denies_what_may_come(&policy) {
            gaps.push(Gap::LateDeniedPaths);
        }
        let (limits, unlimited) = limits::place(facts.limits);
        gaps.extend(&unlimited);
        let enforcement = Enforcement::from_gaps(gaps);
        let root = || PathBuf::from("/.stockade-must-not-be-writable");
        Ok(Self {
            rules: Arc::new(rules),
            options,
            user_namespace: !facts.can_mount && chosen.kind != Kind::Runner,
            check: match chosen.kind {
                Kind::Bubblewrap | Kind::Namespaces => confined.then(root),
                Kind::Runner => Some(landlock::proving_ground(&policy, own).ok_or_else(|| {
                    Failure::new(
                        Code::SandboxUnavailable,
                        "landlock: the command could write in every directory that it could be proved in",
                    )
                    .help("set STOCKADE_STATE to a directory that is no writable root")
                })?),
                // The operator vouches for it.
                Kind::Custom => None,
            },
            enforcement: if confined { enforcement } else { Enforcement::None(unlimited) },
            inside: match chosen.kind {
                Kind::Bubblewrap => bwrap::inside(&regions, &facts.machine),
                Kind::Namespaces | Kind::Custom => {
                    regions.iter().cloned().chain(["/dev/shm".into()]).collect()
                }
                Kind::Runner => Vec::new(),
            },
            hidden: landlock::hidden(own, &regions),
            terminal: facts.machine.terminal.clone(),
            sockets: facts.machine.allowed.clone(),
            kind: chosen.kind,
            program: chosen.program,
            policy,
            regions,
            limits,
            scoped,
            guarded,
            argv,
            cwd,
        })
    }

    /// Tells whether anything is refused.
    #[must_use]
    pub fn confined(&self) -> bool {
        self.policy.mode != Mode::DangerFullAccess
    }

    /// Returns the steps, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.user_namespace {
            steps.push(Step::UserNamespace);
        }
        if self.kind != Kind::Runner {
            steps.push(Step::MountNamespace);
        }
        steps.extend(self.regions.iter().cloned().map(Step::Mount));
        steps.extend(self.limits.iter().cloned().map(Step::Limit));
        steps.push(Step::Sandbox(self.program.clone(), self.options.clone()));
        steps.extend(self.check.clone().map(Step::ProveReadOnly));
        if self.confined() {
            steps.push(Step::NoTerminalInjection);
        }
        if self.scoped {
            steps.push(Step::Scope);
        }
        if self.guarded {
            steps.push(Step::GuardConnections);
        }
        steps.push(Step::Run(self.cwd.clone(), self.argv.clone()));
        steps
    }

    /// Returns the name of what confines.
    #[must_use]
    pub const fn backend(&self) -> &'static str {
        match self.kind {
            Kind::Bubblewrap => "bwrap",
            Kind::Namespaces | Kind::Runner => "landlock",
            Kind::Custom => "custom",
        }
    }

    /// Returns how many processes and threads are ours among those that a limit counts.
    #[must_use]
    pub(crate) fn overhead(&self) -> u64 {
        let back_end = match self.kind {
            // bubblewrap, or who waits for the namespace's first process, and the helper in it.
            Kind::Bubblewrap | Kind::Namespaces => 2,
            Kind::Runner => 1,
            // What the operator's own program adds isn't known.
            Kind::Custom => 3,
        };
        back_end + u64::from(self.guarded)
    }

    /// Returns where programs of the run may write by name, for messages.
    #[must_use]
    pub fn workspace(&self) -> &Path {
        &self.policy.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_list_that_can_be_compared() {
        let facts = Facts {
            machine: bwrap::Machine::default(),
            wanted: Wanted::Auto,
            path: "/usr/bin:/bin".into(),
            can_mount: false,
            can_scope: true,
            can_guard: true,
            limits: Limits::default(),
        };
        let policy = Policy::new(Mode::ReadOnly, "/w".into());
        let Ok(plan) = Plan::new(policy, vec!["a b".into()], "/w".into(), &facts) else {
            // Without bubblewrap there is no plan, by design.
            assert!(probe::find_program("bwrap", OsStr::new("/usr/bin:/bin")).is_none());
            return;
        };
        let text: Vec<String> = plan.steps().iter().map(Step::to_string).collect();
        assert_eq!(text[0], "create a user namespace for the caller alone");
        assert_eq!(text[2], "mount the file system over /w");
        assert!(text[3].contains("--ro-bind / /"));
        assert_eq!(text.last().unwrap(), "run in /w: 'a b'");
    }
}
