//! The helper inside the sandbox: process 1 of the run's PID namespace.
//!
//! bubblewrap starts it (the launcher's own program, through an inherited descriptor, since its path may be hidden
//! inside). It proves that a forbidden write fails, starts the command in the state that the caller was in, passes
//! signals on, reaps what is orphaned, and reports how the command ended. It isn't dumpable, and process 1 ignores
//! what the command may send it, so the command can neither read, trace nor end it.
//!
//! It reports over a socket that the command never sees (contract L5).

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions};

use crate::connect::{self, Allowed};
use crate::filter::{self, Sockets};
use crate::spec::{Ask, HelperStep, Spec, Told, receive_descriptors};
use crate::sys::seccomp::{Filter, Listener};
use crate::sys::{self, Arrived, CStringArray, SignalFd, SignalSet};

/// The first argument of the helper.
pub const FLAG: &str = "--stockade-init";

/// How long a signal that the whole process group got suppresses the same signal passed on by the launcher.
const SAME: Duration = Duration::from_millis(200);

/// Runs the helper if the command line asks for it.
#[must_use]
pub fn main_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    (args.next()? == FLAG).then(|| {
        let socket = args.next().and_then(|text: OsString| text.to_str()?.parse().ok());
        match socket.ok_or(Errno::INVAL.into()).and_then(sys::inherited) {
            Ok(socket) => run(&socket),
            Err(_) => ExitCode::from(125),
        }
    })
}

type Failed = (HelperStep, Errno);

fn run(socket: &OwnedFd) -> ExitCode {
    let failed = |(step, errno): Failed| {
        // A launcher that is gone takes this process along; nobody is left to tell.
        let _gone = Told::Failed(step, errno.raw_os_error()).send(socket.as_fd());
        ExitCode::from(125)
    };
    match start(socket) {
        Ok((command, signals)) => supervise(socket.as_fd(), command, &signals),
        Err(error) => failed(error),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Does everything up to the command's first instruction.
fn start(socket: &OwnedFd) -> Result<(Pid, SignalFd), Failed> {
    let at = |step: HelperStep| move |error: Errno| (step, error);
    let at_io = |step: HelperStep| move |error: io::Error| (step, errno_of(&error));
    sys::close_on_exec_from(3).map_err(at_io(HelperStep::Hide))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(at(HelperStep::Hide))?;
    sys::set_signal_mask(SignalSet::ALL);
    let signals = SignalFd::new(SignalSet::ALL).map_err(at_io(HelperStep::Hide))?;
    // The kernel may have no keyrings; then there is nothing to reach.
    let _none = sys::new_session_keyring();

    let mut fds = receive_descriptors(socket.as_fd()).map_err(at(HelperStep::ReadSpec))?;
    if fds.len() < 4 {
        return Err((HelperStep::ReadSpec, Errno::PROTO));
    }
    let kept = fds.split_off(4);
    let file = fds.remove(0);
    let spec = Spec::from_file(file.as_fd()).map_err(at_io(HelperStep::ReadSpec))?;
    if spec.keep.len() != kept.len() {
        return Err((HelperStep::ReadSpec, Errno::PROTO));
    }
    if spec.dies {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(at(HelperStep::Hide))?;
    }
    if let Some(path) = &spec.check {
        forbidden_write_fails(path, spec.proof).map_err(at(HelperStep::Confined))?;
    }
    rustix::process::chdir(&*spec.cwd).map_err(at(HelperStep::ChangeDirectory))?;
    let allowed = spec
        .guarded
        .then(|| Allowed::look(&spec.inside, spec.sockets.clone()))
        .transpose()
        .map_err(at(HelperStep::Restrict))?;
    if spec.guarded && spec.scoped {
        // What is connected to in the command's place stays as far inside (invariant I2 of `connect`).
        crate::restrict::scope(spec.landlocked).map_err(at(HelperStep::Restrict))?;
    }

    let command = Command::prepare(spec);
    let (status, status_writer) = crate::spec::channel().map_err(at_io(HelperStep::Fork))?;
    // Out of the way of the numbers that the command's descriptors get.
    let above = command.keep.iter().copied().max().map_or(3, |most| most.saturating_add(1));
    let status_writer =
        rustix::io::fcntl_dupfd_cloexec(status_writer, above).map_err(at(HelperStep::Fork))?;
    let alone = rustix::process::getpid().as_raw_pid() != 1;
    if alone {
        // Nobody else ends what the command leaves behind.
        let own = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(own)).map_err(at(HelperStep::Fork))?;
    }
    let pid = sys::fork_bare(|| {
        if alone {
            let _kept = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        }
        let failure = command.become_it(&fds, &kept, status_writer.as_fd());
        let (kind, errno) = match failure {
            Start::Restrict(errno) => (1, errno),
            Start::Exec(errno) => (0, errno),
        };
        let mut message = [0_u8; 5];
        let (head, rest) = message.split_at_mut(1);
        head.fill(kind);
        rest.copy_from_slice(&errno.raw_os_error().to_ne_bytes());
        // The parent takes silence for success only when the pipe was closed by an exec, which didn't happen: it
        // sees the exit status then.
        let _lost = rustix::net::send(&status_writer, &message, SendFlags::NOSIGNAL);
        127
    })
    .map_err(at_io(HelperStep::Fork))?;
    drop(status_writer);
    drop((fds, kept));
    // The streams belong to the command alone now: a reader sees their end when the command closes them.
    forget_streams();

    let mut allowed = allowed;
    let told = loop {
        let mut message = [0_u8; 5];
        let (length, mut fds) = crate::spec::receive_with_descriptors(status.as_fd(), &mut message)
            .map_err(at(HelperStep::Fork))?;
        let [kind, code @ ..] = message;
        let raw = i32::from_ne_bytes(code);
        match (length, fds.pop(), allowed.take()) {
            (1, Some(listener), Some(allowed)) => {
                let listener = Listener::new(listener);
                std::thread::Builder::new()
                    .name("connections".to_owned())
                    .spawn(move || connect::serve(listener, allowed))
                    .map_err(at_io(HelperStep::Restrict))?;
            }
            (0, None, None) => break Told::Started,
            (5, None, _) if kind == 0 => break Told::ExecFailed(raw),
            (5, None, _) => return Err((HelperStep::Restrict, Errno::from_raw_os_error(raw))),
            // Whatever else this is, it isn't a command that is guarded as it should be.
            _ => return Err((HelperStep::Restrict, Errno::PROTO)),
        }
    };
    told.send(socket.as_fd()).map_err(at(HelperStep::Fork))?;
    Ok((pid, signals))
}

/// Tries to make a directory where nothing may be made. Only one errno is proof: below `/` it is `EROFS`, since a user who
/// couldn't write there anyway would see `EACCES` without any sandbox.
fn forbidden_write_fails(path: &CStr, proof: i32) -> Result<(), Errno> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Err(errno) if errno.raw_os_error() == proof => Ok(()),
        Err(other) => Err(other),
        Ok(()) => {
            let _left = rustix::fs::rmdir(path);
            Err(Errno::from_raw_os_error(libc::EUCLEAN))
        }
    }
}

fn forget_streams() {
    let open = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if let Ok(null) = open {
        // The three numbers are open, so duplicating onto them can't fail.
        let _infallible = rustix::stdio::dup2_stdin(&null)
            .and_then(|()| rustix::stdio::dup2_stdout(&null))
            .and_then(|()| rustix::stdio::dup2_stderr(&null));
    }
}

/// Why the command didn't start.
enum Start {
    Restrict(Errno),
    Exec(Errno),
}

/// Everything that the command's process needs.
struct Command {
    candidates: Vec<CString>,
    argv: CStringArray,
    shell_argv: Vec<CStringArray>,
    environment: CStringArray,
    ignored: SignalSet,
    blocked: SignalSet,
    umask: Mode,
    file_size: Option<u64>,
    filter: Option<Filter>,
    keeps_cores: bool,
    guarded: bool,
    scoped: bool,
    landlocked: bool,
    leads: bool,
    keep: Vec<i32>,
}

impl Command {
    fn prepare(spec: Spec) -> Self {
        let name = spec.argv.first().cloned().unwrap_or_default();
        let candidates = candidates(&name, &spec.environment);
        // What execvp(3) does with a script that has no interpreter line.
        let shell_argv = candidates
            .iter()
            .map(|path| {
                let head = [c"sh".to_owned(), path.clone()];
                CStringArray::new(
                    head.into_iter().chain(spec.argv.iter().skip(1).cloned()).collect(),
                )
            })
            .collect();
        Self {
            candidates,
            argv: CStringArray::new(spec.argv),
            shell_argv,
            environment: CStringArray::new(spec.environment),
            ignored: spec.ignored,
            blocked: spec.blocked,
            umask: Mode::from_bits_truncate(spec.umask),
            file_size: spec.file_size,
            filter: spec.confined.then(|| {
                let sockets = if spec.guarded { Sockets::Guarded } else { Sockets::Open };
                Filter::new(&filter::program(sockets))
            }),
            keeps_cores: spec.confined && crate::restrict::cores_leave(),
            guarded: spec.guarded,
            scoped: spec.scoped,
            landlocked: spec.landlocked,
            leads: spec.leads,
            keep: spec.keep,
        }
    }

    /// Becomes the command; returns only when that failed.
    fn become_it(&self, streams: &[OwnedFd], kept: &[OwnedFd], status: BorrowedFd<'_>) -> Start {
        if let [stdin, stdout, stderr] = streams {
            let moved = rustix::stdio::dup2_stdin(stdin)
                .and_then(|()| rustix::stdio::dup2_stdout(stdout))
                .and_then(|()| rustix::stdio::dup2_stderr(stderr));
            if let Err(errno) = moved {
                return Start::Restrict(errno);
            }
        }
        if self.leads
            && let Err(errno) = lead()
        {
            return Start::Restrict(errno);
        }
        if let Err(errno) = sys::place(kept, &self.keep) {
            return Start::Restrict(errno);
        }
        if self.filter.is_some()
            && let Err(errno) = crate::restrict::drop_capabilities()
        {
            return Start::Restrict(errno);
        }
        if self.keeps_cores
            && let Err(errno) = crate::restrict::keep_cores()
        {
            return Start::Restrict(errno);
        }
        if self.scoped
            && let Err(errno) = crate::restrict::scope(self.landlocked)
        {
            return Start::Restrict(errno);
        }
        if let Some(filter) = &self.filter
            && let Err(errno) = self.install(filter, status)
        {
            return Start::Restrict(errno);
        }
        for signal in 1..=sys::LAST_SIGNAL {
            sys::set_ignored(signal, self.ignored.contains(signal));
        }
        sys::set_signal_mask(self.blocked);
        rustix::process::umask(self.umask);
        crate::caller::limit_file_size(self.file_size);
        let mut failure = Errno::NOENT;
        for (path, shell_argv) in self.candidates.iter().zip(&self.shell_argv) {
            match sys::exec(path, &self.argv, &self.environment) {
                Errno::NOEXEC => {
                    return Start::Exec(sys::exec(c"/bin/sh", shell_argv, &self.environment));
                }
                Errno::NOENT | Errno::NOTDIR => {}
                // Something is there that can't be run: that is what is reported, unless a later one works.
                errno => failure = errno,
            }
        }
        Start::Exec(failure)
    }
}

impl Command {
    fn install(&self, filter: &Filter, status: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.guarded {
            let listener = filter.install_asking()?;
            crate::spec::send_descriptors(status, &[listener.as_fd()])
        } else {
            filter.install()
        }
    }
}

/// Makes this process the leader of a session whose terminal is its standard input.
fn lead() -> Result<(), Errno> {
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())
}

/// Returns the paths that `execvp` would try.
pub(crate) fn candidates(name: &CString, environment: &[CString]) -> Vec<CString> {
    const DEFAULT: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.contains(&b'/') {
        return vec![name.clone()];
    }
    let path = environment
        .iter()
        .find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT);
    path.split(|&byte| byte == b':')
        .filter_map(|directory| {
            let directory = if directory.is_empty() { b".".as_slice() } else { directory };
            CString::new([directory, b"/", bytes].concat()).ok()
        })
        .collect()
}

/// Passes signals on and reaps until the command has ended and was reported. What else runs inside is killed by the
/// kernel when this process ends.
fn supervise(socket: BorrowedFd<'_>, command: Pid, signals: &SignalFd) -> ExitCode {
    let mut group = Group::default();
    // What came by now may have come before the command was there to get it: the launcher's copy is the one that counts.
    while signals.take().is_some() {}
    // The word that the command has ended may have been among it.
    let mut timeout = Some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
    loop {
        let mut fds =
            [PollFd::new(signals, PollFlags::IN), PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.take().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return ExitCode::from(125),
        }
        while let Some(arrived) = signals.take() {
            group.note(arrived);
        }
        if reap(socket, command) {
            end_strays();
            return ExitCode::SUCCESS;
        }
        loop {
            match Ask::receive(socket) {
                Ok(Some(ask)) => answer(socket, command, ask, &mut group),
                // The launcher is gone, and this process with it in a moment.
                Ok(None) => return ExitCode::from(125),
                Err(_) => break,
            }
        }
    }
}

/// Signals every process of the run but this one.
fn everybody(signal: Signal) {
    if rustix::process::getpid().as_raw_pid() == 1 {
        let _none = sys::kill_all(signal.as_raw());
        return;
    }
    for pid in descendants() {
        // It may have ended meanwhile.
        let _gone = sys::kill(pid, signal.as_raw());
    }
}

/// Where the kernel doesn't end everybody with this process, does it: descendants come to it when their parents end.
fn end_strays() {
    if rustix::process::getpid().as_raw_pid() == 1 {
        return;
    }
    // Whoever forks faster than this forks without end.
    for _ in 0..1000 {
        everybody(Signal::KILL);
        if matches!(rustix::process::wait(WaitOptions::empty()), Err(Errno::CHILD)) {
            return;
        }
    }
}

/// Returns the processes below this one.
fn descendants() -> Vec<Pid> {
    below(children(rustix::process::getpid()))
}

/// Returns some processes, and those below them.
pub(crate) fn below(processes: Vec<Pid>) -> Vec<Pid> {
    let (mut found, mut pending) = (processes.clone(), processes);
    while let Some(parent) = pending.pop() {
        let children = children(parent);
        found.extend(&children);
        pending.extend(children);
    }
    found
}

/// Returns the children of a process's first thread. A process that ended has none.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero();
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

fn answer(socket: BorrowedFd<'_>, command: Pid, ask: Ask, group: &mut Group) {
    let send = |signal: i32| {
        // The command isn't reaped yet (only this loop does it), so the number is still its own.
        let _gone = sys::kill(command, signal);
    };
    match ask {
        Ask::Signal(signal) if group.had(signal) && sys::shares_group(command) => {}
        Ask::Signal(signal) => send(signal),
        Ask::Terminate => {
            everybody(Signal::TERM);
            everybody(Signal::CONT);
        }
        Ask::Continue => send(Signal::CONT.as_raw()),
        Ask::IsStopped => {
            let _gone = Told::IsStopped(is_stopped(command)).send(socket);
        }
    }
}

/// Signals that this process got as a member of the caller's process group: the command got them too.
#[derive(Default)]
struct Group(Vec<(i32, Instant)>);

impl Group {
    fn note(&mut self, arrived: Arrived) {
        if arrived.sent_by_a_process() && arrived.signal != libc::SIGCHLD {
            self.0.retain(|(_, when)| when.elapsed() < SAME);
            if self.0.len() < 64 {
                self.0.push((arrived.signal, Instant::now()));
            }
        }
    }

    fn had(&mut self, signal: i32) -> bool {
        self.0.retain(|(_, when)| when.elapsed() < SAME);
        let found = self.0.iter().position(|(number, _)| *number == signal);
        found.map(|index| self.0.swap_remove(index)).is_some()
    }
}

/// Reaps what has ended, in whichever process group (a shell with job control makes its own); tells whether the command
/// was among it, and reports it then.
fn reap(socket: BorrowedFd<'_>, command: Pid) -> bool {
    loop {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        match rustix::process::wait(options) {
            Ok(Some((pid, status))) if pid == command => {
                if let Some(signal) = status.stopping_signal() {
                    let _gone = Told::Stopped(signal).send(socket);
                } else {
                    let _gone = Told::Exited(status.as_raw()).send(socket);
                    return true;
                }
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// Asks the kernel; a notification of a stop may be out of date by the time it is read.
fn is_stopped(command: Pid) -> bool {
    std::fs::read(format!("/proc/{}/stat", command.as_raw_nonzero())).is_ok_and(|stat| {
        let after = stat.iter().rposition(|&byte| byte == b')').unwrap_or(0);
        stat.get(after + 2) == Some(&b'T')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, environment: &[&str]) -> Vec<String> {
        let environment: Vec<_> =
            environment.iter().map(|entry| CString::new(*entry).unwrap()).collect();
        candidates(&CString::new(name).unwrap(), &environment)
            .iter()
            .map(|path| path.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn programs_are_looked_for_as_execvp_does() {
        assert_eq!(names("./a", &["PATH=/bin"]), ["./a"]);
        assert_eq!(names("a", &["X=1", "PATH=/x::/y"]), ["/x/a", "./a", "/y/a"]);
        assert_eq!(names("a", &[]), ["/usr/local/bin/a", "/usr/bin/a", "/bin/a"]);
    }

    #[test]
    fn a_signal_to_the_group_is_passed_on_once() {
        let mut group = Group::default();
        group.note(Arrived { signal: 2, code: 0, sender: 1 });
        assert!(group.had(2));
        assert!(!group.had(2));
        // From the terminal: the launcher doesn't pass that on, so it mustn't hide a later one.
        group.note(Arrived { signal: 2, code: 128, sender: 0 });
        assert!(!group.had(2));
    }
}
