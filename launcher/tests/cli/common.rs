//! What the tests of the command share: a workspace, a state directory, and the callers it is tried as.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A caller with a directory of their own, outside of `/tmp` so that not everything is below one writable root.
pub struct Caller {
    pub name: &'static str,
    uid: Option<u32>,
    base: TempDir,
    binary: PathBuf,
}

/// Returns who the command is tried as: the current user, and an ordinary one when that is root.
pub fn callers() -> Vec<Caller> {
    let root = rustix::process::geteuid().is_root();
    let mut callers = vec![Caller::new("current user", None)];
    if root {
        callers.push(Caller::new("ordinary user", Some(48_211)));
    }
    callers
}

impl Caller {
    pub fn new(name: &'static str, uid: Option<u32>) -> Self {
        let place = ["/var/tmp", "/tmp"].into_iter().find(|path| Path::new(path).is_dir()).unwrap();
        let base = tempfile::Builder::new().prefix("stk").tempdir_in(place).unwrap();
        let binary = base.path().join("stockade");
        // A hard link or symlink would keep the permissions of the build directory's parents in play.
        copy_program(Path::new(env!("CARGO_BIN_EXE_stockade")), &binary);
        for directory in ["", "w", "state", "home"] {
            let path = base.path().join(directory);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            if let Some(uid) = uid {
                std::os::unix::fs::chown(&path, Some(uid), Some(uid)).unwrap();
            }
        }
        Self { name, uid, base, binary }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    pub fn workspace(&self) -> PathBuf {
        self.path("w")
    }

    /// Returns `stockade` with these arguments, in the workspace and with an environment of its own.
    pub fn stockade<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.program(&self.binary);
        command.args(args);
        command
    }

    /// Returns a program, in the workspace and with an environment of its own.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.path("home"))
            .env("STOCKADE_STATE", self.path("state"))
            .stdin(Stdio::null());
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    /// Runs `stockade run OPTIONS -- COMMAND` and returns what it printed and its result.
    pub fn run(&self, options: &[&str], command: &[&str]) -> (Output, Value) {
        let file = self.path("state/result.json");
        let _old = std::fs::remove_file(&file);
        let mut args = vec!["run", "--result", file.to_str().unwrap()];
        args.extend(options);
        args.push("--");
        args.extend(command);
        let output = finish(self.stockade(args).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let text = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("{}: no result: {error}: {output:?}", self.name));
        (output, serde_json::from_slice(&text).unwrap())
    }
}

/// Copies a program, in another process: what a test beside this starts meanwhile would hold a file of ours open for
/// writing, and then it can't be run.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Runs a command to its end, and kills it when that takes too long.
pub fn finish(command: &mut Command) -> Output {
    let mut child = command.spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let ended = waiting.recv_timeout(Duration::from_secs(60));
        if ended == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    });
    use std::io::Read;
    let mut stderr = Vec::new();
    let errors = child.stderr.take();
    let reader = std::thread::spawn(move || {
        if let Some(mut errors) = errors {
            errors.read_to_end(&mut stderr).unwrap();
        }
        stderr
    });
    let mut stdout = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut stdout).unwrap();
    }
    let status = child.wait().unwrap();
    drop(done);
    watchdog.join().unwrap();
    Output { status, stdout, stderr: reader.join().unwrap() }
}

/// Waits until a condition holds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tells whether any process has this text in its command line.
pub fn is_running(marker: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.windows(marker.len()).any(|window| window == marker.as_bytes()))
    })
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
