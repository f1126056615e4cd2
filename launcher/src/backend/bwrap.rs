//! bubblewrap: its arguments, all of them derived from the policy.
//!
//! The view inside: the host's root, read-only by the kernel; each region (a mount of our file system that stands at
//! its own path already) with writing left to the file system's rules, so that refusals are recorded; a minimal `/dev`,
//! a private `/proc`, an empty `/run` (nothing of the host's sockets, contract L11), Stockade's own directories hidden.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use stockade_policy::{Mode, Network, Policy, Rules};

use crate::error::{Code, Failure};
use crate::namespace::MACHINE_WIDE;
use crate::probe;

/// What a root user's command keeps (contract L12).
pub(crate) const KEPT_CAPABILITIES: [&str; 9] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_KILL",
    "CAP_SETFCAP",
    "CAP_NET_BIND_SERVICE",
];

/// What root's helper keeps besides, to look at the command's connections, and to take these two from the command.
const HELPER_CAPABILITIES: [&str; 2] = ["CAP_SYS_PTRACE", "CAP_SETPCAP"];

/// Directories below `/run` that hold programs and names, not sockets.
const HARMLESS_IN_RUN: [&str; 4] =
    ["/run/current-system", "/run/booted-system", "/run/wrappers", "/run/opengl-driver"];

/// What of this machine the arguments depend on.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Whether the caller is root.
    pub root: bool,
    /// Whether this caller has what `HELPER_CAPABILITIES` names, and the helper uses it.
    pub tracing: bool,
    /// The caller's `$XDG_RUNTIME_DIR`.
    pub runtime_directory: Option<PathBuf>,
    /// Files below `/run` that names outside of it lead to and that ordinary programs need (`resolv.conf`).
    pub run_files: Vec<PathBuf>,
    /// Directories of Stockade's own.
    pub own: Vec<PathBuf>,
    /// The terminal among the caller's standard streams, if it is a pseudo-terminal.
    pub terminal: Option<PathBuf>,
    /// Sockets of the host that have a name in the file system.
    pub sockets: Vec<PathBuf>,
    /// Sockets of the host that the operator lets the command reach.
    pub allowed: Vec<PathBuf>,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn look(own: Vec<PathBuf>) -> Self {
        let below_run = |path: &&PathBuf| path.starts_with("/run");
        Self {
            root: rustix::process::geteuid().is_root(),
            tracing: probe::can_trace(),
            runtime_directory: std::env::var_os("XDG_RUNTIME_DIR")
                .map(PathBuf::from)
                .as_ref()
                .filter(below_run)
                .cloned(),
            run_files: ["/etc/resolv.conf", "/etc/localtime", "/etc/hosts"]
                .iter()
                .filter_map(|path| std::fs::canonicalize(path).ok())
                .filter(|path| path.starts_with("/run") && path.is_file())
                .collect(),
            own: crate::config::there(own),
            terminal: terminal(),
            sockets: sockets(&std::fs::read("/proc/net/unix").unwrap_or_default()),
            allowed: Vec::new(),
        }
    }
}

/// Returns the pseudo-terminal that one of the standard streams is.
fn terminal() -> Option<PathBuf> {
    ["/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"]
        .iter()
        .filter_map(|link| std::fs::read_link(link).ok())
        .find(|path| path.starts_with("/dev/pts") && path.exists())
}

/// Returns the names of sockets in the kernel's table that are paths and still there.
fn sockets(table: &[u8]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| {
            let start = line.windows(2).position(|pair| pair == b" /")?;
            Some(PathBuf::from(OsStr::from_bytes(line.get(start + 1..)?)))
        })
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .filter(|path| {
            std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        })
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Finds bubblewrap. A copy in a place that a confined command may write isn't taken: an earlier command could have
/// put it there.
///
/// # Errors
/// There is none that can be trusted.
pub fn find(policy: &Policy, path: &OsStr) -> Result<PathBuf, Failure> {
    let unavailable =
        |why: String| Failure::new(Code::SandboxUnavailable, why).help(probe::bubblewrap_remedy());
    let Some(found) = probe::find_program("bwrap", path) else {
        return Err(unavailable("bubblewrap: `bwrap` is not on PATH".to_owned())
            .help("`stockade doctor` shows what else this machine needs"));
    };
    out_of_reach(policy, &found)
        .map_err(|why| unavailable(format!("bubblewrap: `{}` {why}", found.display())))
}

/// Finds the operator's own program, with the same care.
///
/// # Errors
/// It isn't there, or can't be trusted.
pub fn trusted(policy: &Policy, program: &Path, path: &OsStr) -> Result<PathBuf, Failure> {
    let invalid = |why: String| {
        Failure::new(
            Code::ConfigInvalid,
            format!("the custom runner `{}` {why}", program.display()),
        )
        .help("name a program that is out of the command's reach, by an absolute path or on PATH")
    };
    let found = if program.is_absolute() {
        Some(program.to_owned()).filter(|program| probe::is_executable(program))
    } else {
        program.to_str().and_then(|name| probe::find_program(name, path))
    };
    let found = found.ok_or_else(|| invalid("isn't a program".to_owned()))?;
    out_of_reach(policy, &found).map_err(invalid)
}

/// Returns the canonical path of a program that the command can't have put there.
fn out_of_reach(policy: &Policy, program: &Path) -> Result<PathBuf, String> {
    let program = std::fs::canonicalize(program).map_err(|error| error.to_string())?;
    let mut roots = policy.writable_roots();
    roots.push(policy.root.clone());
    let rules = Rules::compile(policy).map_err(|error| error.to_string())?;
    let within = roots.iter().any(|root| program.starts_with(root));
    if policy.mode != Mode::DangerFullAccess && (within || rules.writable_name(&program).is_some())
    {
        return Err("lies where the command may write, so it can't be trusted".to_owned());
    }
    Ok(program)
}

/// Returns bubblewrap's options; the helper's command line follows them.
#[must_use]
pub fn options(policy: &Policy, regions: &[PathBuf], machine: &Machine) -> Vec<OsString> {
    let mut list = Options(Vec::new());
    // Without `--die-with-parent`: see `Program::lingers`.
    list.flags(&["--unshare-pid", "--as-pid-1"]);
    if policy.mode == Mode::DangerFullAccess {
        list.paths("--dev-bind", "/", "/").path("--proc", "/proc");
    } else {
        confine(&mut list, regions, machine);
    }
    if policy.network == Network::None {
        list.flags(&["--unshare-net"]);
    }
    list.0
}

/// Returns directories of the file systems that only the run can reach, and that it can make sockets in.
#[must_use]
pub fn inside(regions: &[PathBuf], machine: &Machine) -> Vec<PathBuf> {
    let private = ["/dev/shm".into()].into_iter().chain(machine.runtime_directory.clone());
    regions.iter().cloned().chain(private).collect()
}

fn confine(list: &mut Options, regions: &[PathBuf], machine: &Machine) {
    list.flags(&["--unshare-ipc"]);
    list.paths("--ro-bind", "/", "/").path("--dev", "/dev").path("--proc", "/proc");
    // What lies in `/proc` and belongs to no process. bubblewrap leaves `/proc/sys` as it is where it runs as root, and there is
    // the path of a program that the kernel runs outside (`core_pattern`).
    for path in MACHINE_WIDE.iter().filter_map(|path| path.to_str().ok()) {
        list.paths("--ro-bind-try", path, path);
    }
    list.flags(&["--perms", "1777"]).path("--tmpfs", "/dev/shm");
    list.path("--tmpfs", "/run");
    for path in HARMLESS_IN_RUN {
        list.paths("--ro-bind-try", path, path);
    }
    for path in &machine.run_files {
        list.paths("--ro-bind", path, path);
    }
    if let Some(directory) = &machine.runtime_directory {
        list.flags(&["--perms", "0700"]).path("--tmpfs", directory);
    }
    for region in regions {
        list.paths("--bind", region, region);
    }
    // Inside a region the file system's rules hide them.
    for directory in &machine.own {
        if !regions.iter().any(|region| directory.starts_with(region)) {
            list.flags(&["--perms", "0000"]).path("--tmpfs", directory);
            list.path("--remount-ro", directory);
        }
    }
    // The file system serves no socket of the host's, `/run` and `/dev` are ours: what is left is covered one by one.
    let replaced = ["/run", "/dev", "/proc"].map(Path::new);
    let covered = |socket: &PathBuf| {
        regions.iter().chain(&machine.own).any(|place| socket.starts_with(place))
            || replaced.iter().any(|place| socket.starts_with(place))
    };
    for socket in machine.sockets.iter().filter(|socket| !covered(socket)) {
        if !machine.allowed.contains(socket) {
            list.paths("--ro-bind", "/dev/null", socket);
        }
    }
    for socket in machine.allowed.iter().filter(|socket| covered(socket)) {
        list.paths("--bind", socket, socket);
    }
    if let Some(terminal) = &machine.terminal {
        // Under the one name that ttyname(3) finds it by; other terminals stay out of sight.
        list.paths("--dev-bind", terminal, "/dev/console");
    }
    list.path("--remount-ro", "/run").path("--remount-ro", "/dev");
    if machine.root {
        list.flags(&["--cap-drop", "ALL"]);
        let helper = HELPER_CAPABILITIES.iter().filter(|_| machine.tracing);
        for capability in KEPT_CAPABILITIES.iter().chain(helper) {
            list.flags(&["--cap-add", capability]);
        }
    }
}

struct Options(Vec<OsString>);

impl Options {
    fn flags(&mut self, flags: &[&str]) -> &mut Self {
        self.0.extend(flags.iter().map(OsString::from));
        self
    }

    fn path(&mut self, option: &str, path: impl AsRef<Path>) -> &mut Self {
        self.0.push(option.into());
        self.0.push(path.as_ref().into());
        self
    }

    fn paths(&mut self, option: &str, from: impl AsRef<Path>, to: impl AsRef<Path>) -> &mut Self {
        self.path(option, from);
        self.0.push(to.as_ref().into());
        self
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn has(options: &[OsString], wanted: &[&str]) -> bool {
        options.windows(wanted.len()).any(|window| window.iter().zip(wanted).all(|(a, b)| a == b))
    }

    #[test]
    fn only_regions_are_writable_and_everything_comes_from_the_policy() {
        let mut policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        policy.network = Network::None;
        let regions = [PathBuf::from("/w"), PathBuf::from("/tmp")];
        let machine = Machine {
            root: true,
            own: vec!["/home/u/.local/state/stockade".into(), "/tmp/state".into()],
            ..Machine::default()
        };
        let options = options(&policy, &regions, &machine);
        let binds: Vec<_> = options
            .iter()
            .zip(options.iter().skip(1))
            .filter(|(option, _)| *option == "--bind" || *option == "--dev-bind")
            .map(|(_, path)| path.to_str().unwrap())
            .collect();
        assert_eq!(binds, ["/w", "/tmp"]);
        assert!(has(&options, &["--ro-bind", "/", "/"]));
        assert!(has(&options, &["--tmpfs", "/home/u/.local/state/stockade"]));
        assert!(!has(&options, &["--tmpfs", "/tmp/state"]));
        assert!(has(&options, &["--cap-drop", "ALL"]));
        assert!(!options.iter().any(|option| option == "CAP_SYS_ADMIN"));
        assert!(options.iter().any(|option| option == "--unshare-net"));
    }

    #[test]
    fn sockets_of_the_host_are_covered_where_nothing_else_does() {
        let base = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(base.path()).unwrap();
        let socket = base.join("s ock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::fs::write(base.join("plain"), "").unwrap();
        let line = |path: &str| format!("0: 2 0 10000 1 1 77 {path}\n");
        let table = [
            "Num RefCount Protocol Flags Type St Inode Path\n".to_owned(),
            line(socket.to_str().unwrap()),
            line(base.join("plain").to_str().unwrap()),
            line(base.join("gone").to_str().unwrap()),
            line("@/abstract"),
            "0: 2 0 0 1 1 78\n".to_owned(),
        ];
        let sockets = sockets(table.concat().as_bytes());
        assert_eq!(sockets, std::slice::from_ref(&socket));
        let policy = Policy::new(Mode::WorkspaceWrite, "/w".into());
        let machine = Machine { sockets, ..Machine::default() };
        let path = socket.to_str().unwrap();
        let outside = options(&policy, &["/w".into()], &machine);
        assert!(has(&outside, &["--ro-bind", "/dev/null", path]));
        let inside = options(&policy, std::slice::from_ref(&base), &machine);
        assert!(!has(&inside, &["--ro-bind", "/dev/null", path]));
    }

    #[test]
    fn a_bubblewrap_that_the_command_could_replace_is_not_taken() {
        let base = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(base.path()).unwrap();
        let fake = base.join("bwrap");
        std::fs::write(&fake, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        let policy = Policy::new(Mode::WorkspaceWrite, base.clone());
        let failure = find(&policy, base.as_os_str()).unwrap_err();
        assert_eq!(failure.code(), Code::SandboxUnavailable);
        let elsewhere = Policy::new(Mode::WorkspaceWrite, "/nonexistent".into());
        assert_eq!(find(&elsewhere, base.as_os_str()).unwrap(), fake);
    }
}
