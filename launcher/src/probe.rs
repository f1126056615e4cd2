//! What this machine can enforce, tried for real, each with what to do where it can't.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::error::{Code, Failure};
use crate::namespace::{Namespace, NamespaceError, Setup, Step};
use crate::state;

/// How long one probe may take.
const LIMIT: Duration = Duration::from_secs(5);

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It works.
    Ok,
    /// It doesn't, and something is slower or weaker for it.
    Warning,
    /// It doesn't, and Stockade can't run without it.
    Failed,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        })
    }
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its stable name.
    pub id: &'static str,
    /// How it ended.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What a person can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn ok(id: &'static str, detail: impl Into<String>) -> Self {
        Self { id, status: Status::Ok, detail: detail.into(), remedy: None }
    }

    fn bad(
        id: &'static str,
        status: Status,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { id, status, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

/// Tries everything that Stockade builds on.
#[must_use]
pub fn all() -> Vec<Check> {
    let landlock = landlock();
    let mut bubblewrap = bubblewrap();
    if bubblewrap.status == Status::Failed && landlock.status == Status::Ok {
        // The chain goes on (contract L2).
        bubblewrap.status = Status::Warning;
        bubblewrap.detail.push_str("; Landlock takes its place");
    }
    vec![
        kernel(),
        proc(),
        fuse_device(),
        namespaces(),
        bubblewrap,
        fusermount(),
        passthrough(),
        landlock,
        descriptors(),
        state_directory(),
    ]
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    Check::ok(
        "kernel",
        format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
    )
}

fn proc() -> Check {
    const ID: &str = "proc";
    if crate::caller::has_proc() {
        Check::ok(ID, "/proc is mounted")
    } else {
        let remedy = crate::caller::PROC_REMEDY;
        Check::bad(ID, Status::Failed, "`/proc` isn't mounted here", remedy)
    }
}

fn fuse_device() -> Check {
    const ID: &str = "fuse-device";
    let path = Path::new("/dev/fuse");
    let mode = match fs::metadata(path) {
        Ok(metadata) => metadata.permissions().mode() & 0o7777,
        Err(error) => {
            return Check::bad(
                ID,
                Status::Failed,
                format!("/dev/fuse: {error}"),
                fuse_device_remedy(error.raw_os_error()),
            );
        }
    };
    match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Check::ok(ID, format!("/dev/fuse (mode {mode:04o}) can be opened")),
        Err(error) => {
            let error = io::Error::from(error);
            Check::bad(
                ID,
                Status::Failed,
                format!("/dev/fuse (mode {mode:04o}): {error}"),
                fuse_device_remedy(error.raw_os_error()),
            )
        }
    }
}

/// Returns what to do when `/dev/fuse` can't be opened.
#[must_use]
pub fn fuse_device_remedy(errno: Option<i32>) -> String {
    match errno {
        Some(libc::ENOENT) if in_container() => {
            "start the container with `--device /dev/fuse`".to_owned()
        }
        Some(libc::ENOENT) => "load the kernel module as root: `modprobe fuse`".to_owned(),
        Some(libc::EACCES) => {
            "let users open it, as distributions do, as root: `chmod 0666 /dev/fuse`".to_owned()
        }
        Some(libc::EPERM) => "the device is forbidden here (a container's device list): allow \
                              it, for docker with `--device /dev/fuse`"
            .to_owned(),
        Some(_) | None => "see `dmesg` for what the kernel says about fuse".to_owned(),
    }
}

fn in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|path| Path::new(path).exists())
}

/// Tells whether this process can mount without a user namespace.
#[must_use]
pub fn can_mount() -> bool {
    geteuid().is_root()
        && rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Tells whether root's helper can look at every process inside.
#[must_use]
pub fn can_trace() -> bool {
    geteuid().is_root()
        && rustix::thread::capabilities(None).is_ok_and(|sets| {
            sets.permitted.contains(CapabilitySet::SYS_PTRACE | CapabilitySet::SETPCAP)
        })
}

fn try_namespaces() -> io::Result<Namespace> {
    let user = (!can_mount()).then(|| (geteuid().as_raw(), rustix::process::getegid().as_raw()));
    let setup = Setup {
        user,
        mounts: true,
        regions: Vec::new(),
        kept: Vec::new(),
        confine: None,
        program: None,
    };
    Namespace::start(setup)
}

/// Really makes the namespaces that everything else needs, and opens `/dev/fuse`.
///
/// # Errors
/// Says which step failed, and the cure.
pub fn check_namespaces() -> Result<(), Failure> {
    let unavailable = |why: String| Failure::new(Code::SandboxUnavailable, why);
    if let Err(error) = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    {
        let remedy = fuse_device_remedy(Some(error.raw_os_error()));
        return Err(unavailable(format!("/dev/fuse can't be opened: {error}")).help(remedy));
    }
    let made = try_namespaces()
        .map_err(|error| unavailable(format!("no process can be started: {error}")))?;
    made.devices().map(drop).map_err(|error| {
        let remedy = namespace_remedy(&error);
        unavailable(format!("{error}: {}", error.source)).help(remedy)
    })
}

/// Really confines a child with Landlock, within the time limit.
///
/// # Errors
/// Says what went otherwise.
pub fn landlock_confines() -> Result<(), String> {
    let program = Path::new("/proc/self/exe");
    let mut command = Command::new(program);
    command.args([crate::runner::FLAG, "--probe"]).env_clear();
    match output(&mut command) {
        Ok((Some(0), text)) if text.lines().any(|line| line == "probe ok") => Ok(()),
        Ok((_, text)) => Err(text.lines().last().unwrap_or("it did not start").to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Tells whether something really works, asking again only where the answer isn't known: successes are noted in the state
/// directory, under a name that stands for the programs, the kernel since it started, the user and the surroundings.
///
/// # Errors
/// As `attempt`; failures are not noted.
pub fn remembered<E>(
    state: Option<&Path>,
    what: &str,
    program: Option<&Path>,
    attempt: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let note = state.and_then(|state| {
        let key = surroundings(what, program)?;
        Some((state.join("verdicts").join(key), state.join("verdicts")))
    });
    if let Some((note, _)) = &note
        && note.exists()
    {
        return Ok(());
    }
    attempt()?;
    if let Some((note, directory)) = note {
        // A note that can't be made costs the next run some milliseconds.
        let _unnoted = state::create(&directory).map(|()| File::create(note));
    }
    Ok(())
}

/// Returns a name for everything that a verdict depends on.
fn surroundings(what: &str, program: Option<&Path>) -> Option<String> {
    use std::hash::{Hash, Hasher};
    use std::os::unix::fs::MetadataExt;
    let mut hasher = std::hash::DefaultHasher::new();
    what.hash(&mut hasher);
    if let Some(program) = program {
        let metadata = fs::metadata(program).ok()?;
        (program, metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
            .hash(&mut hasher);
    }
    fs::read("/proc/sys/kernel/random/boot_id").ok()?.hash(&mut hasher);
    for namespace in ["user", "mnt", "pid"] {
        fs::read_link(format!("/proc/self/ns/{namespace}")).ok()?.hash(&mut hasher);
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    for name in ["Uid:", "CapEff:", "NoNewPrivs:", "Seccomp:"] {
        status.lines().find(|line| line.starts_with(name)).hash(&mut hasher);
    }
    let policy = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    fs::read("/proc/self/attr/current").ok().hash(&mut hasher);
    fs::read(policy).ok().hash(&mut hasher);
    fs::read("/proc/sys/user/max_user_namespaces").ok().hash(&mut hasher);
    Some(format!("{what}-{:016x}", hasher.finish()))
}

fn namespaces() -> Check {
    const ID: &str = "namespaces";
    let what = if !can_mount() { "user and mount namespace" } else { "mount namespace" };
    let made = try_namespaces();
    match made {
        Ok(namespace) => match namespace.devices() {
            Ok(_) => Check::ok(ID, format!("a {what} can be made")),
            Err(error) => {
                let remedy = namespace_remedy(&error);
                Check::bad(ID, Status::Failed, format!("{error}: {}", error.source), remedy)
            }
        },
        Err(error) => {
            Check::bad(ID, Status::Failed, error.to_string(), "end some processes and try again")
        }
    }
}

/// Returns what to do when a step of making the namespaces fails.
#[must_use]
pub fn namespace_remedy(error: &NamespaceError) -> String {
    let number =
        |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    match error.step {
        Step::OpenDevice => return fuse_device_remedy(error.source.raw_os_error()),
        Step::OpenRegion | Step::RegionMoved => {
            return "the directory was moved or replaced while starting; try again".to_owned();
        }
        Step::UserNamespace
        | Step::DenySetgroups
        | Step::UidMap
        | Step::GidMap
        | Step::MountNamespace
        | Step::PrivateMounts
        | Step::DieWithParent
        | Step::Mount
        | Step::ReadOnly
        | Step::Cover
        | Step::OtherNamespaces
        | Step::Proc
        | Step::Send
        | Step::Ready
        | Step::Exec => {}
    }
    if !crate::caller::has_proc() {
        return crate::caller::PROC_REMEDY.to_owned();
    }
    if error.step == Step::UserNamespace && error.source.raw_os_error() == Some(libc::ENOSPC) {
        let most = number("/proc/sys/user/max_user_namespaces").unwrap_or_default();
        return format!(
            "no more user namespaces may be made here: whoever made this one set the limit (/proc/sys/user/max_user_namespaces is {most}); \
             start stockade outside of that sandbox, or raise the limit there"
        );
    }
    if number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        return "allow user namespaces, as root: `sysctl -w kernel.unprivileged_userns_clone=1`"
            .to_owned();
    }
    if number("/proc/sys/user/max_user_namespaces") == Some(0) {
        return "allow user namespaces, as root: `sysctl -w user.max_user_namespaces=15000`"
            .to_owned();
    }
    if number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return "AppArmor restricts user namespaces here; as root, give stockade a profile with \
                the `userns` rule, or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
            .to_owned();
    }
    if in_container() {
        return "this container forbids namespaces: start it with `--security-opt \
                seccomp=unconfined --security-opt apparmor=unconfined` or with a profile that \
                allows unshare and mount"
            .to_owned();
    }
    "a seccomp filter or security module forbids it; run stockade outside of it".to_owned()
}

/// Looks for a program in `path` (a `PATH` value), skipping entries that aren't absolute, and this very program under another's name.
#[must_use]
pub fn find_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    path.as_bytes()
        .split(|&byte| byte == b':')
        .map(|directory| Path::new(OsStr::from_bytes(directory)).join(name))
        .filter(|candidate| candidate.is_absolute())
        .find(|candidate| is_executable(candidate) && !is_this(candidate))
}

fn is_this(candidate: &Path) -> bool {
    std::env::current_exe()
        .is_ok_and(|this| fs::canonicalize(candidate).is_ok_and(|candidate| candidate == this))
}

/// Tells whether this process may execute a file.
#[must_use]
pub fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Returns how bubblewrap is installed on this machine.
#[must_use]
pub fn bubblewrap_remedy() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let family: Vec<&str> = release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .collect();
    let install = [
        (["debian", "ubuntu"].as_slice(), "apt-get install bubblewrap"),
        (&["fedora", "rhel", "centos"], "dnf install bubblewrap"),
        (&["arch"], "pacman -S bubblewrap"),
        (&["alpine"], "apk add bubblewrap"),
        (&["suse", "opensuse"], "zypper install bubblewrap"),
        (&["nixos"], "nix-env -iA nixos.bubblewrap"),
    ]
    .into_iter()
    .find(|(ids, _)| family.iter().any(|id| ids.contains(id)))
    .map_or("your package manager: the package is `bubblewrap`", |(_, command)| command);
    format!("install bubblewrap (as root): {install}")
}

fn bubblewrap() -> Check {
    const ID: &str = "bubblewrap";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(program) = find_program("bwrap", &path) else {
        return Check::bad(ID, Status::Failed, "`bwrap` is not on PATH", bubblewrap_remedy());
    };
    let version = match output(Command::new(&program).arg("--version")) {
        Ok((_, text)) => text.trim().to_owned(),
        Err(error) => {
            return Check::bad(
                ID,
                Status::Failed,
                format!("{}: {error}", program.display()),
                bubblewrap_remedy(),
            );
        }
    };
    match confine(&program) {
        Ok(()) => {
            Check::ok(ID, format!("{} ({version}) refuses a write outside", program.display()))
        }
        Err(why) => Check::bad(
            ID,
            Status::Failed,
            format!("{} ({version}): {why}", program.display()),
            namespace_remedy(&NamespaceError {
                step: Step::MountNamespace,
                region: None,
                source: io::ErrorKind::PermissionDenied.into(),
            }),
        ),
    }
}

/// Really confines something: a write into a directory that can be written outside must fail inside.
///
/// # Errors
/// Says what went otherwise.
pub fn confine(bwrap: &Path) -> Result<(), String> {
    let directory = tempfile::Builder::new()
        .prefix("stockade-probe-")
        .tempdir()
        .map_err(|error| format!("can't make a directory for the probe: {error}"))?;
    let witness = directory.path().join("written");
    File::create(&witness)
        .and_then(|_| fs::remove_file(&witness))
        .map_err(|error| format!("can't write a probe file outside: {error}"))?;
    let mut command = Command::new(bwrap);
    command
        .args(["--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc"])
        .args(["--die-with-parent", "--", "/bin/sh", "-c"])
        // The first write must work, so that a shell that can't write at all isn't taken for a sandbox.
        .arg("echo begun || exit 3; if (: > \"$1\") 2>/dev/null; then exit 4; fi; exit 0")
        .arg("probe")
        .arg(&witness)
        .env_clear();
    let (status, text) = output(&mut command).map_err(|error| error.to_string())?;
    if witness.exists() {
        return Err("a write outside went through".to_owned());
    }
    match status {
        Some(0) if text.starts_with("begun") => Ok(()),
        Some(0) => Err("the probe did not run".to_owned()),
        Some(4) => Err("a write outside seemed to succeed".to_owned()),
        Some(_) | None => Err(text.lines().last().unwrap_or("it did not start").to_owned()),
    }
}

/// Runs a command to its end, within the time limit; returns its exit code and what it wrote (both streams).
fn output(command: &mut Command) -> io::Result<(Option<i32>, String)> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .current_dir("/")
        .spawn()?;
    // The command holds the writing ends.
    *command = Command::new("true");
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within five seconds"));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut text = Vec::new();
    reader.by_ref().take(64 << 10).read_to_end(&mut text)?;
    Ok((status.code(), String::from_utf8_lossy(&text).into_owned()))
}

fn fusermount() -> Check {
    const ID: &str = "fusermount3";
    let path = std::env::var_os("PATH").unwrap_or_default();
    match find_program("fusermount3", &path) {
        Some(program) => Check::ok(ID, program.display().to_string()),
        None if can_mount() => Check::ok(ID, "not found; root mounts without it"),
        None => Check::bad(
            ID,
            Status::Warning,
            "`fusermount3` is not on PATH: `stockade run` works without it, `stockade mount` \
             needs it for users other than root",
            "install the package `fuse3`",
        ),
    }
}

fn passthrough() -> Check {
    const ID: &str = "passthrough";
    let config = fs::read("/proc/config.gz").is_ok();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let known = if config { "" } else { " (by its version)" };
    if version < (6, 9) {
        return Check::bad(
            ID,
            Status::Warning,
            format!("kernel {release} has no FUSE passthrough: data goes through the server"),
            "a kernel from 6.9 on reads and writes files at native speed for root",
        );
    }
    if can_mount() {
        Check::ok(ID, format!("kernel {release} has it{known}, and this user may use it"))
    } else {
        Check::bad(
            ID,
            Status::Warning,
            "only root may use it: data goes through the server",
            "nothing to do; as root, files are read and written at native speed",
        )
    }
}

fn landlock() -> Check {
    const ID: &str = "landlock";
    match crate::sys::landlock_abi() {
        Ok(abi) => Check::ok(ID, format!("ABI {abi}")),
        Err(error) => Check::bad(
            ID,
            Status::Warning,
            format!("not available: {error}"),
            "boot with `landlock` in the kernel's `lsm=` list",
        ),
    }
}

fn descriptors() -> Check {
    const ID: &str = "descriptors";
    const WANTED: u64 = 4096;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let hard = limit.maximum.map_or_else(|| "unlimited".to_owned(), |hard| hard.to_string());
    if limit.maximum.is_none_or(|hard| hard >= WANTED) {
        Check::ok(ID, format!("up to {hard} open files"))
    } else {
        Check::bad(
            ID,
            Status::Warning,
            format!("at most {hard} open files"),
            "raise the hard limit: `ulimit -Hn 65536` as root, or `nofile` in limits.conf",
        )
    }
}

fn state_directory() -> Check {
    const ID: &str = "state";
    let directory = match state::directory() {
        Ok(directory) => directory,
        Err(failure) => {
            return Check::bad(
                ID,
                Status::Failed,
                failure.to_string(),
                failure.help_lines().join("; "),
            );
        }
    };
    // Look only: making it belongs to the first run.
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::access(existing, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Check::ok(ID, directory.display().to_string()),
        Err(error) => Check::bad(
            ID,
            Status::Failed,
            format!("{}: {}: {error}", directory.display(), existing.display()),
            "set STOCKADE_STATE to an absolute path of a directory that you can write",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_in_absolute_directories_only() {
        assert_eq!(find_program("sh", OsStr::new(".:bin:/nonexistent")), None);
        let found = find_program("sh", OsStr::new(".:/bin")).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
    }

    #[test]
    fn a_program_that_confines_nothing_is_no_sandbox() {
        let directory = tempfile::tempdir().unwrap();
        let fake = directory.path().join("bwrap");
        fs::write(&fake, "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"\n")
            .unwrap();
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(confine(&fake), Err("a write outside went through".to_owned()));
        fs::write(&fake, "#!/bin/sh\nexit 0\n").unwrap();
        assert_eq!(confine(&fake), Err("the probe did not run".to_owned()));
    }
}
