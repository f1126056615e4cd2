//! Mounts that others see: made by mount(2) as root, by `fusermount3` for a user, and taken away again.
//!
//! A run needs none of this: its mounts live and die in a namespace of their own.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use stockade_fusefs::Owner;

use crate::error::{Code, Failure};
use crate::namespace::DEVICE;
use crate::{probe, sys};

/// The source that our mounts show in the mount table; a long-lived one adds a colon and the directory it serves.
pub const SOURCE: &str = "stockade";

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is mounted.
    pub path: PathBuf,
    /// The type of file system.
    pub kind: String,
    /// What is mounted.
    pub source: String,
}

/// Returns the topmost mount at exactly this path.
///
/// # Errors
/// `/proc` can't be read.
pub fn mounted_at(path: &Path) -> io::Result<Option<Entry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(entries(&table).rfind(|entry| entry.path == path))
}

fn entries(table: &[u8]) -> impl DoubleEndedIterator<Item = Entry> {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let path = fields.nth(4)?;
        let mut after = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = String::from_utf8_lossy(after.next()?).into_owned();
        let source = String::from_utf8_lossy(after.next()?).into_owned();
        Some(Entry { path: PathBuf::from(OsString::from_vec(unescape(path))), kind, source })
    })
}

/// Undoes the kernel's `\ooo` escapes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(value) => {
                out.push(value);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

impl Entry {
    /// Tells whether it is one of ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind.split('.').next() == Some("fuse")
            && self
                .source
                .strip_prefix(SOURCE)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

/// Returns a path with its parent canonical and its last name as it is, so that a dead mount isn't touched.
fn nearly_canonical(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        (None, _) | (_, None) => Ok(absolute),
    }
}

/// Returns the canonical mountpoint, after taking away what a server of ours that died left there.
///
/// # Errors
/// It isn't a directory.
pub fn prepare_mountpoint(path: &Path) -> Result<PathBuf, Failure> {
    let invalid = |error: io::Error| {
        Failure::new(Code::MountFailed, format!("can't mount at `{}`", path.display()))
            .because(error)
            .help("the mountpoint must be a directory that exists")
    };
    if let Err(error) = fs::metadata(path)
        && error.raw_os_error() == Some(libc::ENOTCONN)
    {
        let dead = nearly_canonical(path).map_err(invalid)?;
        if mounted_at(&dead).map_err(invalid)?.is_some_and(|entry| entry.is_ours()) {
            unmount(&dead, true)?;
        }
    }
    let canonical = fs::canonicalize(path).map_err(invalid)?;
    if canonical.is_dir() {
        Ok(canonical)
    } else {
        Err(invalid(io::ErrorKind::NotADirectory.into()))
    }
}

/// Mounts our file system, which serves `source`, over a directory and returns the device to serve it from.
///
/// # Errors
/// The kernel or `fusermount3` refuses.
pub fn mount(
    source: &Path,
    mountpoint: &Path,
    owner: &Owner,
    allow_other: bool,
) -> Result<OwnedFd, Failure> {
    if probe::can_mount() {
        return mount_as_root(source, mountpoint, owner, allow_other).map_err(|error| {
            let errno = error.raw_os_error();
            Failure::new(Code::MountFailed, format!("can't mount at `{}`", mountpoint.display()))
                .because(error)
                .help(probe::fuse_device_remedy(errno))
        });
    }
    let Some(helper) = fusermount() else {
        return Err(Failure::new(
            Code::MountFailed,
            "a user can mount only with `fusermount3`, which is not on PATH",
        )
        .help("install the package `fuse3`")
        .help("`stockade run` works without it"));
    };
    mount_with_helper(&helper, source, mountpoint, allow_other)
}

fn fusermount() -> Option<PathBuf> {
    probe::find_program("fusermount3", &std::env::var_os("PATH").unwrap_or_default())
}

fn mount_as_root(
    source: &Path,
    mountpoint: &Path,
    owner: &Owner,
    allow_other: bool,
) -> io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options: CString = stockade_fusefs::mount_data(device.as_fd(), owner, allow_other);
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(shown(source), mountpoint, c"fuse", flags, &*options)?;
    Ok(device)
}

/// The protocol of `fusermount3`: it mounts, and sends the device over the socket that `_FUSE_COMMFD` names.
fn mount_with_helper(
    helper: &Path,
    source: &Path,
    mountpoint: &Path,
    allow_other: bool,
) -> Result<OwnedFd, Failure> {
    let failed = |error: io::Error| {
        Failure::new(Code::MountFailed, format!("can't mount at `{}`", mountpoint.display()))
            .because(error)
    };
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    let options = helper_options(source, allow_other);
    // The helper inherits its end; the copy that stays here is closed below.
    sys::keep_over_exec(theirs.as_fd()).map_err(|error| failed(error.into()))?;
    let mut child = Command::new(helper)
        .arg("-o")
        .arg(&options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    drop(theirs);
    let device = receive_device(&ours);
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        // What it says is for the message only.
        let _unread = stderr.take(4096).read_to_string(&mut text);
    }
    let status = child.wait().map_err(failed)?;
    match device {
        Ok(Some(device)) if status.success() => Ok(device),
        Ok(_) => Err(failed(io::Error::other(text.trim().replace('\n', "; "))).help(
            if text.contains("user_allow_other") {
                "add the line `user_allow_other` to /etc/fuse.conf (as root), or leave out --allow-other"
            } else {
                "the mountpoint must be a directory of yours"
            },
        )),
        Err(error) => Err(failed(error)),
    }
}

/// What the mount table shows as the source, so that two mounts can be told apart.
fn shown(source: &Path) -> OsString {
    let mut shown = OsString::from(SOURCE);
    shown.push(":");
    shown.push(source);
    shown
}

/// In the helper's options a comma ends one, unless a backslash stands before it.
fn helper_options(source: &Path, allow_other: bool) -> OsString {
    let mut options = b"default_permissions,nosuid,nodev,".to_vec();
    if allow_other {
        options.extend_from_slice(b"allow_other,");
    }
    options.extend_from_slice(b"fsname=");
    for &byte in shown(source).as_bytes() {
        if matches!(byte, b',' | b'\\') {
            options.push(b'\\');
        }
        options.push(byte);
    }
    OsString::from_vec(options)
}

fn receive_device(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    rustix::net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut device = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = part {
            device = fds.next();
        }
    }
    Ok(device)
}

/// Takes a mount of ours away; `lazy` also when it is in use, and the rest goes when the last user does.
///
/// # Errors
/// There is none of ours at the path, it is in use, or it belongs to somebody else.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let busy = error.raw_os_error() == Some(libc::EBUSY);
        let failure =
            Failure::new(Code::MountFailed, format!("can't unmount `{}`", path.display()))
                .because(error);
        if busy {
            failure.help("end the programs that use it (`fuser -vm` names them), or use --lazy")
        } else {
            failure
        }
    };
    let path = nearly_canonical(path).map_err(failed)?;
    match mounted_at(&path).map_err(failed)? {
        Some(entry) if entry.is_ours() => {}
        Some(entry) => {
            return Err(failed(io::Error::other(format!(
                "what is mounted there is `{}` of type {}, not ours",
                entry.source, entry.kind
            ))));
        }
        None => return Err(failed(io::Error::other("nothing is mounted there"))),
    }
    if probe::can_mount() {
        let mut flags = UnmountFlags::NOFOLLOW;
        if lazy {
            flags |= UnmountFlags::DETACH;
        }
        return rustix::mount::unmount(&path, flags).map_err(|error| failed(error.into()));
    }
    let Some(helper) = fusermount() else {
        return Err(failed(io::Error::other("a user needs `fusermount3`"))
            .help("install the package `fuse3`"));
    };
    let output = Command::new(helper)
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(OsStr::from_bytes(path.as_os_str().as_bytes()))
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(if text.contains("busy") {
        failed(io::Error::from_raw_os_error(libc::EBUSY))
    } else {
        failed(io::Error::other(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        let table = b"21 1 8:1 / / rw shared:1 - ext4 /dev/vda rw\n\
                      30 21 0:50 / /a\\040b\\134 rw,nosuid master:2 propagate_from:1 - fuse stockade:/s rw\n\
                      31 21 0:51 / /c\xff rw - fuse.sshfs stockader: rw\n";
        let all: Vec<_> = entries(table).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].path, Path::new("/a b\\"));
        assert!(all[1].is_ours());
        assert_eq!(all[2].path.as_os_str().as_bytes(), b"/c\xff");
        assert!(!all[2].is_ours() && !all[0].is_ours());
    }

    #[test]
    fn the_helpers_options_keep_commas_apart() {
        let options = helper_options(Path::new("/a,b\\c"), true);
        let options = options.to_str().unwrap();
        assert!(options.ends_with(",allow_other,fsname=stockade:/a\\,b\\\\c"), "{options}");
    }

    #[test]
    fn a_strangers_mount_is_never_unmounted() {
        let failure = unmount(Path::new("/proc"), true).unwrap_err();
        assert!(failure.lines()[0].contains("not ours"), "{:?}", failure.lines());
        let directory = tempfile::tempdir().unwrap();
        let failure = unmount(directory.path(), true).unwrap_err();
        assert!(failure.lines()[0].contains("nothing is mounted"), "{:?}", failure.lines());
    }
}
