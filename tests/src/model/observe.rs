//! What is written down of the state after a step.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self, AtFlags, CWD, FileType, Mode, OFlags, RawDir, Statx, StatxFlags, StatxTimestamp,
};
use rustix::io::Errno;

/// A 64-bit digest (FNV-1a).
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A time that somebody set lies before this.
const RECENT: i64 = 1_600_000_000;

/// Returns a time that somebody set, or `now`.
pub fn when(time: StatxTimestamp) -> String {
    if time.tv_sec < RECENT {
        format!("{}.{:09}", time.tv_sec, time.tv_nsec)
    } else {
        "now".to_owned()
    }
}

/// Returns what matters of a file's attributes.
pub fn describe(stat: &Statx) -> String {
    let mode = u32::from(stat.stx_mode);
    let size = if FileType::from_raw_mode(mode).is_dir() { 0 } else { stat.stx_size };
    format!(
        "{mode:o} links {} size {size} owner {}:{} modified {}",
        stat.stx_nlink,
        stat.stx_uid,
        stat.stx_gid,
        when(stat.stx_mtime)
    )
}

fn names(directory: &Path) -> Result<Vec<(Vec<u8>, FileType, u64)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = fs::open(directory, flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(8192);
    let mut raw = RawDir::new(&fd, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        names.push((entry.file_name().to_bytes().to_vec(), entry.file_type(), entry.ino()));
    }
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(names)
}

/// Lists a directory, and checks that the listing and `stat` agree on numbers and types.
pub fn listing(directory: &Path) -> Result<String, Errno> {
    let mut text = String::new();
    for (name, kind, inode) in names(directory)? {
        let path = directory.join(OsStr::from_bytes(&name));
        let agreed = match fs::lstat(&path) {
            Ok(stat) => {
                name == b".."
                    || stat.st_ino == inode && FileType::from_raw_mode(stat.st_mode) == kind
            }
            Err(Errno::ACCESS) => true,
            Err(_) => false,
        };
        text.push_str(&format!(
            "{:?} {kind:?}{}, ",
            String::from_utf8_lossy(&name),
            if agreed { "" } else { " BUT stat differs" }
        ));
    }
    Ok(text)
}

/// Describes everything below a directory.
pub fn everything(top: &Path) -> String {
    let mut text = String::new();
    let mut inodes: HashMap<u64, usize> = HashMap::new();
    let mut pending: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(path) = pending.pop() {
        let shown = path.strip_prefix(top).unwrap_or(&path).display().to_string();
        let line = match fs::statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
            Err(errno) => format!("{errno:?}"),
            Ok(stat) => {
                let next = inodes.len();
                let same = *inodes.entry(stat.stx_ino).or_insert(next);
                format!("#{same} {} {}", describe(&stat), inside(&path, &stat, &mut pending))
            }
        };
        text.push_str(&format!("    {shown:?}: {line}\n"));
    }
    text
}

fn inside(path: &Path, stat: &Statx, pending: &mut Vec<PathBuf>) -> String {
    let content = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => match names(path) {
            Ok(names) => {
                let real = names.into_iter().filter(|(name, ..)| name != b"." && name != b"..");
                pending.extend(real.map(|(name, ..)| path.join(OsStr::from_bytes(&name))).rev());
                String::new()
            }
            Err(errno) => format!("{errno:?}"),
        },
        FileType::Symlink => match fs::readlink(path, Vec::new()) {
            Ok(target) => format!("-> {target:?}"),
            Err(errno) => format!("{errno:?}"),
        },
        FileType::RegularFile => match std::fs::read(path) {
            Ok(content) => format!("content {} {:x}", content.len(), hash(&content)),
            Err(error) => format!("{:?}", Errno::from_io_error(&error)),
        },
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => String::new(),
    };
    let mut attributes = vec![0; 1024];
    let attributes = match fs::llistxattr(path, &mut attributes[..]) {
        Ok(length) => {
            let mut names: Vec<String> = attributes[..length]
                .split(|byte| *byte == 0)
                .filter(|name| !name.is_empty())
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect();
            names.sort();
            names.join(" ")
        }
        Err(errno) => format!("{errno:?}"),
    };
    format!("{content} {attributes}")
}
