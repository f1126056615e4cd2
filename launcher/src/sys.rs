//! The system calls that rustix doesn't wrap: fork, execve, signal dispositions and masks, signalfd.
//!
//! Everything here is small and says why it is sound; the rest of the crate has no `unsafe`.
#![expect(unsafe_code, reason = "fork, execve and signal dispositions have no safe wrapper")]

pub mod attempt;
pub mod seccomp;

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

/// A list of C strings as `execve` wants it, made before a fork so that nothing is allocated after it.
#[derive(Debug)]
pub struct CStringArray {
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStringArray {
    /// Keeps the strings and lays out the pointers, closed by a null.
    #[must_use]
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers =
            strings.iter().map(|text| text.as_ptr()).chain(std::iter::once(ptr::null())).collect();
        Self { strings, pointers }
    }

    /// Returns the strings.
    #[must_use]
    pub fn strings(&self) -> &[CString] {
        &self.strings
    }
}

/// A child process, killed and reaped when dropped unless it was waited for.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    reaped: bool,
}

impl Child {
    /// Returns the process id. It can't be reused before the child is reaped, which only this value does.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the descriptor that becomes readable when the child ends.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The child is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        rustix::process::pidfd_send_signal(&self.pidfd, signal).map_err(io::Error::from)
    }

    /// Waits until the child ends and returns its raw wait status.
    ///
    /// # Errors
    /// It was already waited for.
    pub fn wait(&mut self) -> io::Result<i32> {
        loop {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => {
                    self.reaped = true;
                    return Ok(status.as_raw());
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // Failing means that it is already dead, which is what is wanted.
            let _gone = self.signal(Signal::KILL);
            let _status = self.wait();
        }
    }
}

/// Forks. The child runs `body` and ends with the status it returns; `body` must be async-signal-safe when other
/// threads exist: no allocation, no lock, only system calls on what was prepared before.
///
/// # Errors
/// There are too many processes, or too little memory.
pub fn fork(body: impl FnOnce() -> u8) -> io::Result<Child> {
    // SAFETY: fork(2) has no memory-safety precondition of its own. What the child may do afterwards is limited by
    // the rule above: `body` touches only memory prepared before the fork, and the child leaves through _exit(2),
    // so no destructor or exit handler of the parent's runs twice.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = body();
            // SAFETY: _exit(2) ends the process and never returns; it has no preconditions.
            unsafe { libc::_exit(c_int::from(status)) }
        }
        _ => {
            let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
            match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => Ok(Child { pid, pidfd, reaped: false }),
                Err(error) => {
                    let _gone = rustix::process::kill_process(pid, Signal::KILL);
                    let _status = rustix::process::waitpid(Some(pid), WaitOptions::empty());
                    Err(error.into())
                }
            }
        }
    }
}

/// Forks like [`fork`], for a caller that reaps by itself: returns the bare process id.
///
/// # Errors
/// There are too many processes, or too little memory.
pub fn fork_bare(body: impl FnOnce() -> u8) -> io::Result<Pid> {
    let mut child = fork(body)?;
    child.reaped = true;
    Ok(child.pid)
}

/// Forks and goes on in the child, where it returns `None`. The parent closes everything, waits for the child's end and
/// returns its status.
///
/// # Errors
/// There are too many processes.
pub fn continue_in_child() -> rustix::io::Result<Option<u8>> {
    // SAFETY: as in `fork`: the callers are children of a fork themselves and go on with system calls only.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(last_errno());
    }
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    // SAFETY: this process only waits from here on and leaves through _exit(2); no owner of a descriptor uses one again.
    // The launcher must see the ends closed that only the child may hold.
    unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32) };
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                return Ok(Some(code.unwrap_or(125)));
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => return Ok(Some(125)),
        }
    }
}

/// Ends this process at once.
pub fn leave(status: u8) -> ! {
    // SAFETY: _exit(2) ends the process and never returns; it has no preconditions.
    unsafe { libc::_exit(c_int::from(status)) }
}

/// Makes every mount at and below a path read-only, in this mount namespace.
///
/// # Errors
/// The kernel is older than 5.12, or forbids it.
pub fn read_only_below(path: &CStr) -> rustix::io::Result<()> {
    change_below(path, libc::MOUNT_ATTR_RDONLY, 0)
}

fn change_below(path: &CStr, set: u64, clear: u64) -> rustix::io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is NUL-terminated, the attributes are valid for the size that is passed; both are only read.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Switches the loopback interface of this network namespace on.
///
/// # Errors
/// It isn't this process's to switch.
pub fn loopback_up() -> rustix::io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let mut request = std::mem::MaybeUninit::<libc::ifreq>::zeroed();
    // SAFETY: an all-zero `ifreq` is a valid one; the name fits, and `SIOCSIFFLAGS` reads it and the flags only.
    let result = unsafe {
        let request = request.assume_init_mut();
        request.ifr_name[0] = 108;
        request.ifr_name[1] = 111;
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).unwrap_or(1);
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const *request)
    };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Replaces the process image; returns only when that failed.
#[must_use]
pub fn exec(path: &CStr, argv: &CStringArray, environment: &CStringArray) -> Errno {
    // SAFETY: the three pointers are NUL-terminated strings and null-terminated arrays of such, alive for the whole
    // call because they are borrowed from their owners; execve(2) only reads them.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), environment.pointers.as_ptr()) };
    last_errno()
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Leaves the namespaces of the parent.
///
/// # Errors
/// The kernel or a policy of the machine forbids it.
pub fn unshare(flags: rustix::thread::UnshareFlags) -> rustix::io::Result<()> {
    let flags = flags.difference(rustix::thread::UnshareFlags::FILES);
    // SAFETY: the unsafety of unshare(2) is CLONE_FILES, which would leave other threads with descriptors that this
    // one can't see; it was taken out above.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Highest signal number.
pub const LAST_SIGNAL: c_int = 64;

/// A set of signals, bit N-1 for signal N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// Every signal, the two that can't be blocked among them.
    pub const ALL: Self = Self(u64::MAX);

    /// Tells whether the set has a signal.
    #[must_use]
    pub fn contains(self, signal: c_int) -> bool {
        self.0 & bit(signal) != 0
    }

    /// Returns the set with one signal more.
    #[must_use]
    pub fn with(self, signal: c_int) -> Self {
        Self(self.0 | bit(signal))
    }

    fn to_sigset(self) -> libc::sigset_t {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `set` is a valid place for a sigset_t; sigemptyset(3) initialises it whole, sigaddset(3) is given a
        // number in range.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in 1..=LAST_SIGNAL {
                if self.contains(signal) {
                    libc::sigaddset(set.as_mut_ptr(), signal);
                }
            }
            set.assume_init()
        }
    }
}

fn bit(signal: c_int) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|shift| 1_u64.checked_shl(shift)).unwrap_or(0)
}

/// Replaces the calling thread's signal mask and returns the old one.
pub fn set_signal_mask(mask: SignalSet) -> SignalSet {
    let new = mask.to_sigset();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both point to valid sigset_t values; pthread_sigmask(3) reads one, writes the other and can only fail
    // for a `how` that it doesn't know.
    let old = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const new, old.as_mut_ptr());
        old.assume_init()
    };
    let mut set = SignalSet::default();
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: `old` was written above and `signal` is in range.
        if unsafe { libc::sigismember(&raw const old, signal) } == 1 {
            set = set.with(signal);
        }
    }
    set
}

/// Sets a signal to be ignored or to its default. Signals that can't be changed are left alone.
pub fn set_ignored(signal: c_int, ignored: bool) {
    let disposition = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither SIG_IGN nor SIG_DFL runs code of ours in a handler; an invalid number only gives EINVAL.
    unsafe { libc::signal(signal, disposition) };
}

/// Tells whether a signal is ignored now.
#[must_use]
pub fn is_ignored(signal: c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; the old one is written to a valid place. On failure the zeroed value
    // (SIG_DFL) is what is read.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// What the process inherited as ignored, recorded before the language's runtime changes SIGPIPE.
static INHERITED_IGNORED: AtomicU64 = AtomicU64::new(0);

/// The umask that the process was started with.
static INHERITED_UMASK: AtomicU32 = AtomicU32::new(0);

extern "C" fn record_inherited() {
    let mut set = SignalSet::default();
    for signal in 1..=LAST_SIGNAL {
        if is_ignored(signal) {
            set = set.with(signal);
        }
    }
    INHERITED_IGNORED.store(set.0, Ordering::Relaxed);
    // There is no way to ask; no second thread can see the moment between.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    INHERITED_UMASK.store(umask.bits(), Ordering::Relaxed);
}

// SAFETY: the section holds pointers to `extern "C"` functions that the dynamic loader calls once, before `main`.
// The function makes system calls and an atomic store, nothing that needs the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_INHERITED: extern "C" fn() = record_inherited;

/// Returns the signals that this process was started with as ignored.
#[must_use]
pub fn inherited_ignored() -> SignalSet {
    SignalSet(INHERITED_IGNORED.load(Ordering::Relaxed))
}

/// Returns the umask that this process was started with.
#[must_use]
pub fn inherited_umask() -> Mode {
    Mode::from_bits_truncate(INHERITED_UMASK.load(Ordering::Relaxed))
}

/// A descriptor from which blocked signals are read.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

/// One signal that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Its number.
    pub signal: c_int,
    /// Why it was sent (`si_code`): the kernel for the terminal, or another process.
    pub code: i32,
    /// The process that sent it, or whose end the kernel tells of (`PR_SET_PDEATHSIG`).
    pub sender: i32,
}

impl Arrived {
    /// Tells whether a process sent it, as opposed to the terminal, which tells the whole foreground group.
    #[must_use]
    pub fn sent_by_a_process(self) -> bool {
        self.code <= 0
    }
}

impl SignalFd {
    /// Opens one for a set that the caller has blocked.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn new(set: SignalSet) -> io::Result<Self> {
        let set = set.to_sigset();
        // SAFETY: `set` is a valid sigset_t; -1 asks for a new descriptor, which belongs to nobody else yet.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned a fresh descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes one signal, if one waits.
    pub fn take(&self) -> Option<Arrived> {
        let mut raw = [0_u8; 128];
        let read = rustix::io::read(&self.0, &mut raw).ok()?;
        if read < raw.len() {
            return None;
        }
        let word = |at: usize| {
            raw.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes)
        };
        Some(Arrived { signal: word(0)?, code: word(8)?, sender: word(12)? })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes over a descriptor that was inherited under a known number.
///
/// # Errors
/// It isn't open.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: only borrowed for the one call, which reports EBADF when the number isn't open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(borrowed)?;
    // SAFETY: it is open, and by the contract between the launcher and its own helper process this number was passed
    // to be owned by the one call that names it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets close-on-exec on every descriptor from `first` upwards.
///
/// # Errors
/// The kernel is older than 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now, so no owner's descriptor becomes invalid.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes these the standard input and output, in this order, and closes everything else. For a child between fork and its end.
///
/// # Errors
/// The kernel is older than 5.9, or a descriptor is invalid.
pub fn keep_two(first: BorrowedFd<'_>, second: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // Out of the way of each other.
    let second = rustix::io::fcntl_dupfd_cloexec(second, 3)?;
    rustix::stdio::dup2_stdin(first)?;
    rustix::stdio::dup2_stdout(&second)?;
    // SAFETY: close_range(2) reads no memory. In a child that goes on with nothing but these two, the owners of the other
    // numbers aren't used or dropped any more: it leaves through _exit(2). `second` is among them, so it is forgotten.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 2_u32, u32::MAX, 0_u32) };
    std::mem::forget(second);
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes `fd` also the standard error of this process.
///
/// # Errors
/// It can't be duplicated.
pub fn become_stderr(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stderr(fd).map_err(io::Error::from)
}

/// Clears close-on-exec, so that the next program inherits the descriptor.
///
/// # Errors
/// The descriptor is invalid.
pub fn keep_over_exec(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())
}

/// Makes `new` refer to what `fd` refers to, close-on-exec. What `new` was before is closed.
///
/// # Errors
/// The system call fails.
pub fn dup_onto(fd: BorrowedFd<'_>, new: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: `new` is open and borrowed, so its number stays the owner's: the owner still owns exactly one open
    // descriptor of that number afterwards, only of another file.
    let result = unsafe { libc::dup3(fd.as_raw_fd(), new.as_raw_fd(), libc::O_CLOEXEC) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Makes each of `fds` also appear under the number at the same place in `numbers`, inherited over exec.
///
/// # Errors
/// A number is negative, one of the standard streams', or above the limit.
pub fn place(fds: &[OwnedFd], numbers: &[i32]) -> rustix::io::Result<()> {
    let above = numbers.iter().copied().max().map_or(3, |most| most.saturating_add(1));
    // First out of the way of each other, then to where they belong.
    let mut moved = Vec::with_capacity(fds.len());
    for fd in fds {
        moved.push(rustix::io::fcntl_dupfd_cloexec(fd, above)?);
    }
    for (fd, &number) in moved.iter().zip(numbers) {
        if number <= 2 {
            return Err(Errno::BADF);
        }
        // SAFETY: dup2(2) onto a number closes what it was. In this process, between fork and exec, nothing below
        // `above` is used afterwards except the three standard streams, which were excluded.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Sends a signal by number to a child that isn't reaped yet.
///
/// # Errors
/// It may not be signalled.
pub fn kill(pid: Pid, signal: c_int) -> rustix::io::Result<()> {
    // SAFETY: kill(2) has no memory-safety precondition.
    if unsafe { libc::kill(pid.as_raw_pid(), signal) } < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Tells whether a child is still in the caller's process group, so that what the group gets it gets too.
#[must_use]
pub fn shares_group(child: Pid) -> bool {
    // SAFETY: getpgid(2) has no memory-safety precondition. A group whose leader lies outside this PID namespace reads
    // as 0 for both.
    unsafe { libc::getpgid(child.as_raw_pid()) == libc::getpgid(0) }
}

/// Sends a signal to every process of this PID namespace but the caller. Only for process 1 of a namespace.
///
/// # Errors
/// There is no other, or the caller isn't process 1.
pub fn kill_all(signal: c_int) -> rustix::io::Result<()> {
    if rustix::process::getpid().as_raw_pid() != 1 {
        return Err(Errno::PERM);
    }
    // SAFETY: kill(2) has no memory-safety precondition; the check above keeps it inside a namespace of our own.
    if unsafe { libc::kill(-1, signal) } < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Enters a Landlock domain that restricts nothing but signals and abstract Unix sockets to outside of it. With `refer`
/// it allows by name that files are linked and renamed from one directory to another.
///
/// # Errors
/// The kernel is older than ABI 6, or the process may still gain privileges.
pub fn landlock_scope(refer: bool) -> rustix::io::Result<()> {
    #[repr(C)]
    struct Attributes {
        handled_access_fs: u64,
        handled_access_net: u64,
        scoped: u64,
    }
    const ABSTRACT_UNIX_SOCKET: u64 = 1;
    const SIGNAL: u64 = 2;
    const REFER: u64 = 1 << 13;
    const PATH_BENEATH: u32 = 1;
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: RawFd,
    }
    let attributes = Attributes {
        handled_access_fs: if refer { REFER } else { 0 },
        handled_access_net: 0,
        scoped: ABSTRACT_UNIX_SOCKET | SIGNAL,
    };
    // SAFETY: the pointer and size describe `attributes`, laid out as `struct landlock_ruleset_attr` of ABI 6; the
    // call only reads it.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<Attributes>(),
            0_u32,
        )
    };
    let Some(ruleset) = RawFd::try_from(ruleset).ok().filter(|&fd| fd >= 0) else {
        return Err(last_errno());
    };
    // SAFETY: the call above returned a fresh descriptor.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    if refer {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let root = rustix::fs::open(c"/", flags, rustix::fs::Mode::empty())?;
        let rule = PathBeneath { allowed_access: REFER, parent_fd: root.as_raw_fd() };
        // SAFETY: the pointer is to `rule`, laid out as `struct landlock_path_beneath_attr`, which is packed; the call only
        // reads it, and both descriptors are open.
        let added = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                ruleset.as_raw_fd(),
                PATH_BENEATH,
                &raw const rule,
                0_u32,
            )
        };
        if added < 0 {
            return Err(last_errno());
        }
    }
    // SAFETY: restricting itself is the purpose; the call takes a descriptor and no pointer.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Gives the process a session keyring of its own, so that the caller's keys can't be reached.
///
/// # Errors
/// The kernel has no keyrings, or forbids it.
pub fn new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: keyctl(KEYCTL_JOIN_SESSION_KEYRING, NULL) reads no memory of ours.
    let result =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, ptr::null::<c_char>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the newest Landlock ABI that the kernel has.
///
/// # Errors
/// Landlock isn't built in, or not switched on.
pub fn landlock_abi() -> io::Result<i64> {
    const VERSION: u32 = 1;
    // SAFETY: with the version flag the attribute pointer must be null and its size zero; nothing is read or written.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<u8>(), 0_usize, VERSION)
    };
    if abi < 0 { Err(io::Error::last_os_error()) } else { Ok(abi) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_set_and_given_back() {
        let old = set_signal_mask(SignalSet::default().with(libc::SIGUSR1));
        let mine = set_signal_mask(old);
        assert!(mine.contains(libc::SIGUSR1) && !mine.contains(libc::SIGUSR2));
    }

    #[test]
    fn a_dropped_child_is_dead_and_reaped() {
        let child = fork(|| {
            loop {
                std::hint::spin_loop();
            }
        })
        .unwrap();
        let pid = child.pid();
        drop(child);
        assert_eq!(rustix::process::test_kill_process(pid), Err(Errno::SRCH));
    }

    #[test]
    fn a_child_gives_its_status() {
        let mut child = fork(|| 7).unwrap();
        assert_eq!(child.wait().unwrap(), 7 << 8);
    }
}
