//! The host's side: what is asked of the file system below, by descriptor and single component only (`I1`).

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use stockade_observe::{Key, Version};

use crate::error::{FsError, FsResult};
use crate::sys;

/// A point in time as the kernel gives it: seconds (may be negative) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub sec: i64,
    pub nsec: u32,
}

impl Stamp {
    /// Returns nanoseconds since the epoch, saturated.
    pub fn nanos(self) -> i64 {
        self.sec.saturating_mul(1_000_000_000).saturating_add(i64::from(self.nsec))
    }
}

/// What `statx(2)` says of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub blksize: u32,
    pub rdev: u32,
    pub atime: Stamp,
    pub mtime: Stamp,
    pub ctime: Stamp,
}

impl Stat {
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    pub fn is_regular(&self) -> bool {
        self.file_type() == FileType::RegularFile
    }

    /// Tells whether it is what `RENAME_WHITEOUT` leaves: a character device of number 0.
    pub fn is_whiteout(&self) -> bool {
        self.file_type() == FileType::CharacterDevice && self.rdev == 0
    }

    pub fn version(&self) -> Version {
        Version { size: self.size, mtime: self.mtime.nanos(), ctime: self.ctime.nanos() }
    }
}

impl From<Statx> for Stat {
    fn from(x: Statx) -> Self {
        let stamp = |t: rustix::fs::StatxTimestamp| Stamp { sec: t.tv_sec, nsec: t.tv_nsec };
        Self {
            dev: u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor),
            ino: x.stx_ino,
            mode: u32::from(x.stx_mode),
            nlink: x.stx_nlink,
            uid: x.stx_uid,
            gid: x.stx_gid,
            size: x.stx_size,
            blocks: x.stx_blocks,
            blksize: x.stx_blksize,
            rdev: kernel_dev(x.stx_rdev_major, x.stx_rdev_minor),
            atime: stamp(x.stx_atime),
            mtime: stamp(x.stx_mtime),
            ctime: stamp(x.stx_ctime),
        }
    }
}

/// Packs a device number as FUSE carries it (`new_encode_dev`).
fn kernel_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Unpacks a device number that FUSE carried.
pub fn unpack_dev(dev: u32) -> u64 {
    fs::makedev((dev & 0xfff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xfff00))
}

/// Checks that `name` is one component that can be looked up below a directory.
pub fn component(name: &OsStr) -> FsResult<CString> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(Errno::INVAL.into());
    }
    if bytes.len() > 255 {
        return Err(Errno::NAMETOOLONG.into());
    }
    CString::new(bytes).map_err(|_| Errno::INVAL.into())
}

const MASK: StatxFlags = StatxFlags::BASIC_STATS;

/// Stats one component below `dir`, never following it. `DONT_SYNC`: on a local file system it changes nothing, and it
/// keeps us from asking ourselves when our own mount stands below the source.
pub fn stat_at(dir: BorrowedFd<'_>, name: &CString) -> FsResult<Stat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    Ok(fs::statx(dir, name, flags, MASK)?.into())
}

/// Set-user-id and set-group-id.
pub const SET_ID: u32 = 0o6000;

/// Tells whether a file has a set-id bit.
pub fn has_set_id(fd: BorrowedFd<'_>) -> bool {
    stat_fd(fd).is_ok_and(|stat| stat.mode & SET_ID != 0)
}

/// Stats what a descriptor stands for.
pub fn stat_fd(fd: BorrowedFd<'_>) -> FsResult<Stat> {
    Ok(fs::statx(fd, c"", AtFlags::EMPTY_PATH, MASK)?.into())
}

/// Opens one component below `dir` as a pin: no access, no side effect on FIFOs or devices, never following a link.
pub fn pin_at(dir: BorrowedFd<'_>, name: &CString) -> FsResult<OwnedFd> {
    Ok(fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the generation of a component below `dir` (or of `dir` itself, with an empty name): a digest of its file
/// handle, or of nothing where the file system has no handles.
pub fn generation(dir: BorrowedFd<'_>, name: &CString) -> u64 {
    sys::file_handle(dir, name).map_or(0, |handle| handle.digest())
}

/// Returns the key of what is pinned by `fd`.
pub fn key_of(fd: BorrowedFd<'_>, stat: &Stat) -> Key {
    Key { dev: stat.dev, ino: stat.ino, generation: generation(fd, &CString::default()) }
}

/// The process's own `/proc/self/fd`, held open: the way from a pin to an open file.
#[derive(Debug)]
pub struct SelfFd(OwnedFd);

impl SelfFd {
    /// Opens it; `/proc` must be mounted.
    pub fn open() -> FsResult<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(fs::openat(CWD, c"/proc/self/fd", flags, Mode::empty())?))
    }

    /// Opens what `pin` stands for. Only for regular files and directories: opening a FIFO could block, a device could act.
    pub fn open_pin(&self, pin: BorrowedFd<'_>, flags: OFlags) -> FsResult<OwnedFd> {
        let flags = (flags | OFlags::CLOEXEC | OFlags::NOCTTY)
            .difference(OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL);
        Ok(fs::openat(&self.0, number(pin), flags, Mode::empty())?)
    }

    /// Makes a pin of what an open file stands for.
    pub fn open_path(&self, fd: BorrowedFd<'_>) -> FsResult<OwnedFd> {
        Ok(fs::openat(&self.0, number(fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Returns the path at which the kernel has a pinned file now; a removed file's is no path that leads anywhere.
    pub fn where_is(&self, pin: BorrowedFd<'_>) -> FsResult<PathBuf> {
        let path = fs::readlinkat(&self.0, number(pin), Vec::with_capacity(256))?;
        Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
    }

    /// `chmod(2)` by pin.
    pub fn chmod(&self, pin: BorrowedFd<'_>, mode: u32) -> FsResult<()> {
        Ok(fs::chmodat(&self.0, number(pin), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?)
    }

    /// `link(2)` by pin.
    pub fn link(&self, pin: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CString) -> FsResult<()> {
        Ok(fs::linkat(&self.0, number(pin), dir, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// Returns the name of a descriptor below `/proc/self/fd`.
fn number(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd().to_string()
}

/// Returns the magic link of a descriptor, for the calls that take no directory (extended attributes).
pub fn magic_link(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", number(fd))
}

/// Tells whether an open error means that the name leads elsewhere by now.
pub fn vanished(error: FsError) -> FsError {
    if matches!(error, FsError::Host(Errno::NOENT | Errno::LOOP | Errno::NOTDIR)) {
        FsError::Stale
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_components_are_names() {
        for bad in ["", ".", "..", "a/b", "/"] {
            assert!(component(OsStr::new(bad)).is_err(), "{bad:?}");
        }
        assert!(component(OsStr::from_bytes(&[b'a'; 256])).is_err());
        assert!(component(OsStr::from_bytes(b"\xff\xfe")).is_ok());
    }

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(1, 3), (8, 17), (259, 300), (10, 229)] {
            assert_eq!(unpack_dev(kernel_dev(major, minor)), fs::makedev(major, minor));
        }
    }
}
