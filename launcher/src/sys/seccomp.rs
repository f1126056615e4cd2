//! seccomp filters, and the descriptor on which one of them asks (seccomp_unotify(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

use super::last_errno;
use crate::filter::Instruction;

/// A filter laid out for the kernel, so that nothing is allocated after a fork.
#[derive(Debug)]
pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Lays a program out.
    #[must_use]
    pub fn new(program: &[Instruction]) -> Self {
        Self(
            program
                .iter()
                .map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
                .collect(),
        )
    }

    /// Installs it for this thread and what it becomes.
    ///
    /// # Errors
    /// The kernel has no filters, or the process may still gain privileges.
    pub fn install(&self) -> rustix::io::Result<()> {
        self.set(0).map(drop)
    }

    /// Installs it for this thread and what it becomes, and returns where it asks.
    ///
    /// # Errors
    /// As [`Self::install`]; or another filter of this process asks already.
    pub fn install_asking(&self) -> rustix::io::Result<OwnedFd> {
        let raw = self.set(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
        let raw = RawFd::try_from(raw).map_err(|_| Errno::BADF)?;
        // SAFETY: with this flag the call returned a fresh descriptor (close-on-exec), which belongs to nobody else yet.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    fn set(&self, flags: libc::c_ulong) -> rustix::io::Result<libc::c_long> {
        let filter = libc::sock_fprog {
            len: u16::try_from(self.0.len()).map_err(|_| Errno::INVAL)?,
            filter: self.0.as_ptr().cast_mut(),
        };
        // SAFETY: `filter` points to `len` instructions that live over the call; the kernel only reads them, and checks
        // them itself.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const filter,
            )
        };
        if result < 0 { Err(last_errno()) } else { Ok(result) }
    }
}

/// Tells whether the kernel's messages about a filter's questions have the sizes that are used here.
#[must_use]
pub fn can_ask() -> bool {
    let mut sizes =
        libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the operation writes one `seccomp_notif_sizes` to the pointer, which is valid for it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0_u32, &raw mut sizes)
    };
    result == 0
        && usize::from(sizes.seccomp_notif) == size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) == size_of::<libc::seccomp_notif_resp>()
}

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Names it in the answer.
    pub id: u64,
    /// The thread that made it.
    pub thread: Pid,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// Where a filter asks.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Takes over what [`Filter::install_asking`] returned, perhaps in another process.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Takes the next question; waits for it.
    ///
    /// # Errors
    /// `ENOENT` when it was taken back in the meantime, `EINTR`.
    pub fn take(&self) -> rustix::io::Result<Question> {
        let mut notification = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the request reads and writes one `seccomp_notif`, which is zeroed as it demands, and of the kernel's
        // size (`can_ask`).
        let result = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                notification.as_mut_ptr(),
            )
        };
        if result < 0 {
            return Err(last_errno());
        }
        // SAFETY: all of it was zeroed, and every bit pattern is a value of its integer fields.
        let notification = unsafe { notification.assume_init() };
        let thread = i32::try_from(notification.pid).ok().and_then(Pid::from_raw);
        Ok(Question {
            id: notification.id,
            thread: thread.ok_or(Errno::SRCH)?,
            arguments: notification.data.args,
        })
    }

    /// Tells whether a call still waits, and so that its thread's number still is its own.
    #[must_use]
    pub fn is_waiting(&self, question: &Question) -> bool {
        let id = question.id;
        // SAFETY: the request reads one u64.
        unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0
        }
    }

    /// Ends the call with success or an error. A call that waits no more is ignored.
    pub fn answer(&self, question: &Question, result: rustix::io::Result<()>) {
        let mut response = libc::seccomp_notif_resp {
            id: question.id,
            val: 0,
            error: result.err().map_or(0, |errno| -errno.raw_os_error()),
            flags: 0,
        };
        // SAFETY: the request reads one `seccomp_notif_resp` of the kernel's size (`can_ask`).
        unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response)
        };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads another process's memory, up to the length of the buffer.
///
/// # Errors
/// It isn't mapped, or the process may not be looked at.
pub fn read_memory(thread: Pid, address: u64, buffer: &mut [u8]) -> rustix::io::Result<()> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(
            usize::try_from(address).map_err(|_| Errno::FAULT)?,
        ),
        iov_len: buffer.len(),
    };
    // SAFETY: `local` is the one place that is written, valid for its length; `remote` is only meaningful in the other
    // process, and the kernel checks it there.
    let read = unsafe {
        libc::process_vm_readv(thread.as_raw_pid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    match usize::try_from(read) {
        Ok(read) if read == buffer.len() => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(last_errno()),
    }
}

/// Connects a socket to an address as it came from another process.
///
/// # Errors
/// As connect(2).
pub fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    // The kernel reads as much as it is told, at most a `sockaddr_storage`.
    let mut storage = [0_u64; 16];
    let length = address.len().min(size_of_val(&storage));
    for (word, chunk) in storage.iter_mut().zip(address.chunks(8)) {
        let mut bytes = [0; 8];
        if let Some(head) = bytes.get_mut(..chunk.len()) {
            head.copy_from_slice(chunk);
        }
        *word = u64::from_ne_bytes(bytes);
    }
    let length = libc::socklen_t::try_from(length).unwrap_or(0);
    // SAFETY: `storage` is aligned for and as large as a `sockaddr_storage`, and `length` is at most its size.
    let result = unsafe { libc::connect(socket.as_raw_fd(), storage.as_ptr().cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
