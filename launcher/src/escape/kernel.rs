//! Attempts on what all processes share: devices, terminals, kernel objects and settings.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Act::{Own, Try};
use super::mounts::{block_device, read_some};
use super::sockets::c_string;
use super::{Attempt, MARK, attempt, with_gap, write_to};
use crate::enforcement::Gap;
use crate::sys::attempt::{self as raw, Object, Privileged};

const DEVICES: &[Gap] = &[Gap::RawDevices];
const SHARED: &[Gap] = &[Gap::SharedMemory];

pub(super) const ALL: &[Attempt] = &[
    with_gap(
        "device-disk",
        DEVICES,
        Own(|s| read_some(&Path::new("/dev").join(block_device(s)?.0))),
    ),
    attempt(
        "device-disk-write",
        Own(|s| open_to_write(Path::new("/dev").join(block_device(s)?.0))),
    ),
    with_gap("device-memory", DEVICES, Own(|_| fs::File::open("/dev/mem").map(drop))),
    attempt("device-kernel-log", Own(|_| open_to_write("/dev/kmsg"))),
    attempt("device-loop", Own(|_| open_to_write("/dev/loop-control"))),
    attempt("device-input", Own(|_| open_to_write("/dev/uinput"))),
    attempt("terminal-push", Own(|_| push_into(io::stdin().as_fd()))),
    attempt(
        "terminal-push-by-name",
        Own(|_| {
            let terminal = fs::OpenOptions::new().read(true).write(true).open("/dev/tty")?;
            push_into(terminal.as_fd())
        }),
    ),
    attempt("terminal-console", Own(|_| Ok(raw::ask_console(io::stdin().as_fd())?))),
    with_gap(
        "terminal-other",
        &[Gap::OtherTerminals],
        Try(|s| {
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            let no_controlling = libc::O_NOCTTY;
            let mut terminal = fs::OpenOptions::new()
                .write(true)
                .custom_flags(no_controlling)
                .open(&s.terminal)?;
            terminal.write_all(MARK)
        }),
    ),
    with_gap(
        "ipc-memory",
        SHARED,
        Try(|s| Ok(Object::Memory.change(Object::Memory.get(s.key(), false)?)?)),
    ),
    with_gap(
        "ipc-semaphore",
        SHARED,
        Try(|s| Ok(Object::Semaphore.change(Object::Semaphore.get(s.key(), false)?)?)),
    ),
    with_gap(
        "ipc-queue",
        SHARED,
        Try(|s| Ok(Object::Queue.change(Object::Queue.get(s.key(), false)?)?)),
    ),
    with_gap(
        "ipc-posix-queue",
        SHARED,
        Try(|s| Ok(raw::queue_send(raw::queue(&c_string(&s.name())?, false)?.as_fd())?)),
    ),
    attempt("ipc-posix-memory", Try(|s| write_to(Path::new("/dev/shm").join(s.name())))),
    attempt("keyring-user", Try(|s| Ok(raw::key_add(&c_string(&s.name())?, 7)?))),
    attempt(
        "kernel-core-handler",
        Own(|_| {
            if !crate::restrict::cores_leave() {
                return Err(io::Error::other("no program takes core files here"));
            }
            let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
            if limit.maximum == Some(1) {
                Err(io::ErrorKind::PermissionDenied.into())
            } else {
                Ok(())
            }
        }),
    ),
    attempt("proc-core-pattern", Own(|_| open_to_write("/proc/sys/kernel/core_pattern"))),
    attempt("proc-modprobe", Own(|_| open_to_write("/proc/sys/kernel/modprobe"))),
    attempt("proc-sysrq", Own(|_| open_to_write("/proc/sysrq-trigger"))),
    attempt("proc-anything", Own(|_| anything_in_proc(Path::new("/proc"), 0))),
    attempt("sys-uevent-helper", Own(|_| open_to_write("/sys/kernel/uevent_helper"))),
    attempt("sys-power", Own(|_| open_to_write("/sys/power/state"))),
    attempt("cgroup-leave", Own(|_| open_to_write("/sys/fs/cgroup/cgroup.procs"))),
    attempt("cgroup-release-agent", Own(|_| open_to_write("/sys/fs/cgroup/release_agent"))),
    attempt(
        "cgroup-make",
        Own(|s| {
            let group = Path::new("/sys/fs/cgroup").join(s.name());
            fs::create_dir(&group)?;
            fs::remove_dir(&group)
        }),
    ),
    attempt("kernel-module", Own(|_| privileged(Privileged::Module))),
    attempt("kernel-reboot", Own(|_| privileged(Privileged::Reboot))),
    attempt("kernel-other", Own(|_| privileged(Privileged::Kexec))),
    attempt("kernel-swap", Own(|_| privileged(Privileged::Swap))),
    attempt("kernel-bpf", Own(|_| privileged(Privileged::Bpf))),
    attempt("kernel-perf", Own(|_| privileged(Privileged::Perf))),
    attempt("kernel-userfaultfd", Own(|_| privileged(Privileged::Userfaultfd))),
    attempt("kernel-ports", Own(|_| privileged(Privileged::Ports))),
    attempt(
        "kernel-hostname",
        Own(|_| {
            // The name that it has already.
            let name = rustix::system::uname();
            Ok(rustix::system::sethostname(name.nodename().to_bytes())?)
        }),
    ),
];

fn privileged(call: Privileged) -> io::Result<()> {
    Ok(call.attempt()?)
}

/// Types for whoever reads the terminal next.
fn push_into(terminal: BorrowedFd<'_>) -> io::Result<()> {
    raw::push_input(terminal, b'x')?;
    let there = rustix::io::ioctl_fionread(terminal)?;
    rustix::termios::tcflush(terminal, rustix::termios::QueueSelector::IFlush)?;
    if there > 0 { Ok(()) } else { Err(io::Error::other("nothing arrived")) }
}

/// Opens something that takes effect only when it is written.
fn open_to_write(path: impl AsRef<Path>) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path).map(drop)
}

/// Looks for anything in `/proc` that is no process's own and can be opened for writing.
fn anything_in_proc(directory: &Path, depth: u32) -> io::Result<()> {
    let mut last = Err(io::ErrorKind::PermissionDenied.into());
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name();
        let kind = entry.file_type()?;
        let process = name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
        if depth == 0 && process || kind.is_symlink() {
            continue;
        }
        let tried = if kind.is_dir() && depth < 3 {
            anything_in_proc(&entry.path(), depth + 1)
        } else if kind.is_file() && entry.metadata()?.permissions().mode() & 0o222 != 0 {
            // Root may open all, and write what is meant for it.
            open_to_write(entry.path())
        } else {
            continue;
        };
        if tried.is_ok() {
            return tried;
        }
        last = tried.and(last);
    }
    last
}

/// Tells the families that need an object of the machine's made beforehand.
pub(super) fn object(id: &str) -> Option<Object> {
    match id {
        "ipc-memory" => Some(Object::Memory),
        "ipc-semaphore" => Some(Object::Semaphore),
        "ipc-queue" => Some(Object::Queue),
        _ => None,
    }
}
