//! The system calls that the battery of escapes tries and that nothing else here needs.

use std::ffi::{CStr, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;

use super::{change_below, last_errno};

fn checked(result: c_long) -> rustix::io::Result<u64> {
    u64::try_from(result).map_err(|_| last_errno())
}

fn descriptor(result: c_long) -> rustix::io::Result<OwnedFd> {
    let raw = RawFd::try_from(checked(result)?).map_err(|_| Errno::BADF)?;
    // SAFETY: every caller passes the result of a call that returns a fresh descriptor, owned by nobody yet.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Maps the first page of a file, shared and for writing where the file was opened for it, for the rest of this process's life.
///
/// # Errors
/// It can't be mapped.
pub fn map_for_good(
    file: BorrowedFd<'_>,
    writable: bool,
) -> io::Result<&'static [std::sync::atomic::AtomicU8]> {
    const LENGTH: usize = 1;
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping at an address of the kernel's choice, which is never unmapped.
    let at = unsafe {
        libc::mmap(ptr::null_mut(), LENGTH, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is at least `LENGTH` bytes long, lives for good, and others who change it make the bytes atomics.
    // A caller who maps it for reading must not store.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), LENGTH) })
}

/// Attaches to a process and overwrites a word of its memory, then lets it go.
///
/// # Errors
/// It can't be traced.
pub fn trace_and_write(pid: Pid, address: u64, word: [u8; 8]) -> rustix::io::Result<()> {
    let trace = |request: c_int, address: u64, data: u64| {
        // SAFETY: none of the requests made here reads or writes memory of this process.
        let result =
            unsafe { libc::syscall(libc::SYS_ptrace, request, pid.as_raw_pid(), address, data) };
        checked(result)
    };
    trace(0x4206, 0, 0)?; // PTRACE_SEIZE
    trace(0x4207, 0, 0)?; // PTRACE_INTERRUPT
    let _stopped = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let written = trace(5, address, u64::from_ne_bytes(word)); // PTRACE_POKEDATA
    trace(17, 0, 0)?; // PTRACE_DETACH
    written.map(drop)
}

/// Writes into another process's memory.
///
/// # Errors
/// It can't be reached.
pub fn write_memory(pid: Pid, address: u64, bytes: &[u8]) -> rustix::io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    let remote =
        libc::iovec { iov_base: ptr::without_provenance_mut(address), iov_len: bytes.len() };
    // SAFETY: the kernel only reads the local bytes; the remote address is another process's.
    let written = unsafe {
        libc::process_vm_writev(pid.as_raw_pid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    if written < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Opens the file that a path leads to by its handle, for writing or reading, through a descriptor of its file system.
///
/// # Errors
/// One of the two calls fails.
pub fn open_by_handle(
    path: &CStr,
    mount: BorrowedFd<'_>,
    flags: c_int,
) -> rustix::io::Result<OwnedFd> {
    // struct file_handle with room for the largest handle.
    let mut handle = [0_u32; 2 + 32];
    if let Some(size) = handle.first_mut() {
        *size = 128;
    }
    let mut mount_id: c_int = 0;
    // SAFETY: `handle` has room for as many bytes as its first word says after its two words; `mount_id` is an int.
    let named = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount_id,
            0,
        )
    };
    checked(named)?;
    // SAFETY: the handle is the one that the kernel filled in, and is only read.
    descriptor(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), handle.as_ptr(), flags)
    })
}

/// Pushes a byte into the input of a terminal.
///
/// # Errors
/// The kernel or a filter refuses.
pub fn push_input(terminal: BorrowedFd<'_>, byte: u8) -> rustix::io::Result<()> {
    // SAFETY: TIOCSTI reads one byte.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSTI, &raw const byte) };
    checked(c_long::from(result)).map(drop)
}

/// Asks a virtual console for its shift state, with the call that also pastes.
///
/// # Errors
/// It is no console, or the call is refused.
pub fn ask_console(terminal: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut subcode = [6_u8; 8]; // TIOCL_GETSHIFTSTATE
    // SAFETY: the subcode reads one byte and writes one byte.
    let result =
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCLINUX, subcode.as_mut_ptr()) };
    checked(c_long::from(result)).map(drop)
}

/// A System V object that another process may know by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// Shared memory.
    Memory,
    /// Semaphores.
    Semaphore,
    /// A message queue.
    Queue,
}

impl Object {
    /// Returns the object with this key, made first where `make`.
    ///
    /// # Errors
    /// There is none.
    pub fn get(self, key: i32, make: bool) -> rustix::io::Result<c_int> {
        let flags = 0o600 | if make { libc::IPC_CREAT | libc::IPC_EXCL } else { 0 };
        // SAFETY: these calls take numbers only.
        let id = unsafe {
            match self {
                Self::Memory => libc::shmget(key, 4096, flags),
                Self::Semaphore => libc::semget(key, 1, flags),
                Self::Queue => libc::msgget(key, flags),
            }
        };
        if id < 0 { Err(last_errno()) } else { Ok(id) }
    }

    /// Changes it: a byte of the memory, the semaphore's value, a message in the queue.
    ///
    /// # Errors
    /// It may not be changed.
    pub fn change(self, id: c_int) -> rustix::io::Result<()> {
        let message: [c_long; 2] = [1, 7];
        // SAFETY: the memory is attached where the kernel chooses and is at least a page; the byte is written before it is
        // detached. SETVAL takes a number. The message is its type and one word.
        let result = unsafe {
            match self {
                Self::Memory => {
                    let at = libc::shmat(id, ptr::null(), 0);
                    if at.addr() == usize::MAX {
                        return Err(last_errno());
                    }
                    at.cast::<u8>().write_volatile(7);
                    libc::shmdt(at)
                }
                Self::Semaphore => libc::semctl(id, 0, libc::SETVAL, 7),
                Self::Queue => {
                    libc::msgsnd(id, message.as_ptr().cast(), size_of::<c_long>(), libc::IPC_NOWAIT)
                }
            }
        };
        if result < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Tells whether somebody changed it.
    #[must_use]
    pub fn is_changed(self, id: c_int) -> bool {
        let mut message = [0_u64; 2];
        // SAFETY: as in `change`; the message's room is as large as is said.
        unsafe {
            match self {
                Self::Memory => {
                    let at = libc::shmat(id, ptr::null(), libc::SHM_RDONLY);
                    if at.addr() == usize::MAX {
                        return false;
                    }
                    let changed = at.cast::<u8>().read_volatile() != 0;
                    libc::shmdt(at);
                    changed
                }
                Self::Semaphore => libc::semctl(id, 0, libc::GETVAL) > 0,
                Self::Queue => {
                    libc::msgrcv(id, message.as_mut_ptr().cast(), 8, 0, libc::IPC_NOWAIT) >= 0
                }
            }
        }
    }

    /// Removes it.
    pub fn remove(self, id: c_int) {
        // SAFETY: removing takes no memory of ours.
        unsafe {
            match self {
                Self::Memory => libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()),
                Self::Semaphore => libc::semctl(id, 0, libc::IPC_RMID),
                Self::Queue => libc::msgctl(id, libc::IPC_RMID, ptr::null_mut()),
            }
        };
    }
}

/// Opens a POSIX message queue by its name, without waiting for messages; makes it first where `make`.
///
/// # Errors
/// There is none.
pub fn queue(name: &CStr, make: bool) -> rustix::io::Result<OwnedFd> {
    let flags = libc::O_RDWR
        | libc::O_NONBLOCK
        | libc::O_CLOEXEC
        | if make { libc::O_CREAT | libc::O_EXCL } else { 0 };
    // SAFETY: the name is a C string without its slash, as the call wants it; no attributes are given.
    descriptor(unsafe {
        libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0o600, ptr::null::<u8>())
    })
}

/// Sends a byte to a POSIX message queue.
///
/// # Errors
/// It is full.
pub fn queue_send(queue: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: one byte is read.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mq_timedsend,
            queue.as_raw_fd(),
            c"x".as_ptr(),
            1_usize,
            0_u32,
            ptr::null::<u8>(),
        )
    })
    .map(drop)
}

/// Tells whether a POSIX message queue holds something.
#[must_use]
pub fn queue_holds(queue: BorrowedFd<'_>) -> bool {
    let mut room = vec![0_u8; 64 << 10];
    // SAFETY: the room is as long as is said.
    let received = unsafe {
        libc::syscall(
            libc::SYS_mq_timedreceive,
            queue.as_raw_fd(),
            room.as_mut_ptr(),
            room.len(),
            ptr::null::<u32>(),
            ptr::null::<u8>(),
        )
    };
    received >= 0
}

/// Removes the name of a POSIX message queue.
pub fn queue_remove(name: &CStr) {
    // SAFETY: the call reads a C string.
    unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) };
}

/// The user's keyring, by the number that stands for it.
const USER_KEYRING: c_long = -4;

/// Puts a key with one byte in the user's keyring.
///
/// # Errors
/// The kernel has no keys, or refuses.
pub fn key_add(name: &CStr, byte: u8) -> rustix::io::Result<()> {
    // SAFETY: two C strings and one byte are read.
    checked(unsafe {
        libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            name.as_ptr(),
            &raw const byte,
            1_usize,
            USER_KEYRING,
        )
    })
    .map(drop)
}

/// Returns the byte in a key of the user's keyring, and takes it out of there.
#[must_use]
pub fn key_take(name: &CStr) -> Option<u8> {
    const UNLINK: c_long = 9;
    const SEARCH: c_long = 10;
    const READ: c_long = 11;
    let mut byte = 0_u8;
    // SAFETY: C strings are read, and one byte is written.
    unsafe {
        let key = libc::syscall(
            libc::SYS_keyctl,
            SEARCH,
            USER_KEYRING,
            c"user".as_ptr(),
            name.as_ptr(),
            0,
        );
        if key < 0 {
            return None;
        }
        let read = libc::syscall(libc::SYS_keyctl, READ, key, &raw mut byte, 1_usize);
        libc::syscall(libc::SYS_keyctl, UNLINK, key, USER_KEYRING);
        (read == 1).then_some(byte)
    }
}

/// A call that only an unconfined administrator can make, made so that it changes nothing: the kernel looks at the right
/// first, and finds the arguments wrong only then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileged {
    /// Loading a module that is none.
    Module,
    /// Restarting with the wrong password.
    Reboot,
    /// Another kernel, with wrong flags.
    Kexec,
    /// Swapping to a file that isn't there.
    Swap,
    /// A kernel program's map.
    Bpf,
    /// Counting what all processes do.
    Perf,
    /// Handling the kernel's own page faults.
    Userfaultfd,
    /// Access to ports.
    Ports,
}

impl Privileged {
    /// Makes the call.
    ///
    /// # Errors
    /// The right is missing, or the call is.
    pub fn attempt(self) -> rustix::io::Result<()> {
        // struct perf_event_attr: a software event; union bpf_attr: an array of one.
        let perf: [u32; 32] = [
            1, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,
        ];
        let map: [u32; 18] = [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: what is pointed to is only read, and is as long as is said or a C string.
        let result = unsafe {
            match self {
                Self::Module => libc::syscall(
                    libc::SYS_init_module,
                    c"no module".as_ptr(),
                    9_usize,
                    c"".as_ptr(),
                ),
                Self::Reboot => libc::syscall(libc::SYS_reboot, 1, 2, 3, ptr::null::<u8>()),
                Self::Kexec => {
                    libc::syscall(libc::SYS_kexec_load, 0, 0, ptr::null::<u8>(), 0x5555_u64)
                }
                Self::Swap => libc::syscall(libc::SYS_swapon, c"/nonexistent/swap".as_ptr(), 0),
                Self::Bpf => libc::syscall(libc::SYS_bpf, 0, map.as_ptr(), size_of_val(&map)),
                Self::Perf => libc::syscall(libc::SYS_perf_event_open, perf.as_ptr(), -1, 0, -1, 0),
                Self::Userfaultfd => libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC),
                #[cfg(target_arch = "x86_64")]
                Self::Ports => libc::syscall(libc::SYS_iopl, 3),
                #[cfg(not(target_arch = "x86_64"))]
                Self::Ports => {
                    return Err(Errno::NOSYS);
                }
            }
        };
        match (self, checked(result)) {
            (_, Ok(_)) => Ok(()),
            // It got past the check of rights.
            (Self::Module | Self::Reboot | Self::Kexec, Err(Errno::INVAL | Errno::NOEXEC)) => {
                Ok(())
            }
            (Self::Swap, Err(Errno::NOENT)) => Ok(()),
            (_, Err(other)) => Err(other),
        }
    }
}

/// Connects a socket through `io_uring`, whose operations no filter sees.
///
/// # Errors
/// There is no `io_uring`, or the connection fails.
pub fn connect_by_ring(socket: BorrowedFd<'_>, address: &[u8]) -> rustix::io::Result<()> {
    const CONNECT: u8 = 16;
    let mut parameters = [0_u32; 30];
    // SAFETY: the parameters are 120 bytes, as the call wants them.
    let ring =
        descriptor(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) })?;
    let word = |index: usize| parameters.get(index).copied().unwrap_or(0);
    let place = |offset: u32| usize::try_from(offset).unwrap_or(0);
    let map = |offset: i64| {
        // SAFETY: the kernel's own rings are mapped; a page holds what four entries need.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                ring.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED { Err(last_errno()) } else { Ok(at.cast::<u8>()) }
    };
    let (queue, entries) = (map(0)?, map(0x1000_0000)?);
    // IORING_FEAT_SINGLE_MMAP: both rings are in the first mapping.
    let done = if word(5) & 1 == 1 { queue } else { map(0x800_0000)? };
    let length = u64::try_from(address.len()).map_err(|_| Errno::INVAL)?;
    let number = socket.as_raw_fd().to_ne_bytes();
    // SAFETY: the offsets come from the kernel (struct io_sqring_offsets begins at word 10, io_cqring_offsets at word 20);
    // the first entry of a new queue is written: opcode, descriptor, length as offset, address. All lie in the pages mapped.
    unsafe {
        entries.write_bytes(0, 64);
        entries.write(CONNECT);
        entries.add(4).copy_from_nonoverlapping(number.as_ptr(), 4);
        entries.add(8).cast::<u64>().write(length);
        entries.add(16).cast::<*const u8>().write(address.as_ptr());
        queue.add(place(word(16))).cast::<u32>().write(0);
        queue.add(place(word(11))).cast::<u32>().write_volatile(1);
        let entered = libc::syscall(
            libc::SYS_io_uring_enter,
            ring.as_raw_fd(),
            1,
            1,
            1,
            ptr::null::<u8>(),
            0_usize,
        );
        checked(entered)?;
        let result = done.add(place(word(25))).add(8).cast::<i32>().read_volatile();
        if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) }
    }
}

/// Changes the limit on open files of another process.
///
/// # Errors
/// It can't be reached.
pub fn limit_files(pid: Pid) -> rustix::io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: 77, rlim_max: 77 };
    // SAFETY: one limit is read, nothing is written.
    checked(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            pid.as_raw_pid(),
            libc::RLIMIT_NOFILE,
            &raw const limit,
            ptr::null::<u8>(),
        )
    })
    .map(drop)
}

/// Makes every mount at and below a path writable.
///
/// # Errors
/// The kernel forbids it.
pub fn writable_below(path: &CStr) -> rustix::io::Result<()> {
    change_below(path, 0, libc::MOUNT_ATTR_RDONLY)
}

/// Truncates a file by its name.
///
/// # Errors
/// It may not be written.
pub fn truncate(path: &CStr) -> io::Result<()> {
    // SAFETY: the call reads a C string.
    if unsafe { libc::truncate(path.as_ptr(), 0) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
