//! Connections that the command makes, made for it by the helper (contract L11).
//!
//! A read-only mount lets everybody connect to the Unix sockets below it, also to those that a program of the host's makes
//! during the run. So the command's [filter](crate::filter) hands each `connect` over, and the helper makes the
//! connection on the same socket, in the command's place. For a path it opens what the path leads to first and looks where
//! that lies: on our file systems and on those that are private to the run it is connected to, elsewhere the answer is
//! `EACCES`. Nothing is looked at twice, so the command's other threads can't swap anything in between.
//!
//! - I1: the thread that connects has taken the ids of the process that it works for: it finds and reaches what that user
//!   may, and is seen as that user.
//! - I2: it is in the same Landlock scope as the command, so abstract names stay inside too.
//! - I3: a thread a connection, which may wait as long as connect(2) waits; it ends with it.
//! - I4: what can't be looked at is refused: a process that isn't dumpable, but for root, whose helper may look at all.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::process::{Gid, Pid, PidfdFlags, PidfdGetfdFlags, Uid};

use crate::sys::seccomp::{self, Listener, Question};

/// Where the command may connect to by path.
#[derive(Debug)]
pub struct Allowed {
    devices: Vec<u64>,
    sockets: Vec<CString>,
    namespace: OsString,
}

impl Allowed {
    /// Looks at the directories whose file systems are the run's own. `sockets` are the operator's exceptions.
    ///
    /// # Errors
    /// One of the directories isn't there.
    pub fn look(inside: &[CString], sockets: Vec<CString>) -> rustix::io::Result<Self> {
        let mut devices = Vec::new();
        for directory in inside {
            devices.push(rustix::fs::stat(&**directory)?.st_dev);
        }
        let namespace = mount_namespace("self")?;
        Ok(Self { devices, sockets, namespace })
    }

    /// Tells whether a socket that was opened may be connected to.
    fn holds(&self, found: &rustix::fs::Stat) -> bool {
        self.devices.contains(&found.st_dev)
            || self.sockets.iter().any(|path| {
                rustix::fs::stat(&**path)
                    .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (found.st_dev, found.st_ino))
            })
    }
}

fn mount_namespace(process: &str) -> rustix::io::Result<OsString> {
    rustix::fs::readlink(format!("/proc/{process}/ns/mnt"), Vec::new())
        .map(|link| OsString::from_vec(link.into_bytes()))
}

/// Answers until nobody is left who could ask. Runs in a thread of its own.
pub fn serve(listener: Listener, allowed: Allowed) {
    let listener = Arc::new(listener);
    let allowed = Arc::new(allowed);
    loop {
        let mut fds = [PollFd::new(&*listener, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if fds.iter().any(|fd| fd.revents().contains(PollFlags::IN)) => {}
            Err(Errno::INTR) => continue,
            // Whoever could ask is gone.
            Ok(_) | Err(_) => return,
        }
        // An interrupted call takes its question back.
        let Ok(question) = listener.take() else { continue };
        let (for_thread, allowed) = (listener.clone(), allowed.clone());
        let answered = std::thread::Builder::new()
            .name("connect".to_owned())
            .stack_size(128 << 10)
            .spawn(move || {
                let result = connect(&for_thread, &question, &allowed);
                for_thread.answer(&question, result);
            });
        if answered.is_err() {
            listener.answer(&question, Err(Errno::AGAIN));
        }
    }
}

/// Makes one connection.
fn connect(listener: &Listener, question: &Question, allowed: &Allowed) -> rustix::io::Result<()> {
    let [number, address, length, ..] = question.arguments;
    let caller = Caller::look(question.thread)?;
    if !listener.is_waiting(question) {
        return Err(Errno::SRCH);
    }
    // The kernel takes both for an `int`.
    let low = |argument: u64| i32::from_ne_bytes(low_half(argument));
    let length = usize::try_from(low(length)).ok().filter(|&length| length <= 128);
    let look = || Call::look(&caller, low(number), (address, length));
    let call = match look() {
        // As itself a process may be looked at that this one, with other ids, may not.
        Err(Errno::PERM | Errno::ACCESS) => {
            caller.take_identity()?;
            look().map_err(|error| if error == Errno::PERM { Errno::ACCESS } else { error })?
        }
        other => other?,
    };
    // Up to here the numbers could have come to mean another process.
    if !listener.is_waiting(question) {
        return Err(Errno::SRCH);
    }
    caller.take_identity()?;
    let Call { socket, bytes, place } = call;
    let unix = rustix::net::sockopt::socket_domain(&socket)? == AddressFamily::UNIX;
    match bytes.split_at_checked(2) {
        Some((family, path))
            if unix
                && u16::from_ne_bytes([family[0], family[1]]) == AddressFamily::UNIX.as_raw()
                && path.first().is_some_and(|&byte| byte != 0) =>
        {
            let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
            let path = path.get(..end).unwrap_or(path);
            let target = place.open(path, &caller, allowed)?;
            let found = rustix::fs::fstat(&target)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
                return Err(Errno::CONNREFUSED);
            }
            if !allowed.holds(&found) {
                return Err(Errno::ACCESS);
            }
            connect_to(socket.as_fd(), &target)
        }
        // Abstract names, and what isn't of this family.
        Some(_) | None => seccomp::connect(socket.as_fd(), &bytes).map_err(errno),
    }
}

fn low_half(argument: u64) -> [u8; 4] {
    let [b0, b1, b2, b3, ..] = argument.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3]).to_ne_bytes()
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Connects to what was opened, and to nothing else.
fn connect_to(socket: BorrowedFd<'_>, target: &OwnedFd) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}\0", target.as_raw_fd());
    let mut address = AddressFamily::UNIX.as_raw().to_ne_bytes().to_vec();
    address.extend(path.as_bytes());
    seccomp::connect(socket, &address).map_err(errno)
}

/// The process that a connection is made for.
struct Caller {
    thread: Pid,
    process: Pid,
    uids: [u32; 4],
    gids: [u32; 4],
    groups: Vec<u32>,
}

impl Caller {
    fn look(thread: Pid) -> rustix::io::Result<Self> {
        let path = format!("/proc/{}/status", thread.as_raw_nonzero());
        let text = std::fs::read(path).map_err(errno)?;
        Self::parse(thread, &String::from_utf8_lossy(&text)).ok_or(Errno::SRCH)
    }

    fn parse(thread: Pid, status: &str) -> Option<Self> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().map(|word| word.parse().ok()).collect()
        };
        let process = numbers("Tgid:")?;
        Some(Self {
            thread,
            process: Pid::from_raw(i32::try_from(*process.first()?).ok()?)?,
            uids: numbers("Uid:")?.try_into().ok()?,
            gids: numbers("Gid:")?.try_into().ok()?,
            groups: numbers("Groups:")?,
        })
    }

    /// Makes this thread the caller's user, if it isn't (invariant I1).
    fn take_identity(&self) -> rustix::io::Result<()> {
        let [real, effective, saved, _] = self.uids;
        let own = rustix::process::geteuid().as_raw();
        if [real, effective, saved] == [own; 3] {
            return Ok(());
        }
        let group = |id: u32| Some(Gid::from_raw(id));
        let user = |id: u32| Some(Uid::from_raw(id));
        let groups: Vec<Gid> = self.groups.iter().map(|&id| Gid::from_raw(id)).collect();
        rustix::thread::set_thread_groups(&groups)?;
        let [real_group, effective_group, saved_group, _] = self.gids;
        rustix::thread::set_thread_res_gid(
            group(real_group),
            group(effective_group),
            group(saved_group),
        )?;
        rustix::thread::set_thread_res_uid(user(real), user(effective), user(saved))
    }
}

/// What the call is about, as it was when it was looked at.
struct Call {
    socket: OwnedFd,
    bytes: Vec<u8>,
    place: Place,
}

impl Call {
    fn look(
        caller: &Caller,
        number: i32,
        (address, length): (u64, Option<usize>),
    ) -> rustix::io::Result<Self> {
        let process = rustix::process::pidfd_open(caller.process, PidfdFlags::empty())?;
        let socket = rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?;
        let mut bytes = vec![0; length.ok_or(Errno::INVAL)?];
        seccomp::read_memory(caller.thread, address, &mut bytes)?;
        Ok(Self { socket, bytes, place: Place::of(caller.thread)? })
    }
}

const FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Where a process is in the file system.
struct Place {
    root: OwnedFd,
    cwd: OwnedFd,
    namespace: OsString,
}

impl Place {
    fn of(thread: Pid) -> rustix::io::Result<Self> {
        let thread = thread.as_raw_nonzero();
        let directory = |name: &str| {
            let path = format!("/proc/{thread}/{name}");
            rustix::fs::open(path, FLAGS.union(OFlags::DIRECTORY), Mode::empty())
        };
        Ok(Self {
            root: directory("root")?,
            cwd: directory("cwd")?,
            namespace: mount_namespace(&thread.to_string())?,
        })
    }

    /// Opens what a path leads to from here, without opening the file itself.
    fn open(&self, path: &[u8], caller: &Caller, allowed: &Allowed) -> rustix::io::Result<OwnedFd> {
        let absolute = path.first() == Some(&b'/');
        if self.namespace == allowed.namespace && self.has_our_root()? {
            let path = match path.strip_prefix(b"/proc/self/") {
                Some(rest) => {
                    let own = format!("/proc/{}/", caller.process.as_raw_nonzero());
                    [own.as_bytes(), rest].concat()
                }
                None => path.to_vec(),
            };
            return rustix::fs::openat(&self.cwd, path, FLAGS, Mode::empty());
        }
        // It has changed its root or made mounts: where links lead can only be told below a directory.
        let (start, resolve) = if absolute {
            (&self.root, ResolveFlags::IN_ROOT)
        } else {
            (&self.cwd, ResolveFlags::BENEATH)
        };
        rustix::fs::openat2(start, path, FLAGS, Mode::empty(), resolve)
    }

    fn has_our_root(&self) -> rustix::io::Result<bool> {
        let (own, its) = (rustix::fs::stat("/")?, rustix::fs::fstat(&self.root)?);
        Ok((own.st_dev, own.st_ino) == (its.st_dev, its.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_read_from_its_status() {
        let status =
            "Name:\tx\nTgid:\t7\nPid:\t9\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t10 11 \n";
        let thread = Pid::from_raw(9).unwrap();
        let caller = Caller::parse(thread, status).unwrap();
        assert_eq!(caller.process.as_raw_pid(), 7);
        assert_eq!((caller.uids, caller.gids), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!(caller.groups, [10, 11]);
        assert!(Caller::parse(thread, &status.replace("Uid:\t1", "Uid:\tx")).is_none());
        let own = rustix::thread::gettid();
        assert_eq!(Caller::look(own).unwrap().process, rustix::process::getpid());
    }
}
