//! A process that cuts the connections of a run's mounts when the launcher is killed.
//!
//! A server of ours that is killed while the kernel waits for it in one of its own notifications doesn't end: its thread waits
//! for a page that a reader has locked, and the reader for an answer that nobody gives any more. Neither SIGKILL nor the
//! end of the namespaces helps, only an end of the connection from outside. So a child of the launcher waits in the
//! namespaces of the run, and forces the mounts off when the launcher's first thread is dead. What then doesn't end by
//! itself, because somebody inside stopped it, say, it kills.
//!
//! Invariants:
//! - I1: it holds no descriptor of a FUSE device, which would keep a dead connection alive: it is forked before there is one, and
//!   closes everything.
//! - I2: a run that ends in order ends it before the mounts are waited for, since it holds their namespace; what was written
//!   by then reaches its name as ever.

use std::ffi::CString;
use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use rustix::thread::ThreadNameSpaceType;

use crate::sys::{self, Child, SignalFd, SignalSet};

/// How long the run's first process has to end by itself once the launcher is dead.
const MOMENT: Duration = Duration::from_secs(1);

/// The process, alive as long as this is.
#[derive(Debug)]
#[must_use = "dropping this ends it"]
pub struct Guardian {
    _child: Child,
    go: PipeWriter,
}

impl Guardian {
    /// Forks it. It does nothing before [`Self::enter`].
    ///
    /// # Errors
    /// There is no memory or no descriptor.
    pub fn start(run: &Child, user: bool, mounts: &[CString]) -> io::Result<Self> {
        let (told, go) = io::pipe()?;
        let launcher = rustix::process::getpid();
        let child = sys::fork(|| {
            let enter = || {
                let mut byte = [0_u8];
                if rustix::io::read(rustix::stdio::stdin(), &mut byte)? == 0 {
                    return Ok(false);
                }
                let mount = ThreadNameSpaceType::MOUNT;
                let both = mount | ThreadNameSpaceType::USER;
                let run = rustix::stdio::stdout();
                rustix::thread::move_into_thread_name_spaces(run, if user { both } else { mount })
                    .map(|()| true)
            };
            u8::from(guard(told.as_fd(), run.pidfd(), launcher, enter, mounts, None).is_err())
        })?;
        Ok(Self { _child: child, go })
    }

    /// Forks one for a mount that everybody sees. Who isn't root can't unmount it so, but may end its connection.
    ///
    /// # Errors
    /// There is no memory or no descriptor, or the mount is gone.
    pub fn of_mount(mountpoint: &Path) -> io::Result<Self> {
        let minor = rustix::fs::minor(rustix::fs::stat(mountpoint)?.st_dev);
        let abort = CString::new(format!("/sys/fs/fuse/connections/{minor}/abort"))?;
        let mounts = [crate::spec::c_string(mountpoint.as_os_str())?];
        let (told, go) = io::pipe()?;
        let server = rustix::process::getpid();
        let child = sys::fork(|| {
            let told = told.as_fd();
            u8::from(guard(told, told, server, || Ok(true), &mounts, Some(&abort)).is_err())
        })?;
        Ok(Self { _child: child, go })
    }

    /// Sends it into the namespaces, which are there now.
    ///
    /// # Errors
    /// It is gone.
    pub fn enter(&mut self) -> io::Result<()> {
        self.go.write_all(&[1])
    }
}

/// The process's whole life. Nothing is allocated.
fn guard(
    told: BorrowedFd<'_>,
    run: BorrowedFd<'_>,
    launcher: Pid,
    enter: impl FnOnce() -> rustix::io::Result<bool>,
    mounts: &[CString],
    abort: Option<&CString>,
) -> rustix::io::Result<()> {
    sys::keep_two(told, run)?;
    sys::set_signal_mask(SignalSet::ALL);
    if !enter()? {
        return Ok(());
    }
    let term = SignalSet::default().with(libc::SIGTERM);
    let signals = SignalFd::new(term).map_err(|_| rustix::io::Errno::NFILE)?;
    // After the change of credentials, which would clear it.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    // What is sent to the launcher's group is nothing to this process, nor what others send to it.
    rustix::process::setpgid(None, None)?;
    let from = launcher.as_raw_nonzero().get();
    let dead = || signals.take().is_some_and(|arrived| arrived.sender == from);
    while rustix::process::getppid() == Some(launcher) && !dead() {
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        let _woken = rustix::event::poll(&mut fds, None);
    }
    if let Some(abort) = abort {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let ended = rustix::fs::open(&**abort, flags, Mode::empty())
            .and_then(|file| rustix::io::write(file, b"1"));
        if ended.is_ok() {
            return Ok(());
        }
    }
    // Who comes later may have mounted something there that isn't ours: in everybody's namespace nothing is detached.
    let detach = if abort.is_none() { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    for mount in mounts {
        let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW | detach;
        // What was unmounted by somebody else is no matter.
        let _gone = rustix::mount::unmount(&**mount, flags);
    }
    if abort.is_none() {
        let moment = rustix::event::Timespec::try_from(MOMENT).ok();
        let run = rustix::stdio::stdout();
        let ended = rustix::event::poll(
            &mut [PollFd::from_borrowed_fd(run, PollFlags::IN)],
            moment.as_ref(),
        );
        if ended != Ok(1) {
            let _gone = rustix::process::pidfd_send_signal(run, Signal::KILL);
        }
    }
    Ok(())
}
