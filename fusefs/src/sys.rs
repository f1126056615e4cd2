//! The raw system calls that rustix lacks. Everything here takes borrowed descriptors and gives owned values.
#![expect(unsafe_code, reason = "system calls without a safe wrapper live here and nowhere else")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::UnshareFlags;

/// The opaque identity that `name_to_handle_at(2)` gives: a type and up to 128 bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FileHandle {
    kind: i32,
    bytes: Box<[u8]>,
}

impl FileHandle {
    /// Returns a 64-bit digest (FNV-1a), which stands for the generation in keys and events.
    pub fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.kind.to_le_bytes().iter().chain(self.bytes.iter()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash
    }
}

const MAX_HANDLE: usize = 128;

#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    f_handle: [u8; MAX_HANDLE],
}

/// `name_to_handle_at(2)`: identity only, never opened by us without the capability. An empty `name` means `dir` itself.
pub fn file_handle(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<FileHandle> {
    let mut raw = RawHandle { handle_bytes: 128, handle_type: 0, f_handle: [0; MAX_HANDLE] };
    let mut mount_id: libc::c_int = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: `dir` is an open descriptor for the call's duration, `name` is NUL-terminated, `raw` has room for the
    // 128 bytes that `handle_bytes` announces and has the layout of `struct file_handle`, and `mount_id` is a valid
    // int; the kernel keeps none of the pointers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let length =
        usize::try_from(raw.handle_bytes).map_or(MAX_HANDLE, |length| length.min(MAX_HANDLE));
    Ok(FileHandle { kind: raw.handle_type, bytes: raw.f_handle[..length].into() })
}

/// `FILEID_INO32_GEN` (linux/exportfs.h): a number and a generation, the handles of the ext file systems.
const INO32_GEN: i32 = 1;

/// Opens, as `O_PATH`, what the file system of `mount` has by an inode number, of any generation
/// (`open_by_handle_at(2)`). It needs `CAP_DAC_READ_SEARCH`, and a file system that takes generation 0 for any: ext4.
pub fn open_by_number(mount: BorrowedFd<'_>, number: u64) -> io::Result<OwnedFd> {
    let number = u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut raw = RawHandle { handle_bytes: 8, handle_type: INO32_GEN, f_handle: [0; MAX_HANDLE] };
    raw.f_handle[..4].copy_from_slice(&number.to_ne_bytes());
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: `mount` is an open descriptor for the call's duration; `raw` has the layout of `struct file_handle` and the
    // 8 bytes that `handle_bytes` announces, and the kernel keeps no pointer to it.
    let result = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const raw, flags)
    };
    let fd = i32::try_from(result).map_err(|_| io::ErrorKind::InvalidData)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

// _IOW(229, 1, struct fuse_backing_map) and _IOW(229, 2, uint32_t), from <linux/fuse.h>.
const BACKING_OPEN: libc::c_ulong = 0x4010_e501;
const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

/// Registers `file` with the connection of `device` for kernel passthrough and returns its id.
pub fn backing_open(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: both descriptors are open; `map` has the layout of `struct fuse_backing_map` and outlives the call, which
    // only reads it. The kernel takes its own reference to the file.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Gives an id of [`backing_open`] back. Opens that use it keep working.
pub fn backing_close(device: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    // SAFETY: the descriptor is open and the argument is a pointer to a `uint32_t` that outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives this thread its own umask and working directory, so that setting the umask touches no other thread.
pub fn unshare_thread_fs() -> io::Result<()> {
    // SAFETY: CLONE_FS only separates this thread's umask, root and working directory from the process's; no
    // descriptor table is involved, and no code here relies on those three being shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.map_err(io::Error::from)
}

/// Gives memory that was freed back to the system (`malloc_trim(3)`); the allocator keeps what lies between other pieces.
/// Does nothing where the C library isn't the GNU one.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a plain number, keeps no pointer and locks the allocator's own arenas, so that other threads
    // may allocate meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sets the ids that this thread creates files with (`setfsuid(2)`, `setfsgid(2)`; Linux keeps them per thread), and
/// says whether both took.
pub fn set_fs_ids(uid: u32, gid: u32) -> bool {
    // SAFETY: both calls take plain integers and touch only this thread's credentials. They report no errors; asking
    // again with an invalid id returns the value in force.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        libc::setfsgid(u32::MAX) == gid.cast_signed()
            && libc::setfsuid(u32::MAX) == uid.cast_signed()
    }
}
