//! Copying what is in files and what is known of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, StatxFlags};
use rustix::io::Errno;
use stockade_policy::text::Bytes;

use super::record::{File, Left};

/// The longest value of an extended attribute, and the longest list of their names.
const LARGEST: usize = 64 * 1024;

/// What `statx(2)` says of a file, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub dev: u64,
    pub ino: u64,
    pub links: u32,
    pub left: Left,
    pub atime: i64,
    pub rdev: u64,
}

impl Seen {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.left.mode)
    }
}

fn nanos(time: rustix::fs::StatxTimestamp) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
}

/// Looks at a name in a directory, or with an empty one at what the descriptor stands for.
pub(crate) fn look(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Seen> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let x = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)?;
    Ok(Seen {
        dev: u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor),
        ino: x.stx_ino,
        links: x.stx_nlink,
        left: Left {
            mode: u32::from(x.stx_mode),
            uid: x.stx_uid,
            gid: x.stx_gid,
            size: x.stx_size,
            mtime: nanos(x.stx_mtime),
            xattrs: None,
        },
        atime: nanos(x.stx_atime),
        rdev: rustix::fs::makedev(x.stx_rdev_major, x.stx_rdev_minor),
    })
}

/// The path that names what a descriptor stands for, for calls that take no descriptor opened with `O_PATH`.
pub(crate) fn magic(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Reads the attributes of what `pin` stands for; it may be opened with `O_PATH`.
///
/// # Errors
/// They can't be read.
pub fn attributes(pin: BorrowedFd<'_>) -> io::Result<File> {
    let seen = look(pin, b"")?;
    let target = if seen.kind() == FileType::Symlink {
        Some(Bytes::new(rustix::fs::readlinkat(pin, c"", Vec::new())?.into_bytes()))
    } else {
        None
    };
    Ok(File {
        mode: seen.left.mode,
        uid: seen.left.uid,
        gid: seen.left.gid,
        size: seen.left.size,
        atime: seen.atime,
        mtime: seen.left.mtime,
        rdev: seen.rdev,
        target,
        xattrs: xattrs(pin)?,
    })
}

/// Reads the extended attributes of what `pin` stands for.
pub(crate) fn xattrs(pin: BorrowedFd<'_>) -> io::Result<Vec<(Bytes, Bytes)>> {
    let link = magic(pin);
    let mut names = vec![0_u8; LARGEST];
    let length = match rustix::fs::listxattr(&link, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut all = Vec::new();
    let mut value = vec![0_u8; LARGEST];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match rustix::fs::getxattr(&link, name, &mut value[..]) {
            Ok(length) => all.push((Bytes::new(name), Bytes::new(&value[..length]))),
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    all.sort_by(|one, other| one.0.as_slice().cmp(other.0.as_slice()));
    Ok(all)
}

/// Returns a digest (FNV-1a) of the extended attributes of what `pin` stands for.
pub(crate) fn digest(pin: BorrowedFd<'_>) -> io::Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, value) in xattrs(pin)? {
        for part in [name.as_slice(), &value.as_slice().len().to_le_bytes(), value.as_slice()] {
            for byte in part {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    Ok(hash)
}

/// Copies what is in a file into an empty one: a reflink where the file system has them, else in the kernel, else by
/// hand.
///
/// # Errors
/// It can't be read or written.
pub fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let (mut read_at, mut write_at) = (0, 0);
    loop {
        let (at, place) = (Some(&mut read_at), Some(&mut write_at));
        match rustix::fs::copy_file_range(from, at, to, place, 1 << 30) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let length = match rustix::io::pread(from, &mut buffer[..], read_at) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let mut done = 0;
        while done < length {
            done += rustix::io::pwrite(to, &buffer[done..length], write_at + done as u64)?;
        }
        read_at += length as u64;
        write_at += length as u64;
    }
}

/// Tells whether two looks saw the same file.
pub(crate) fn same(one: &Seen, dev: u64, ino: u64) -> bool {
    (one.dev, one.ino) == (dev, ino)
}

/// Opens what a pin stands for; only for regular files and directories.
pub(crate) fn reopen(
    pin: impl AsFd,
    flags: rustix::fs::OFlags,
) -> io::Result<std::os::fd::OwnedFd> {
    let flags = flags | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
    Ok(rustix::fs::open(magic(pin.as_fd()), flags, rustix::fs::Mode::empty())?)
}
