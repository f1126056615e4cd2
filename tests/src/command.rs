//! Commands with a deadline, in a process group of their own.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::identity::Ids;
use crate::leak;

/// How long a command may take unless its test says otherwise.
const DEADLINE: Duration = Duration::from_secs(120);

/// A command to be started in a world.
#[derive(Debug)]
#[must_use = "an invocation does nothing until it is run"]
pub struct Invocation {
    argv: Vec<OsString>,
    directory: PathBuf,
    environment: Vec<(OsString, OsString)>,
    input: Option<Vec<u8>>,
    deadline: Duration,
    marker: String,
    ids: Ids,
    private_tmp: Option<PathBuf>,
}

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit code, or 128 plus the signal's number, as a shell would say it.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// A command that was started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    started: Instant,
    deadline: Duration,
    marker: String,
    shown: String,
}

impl Invocation {
    pub(crate) fn new(
        program: impl Into<OsString>,
        directory: &Path,
        environment: Vec<(OsString, OsString)>,
        marker: &str,
        ids: Ids,
    ) -> Self {
        Self {
            argv: vec![program.into()],
            directory: directory.to_owned(),
            environment,
            input: None,
            deadline: DEADLINE,
            marker: marker.to_owned(),
            ids,
            private_tmp: None,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.argv.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.argv.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(known, _)| known != name.as_ref());
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets several environment variables.
    pub fn envs(self, all: &[(&str, &str)]) -> Self {
        all.iter().fold(self, |this, (name, value)| this.env(name, value))
    }

    /// Sets the working directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets what stands on its standard input; without it, the input is `/dev/null`.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Sets how long it may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs it in a mount namespace whose `/tmp` is the given directory. Only root can.
    pub(crate) fn private_tmp(mut self, directory: PathBuf) -> Self {
        self.private_tmp = Some(directory);
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it can't be started or outlives its deadline.
    pub fn run(self) -> Output {
        self.spawn().wait()
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn spawn(self) -> Running {
        let shown =
            self.argv.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut command = if let Some(tmp) = &self.private_tmp {
            // Only root can make the mount, so the identity is taken after it.
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "--", "sh", "-c"]);
            command.arg(
                "mount --bind \"$1\" /tmp && uid=$2 gid=$3 && shift 3 && \
                 exec setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups -- \"$@\"",
            );
            command.args(["sh".as_ref(), tmp.as_os_str()]);
            command.args([self.ids.uid.to_string(), self.ids.gid.to_string()]);
            command.args(&self.argv);
            command
        } else {
            let mut command = Command::new(&self.argv[0]);
            command.args(&self.argv[1..]);
            if rustix::process::geteuid().is_root() {
                // Where the uid is set by root, the supplementary groups are dropped too.
                command.uid(self.ids.uid).gid(self.ids.gid);
            }
            command
        };
        command
            .current_dir(&self.directory)
            .env_clear()
            .envs(self.environment)
            .stdin(if self.input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let started = Instant::now();
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("failed to start `{shown}`: {error}"));
        if let (Some(input), Some(mut pipe)) = (self.input, child.stdin.take()) {
            // A command needn't read its input.
            thread::spawn(move || drop(pipe.write_all(&input)));
        }
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        Running {
            child,
            stdout,
            stderr,
            started,
            deadline: self.deadline,
            marker: self.marker,
            shown,
        }
    }
}

impl Running {
    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to it alone.
    ///
    /// # Panics
    /// When it can't be sent.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process is there");
    }

    /// Sends a signal to its process group, as a terminal's Ctrl-C does.
    ///
    /// # Panics
    /// When it can't be sent.
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(self.pid(), signal).expect("the process group is there");
    }

    /// Waits until `ready` holds.
    ///
    /// # Panics
    /// When the command ends, or its deadline passes, before that.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) {
        while !ready() {
            let ended = self.child.try_wait().expect("the child can be waited for");
            if ended.is_some() || self.started.elapsed() > self.deadline {
                let stderr = self.kill();
                panic!("`{}` ended or was too slow before {what}; stderr: {stderr}", self.shown);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it outlives its deadline, or a descendant keeps its output open.
    #[must_use]
    pub fn wait(mut self) -> Output {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                break status;
            }
            if self.started.elapsed() > self.deadline {
                let stderr = self.kill();
                panic!("`{}` outlived {:?}; stderr: {stderr}", self.shown, self.deadline);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let end = Duration::from_secs(10);
        let (stdout, stderr) = (self.stdout.recv_timeout(end), self.stderr.recv_timeout(end));
        let (Ok(stdout), Ok(stderr)) = (stdout, stderr) else {
            self.kill();
            panic!("a descendant of `{}` kept its output open", self.shown);
        };
        Output { code: code(status), signal: status.signal(), stdout, stderr }
    }

    /// Kills everything that it started and returns what it had said on standard error.
    fn kill(&mut self) -> String {
        // It may have ended by itself just now.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        leak::kill_marked(&self.marker);
        drop(self.child.wait());
        let stderr = self.stderr.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
        String::from_utf8_lossy(&stderr).into_owned()
    }
}

impl Output {
    /// Returns its standard output as text.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns its standard error as text.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Fails unless it ended with the given code.
    ///
    /// # Panics
    /// With everything that it said.
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(
            self.code,
            code,
            "exit code\nstdout: {}\nstderr: {}",
            self.stdout(),
            self.stderr()
        );
        self
    }

    /// Fails unless it ended with 0.
    ///
    /// # Panics
    /// With everything that it said.
    #[track_caller]
    pub fn assert_success(&self) -> &Self {
        self.assert_code(0)
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    let mut pipe = pipe.expect("the stream is a pipe");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is.
        drop(pipe.read_to_end(&mut bytes));
        drop(sender.send(bytes));
    });
    receiver
}
