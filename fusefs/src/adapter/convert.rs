//! fuser's values to ours and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, Generation, INodeNo, Request, TimeOrNow};
use rustix::fs::OFlags;

use crate::fs::{Caller, Opened};
use crate::host::{Stamp, Stat};
use crate::node::Node;
use crate::ops::When;

pub fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

pub fn generation(node: &Node) -> Generation {
    Generation(node.generation)
}

pub fn system_time(stamp: Stamp) -> SystemTime {
    let nanos = Duration::from_nanos(stamp.nsec.into());
    match u64::try_from(stamp.sec) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(stamp.sec.unsigned_abs()) + nanos,
    }
}

/// Undoes fuser's reading of a time. It takes `sec` seconds and `nsec` nanoseconds before 1970 both as a distance
/// backwards, though the kernel counts nanoseconds forwards; the pair itself is recovered unharmed.
pub fn when(time: TimeOrNow) -> When {
    match time {
        TimeOrNow::Now => When::Now,
        TimeOrNow::SpecificTime(time) => When::At(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Stamp {
                sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nsec: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let sec = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
                Stamp { sec, nsec: before.subsec_nanos() }
            }
        }),
    }
}

pub fn file_type(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Host;
    match kind {
        Host::Directory => FileType::Directory,
        Host::Symlink => FileType::Symlink,
        Host::Fifo => FileType::NamedPipe,
        Host::Socket => FileType::Socket,
        Host::CharacterDevice => FileType::CharDevice,
        Host::BlockDevice => FileType::BlockDevice,
        Host::RegularFile | Host::Unknown => FileType::RegularFile,
    }
}

pub fn file_attr(ino: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime),
        mtime: system_time(stat.mtime),
        ctime: system_time(stat.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.file_type()),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or_default(),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        blksize: stat.blksize,
        flags: 0,
    }
}

/// Spares the round trip of a `close(2)` that nobody needs to hear of.
pub fn quiet(opened: Opened) -> FopenFlags {
    if opened.flush { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH }
}

pub fn flags(raw: i32) -> OFlags {
    OFlags::from_bits_retain(raw.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        // What fuser makes of (-1 s, 500,000,000 ns), which is half a second before the epoch.
        let read = UNIX_EPOCH - Duration::new(1, 500_000_000);
        assert_eq!(
            when(TimeOrNow::SpecificTime(read)),
            When::At(Stamp { sec: -1, nsec: 500_000_000 })
        );
        assert_eq!(
            system_time(Stamp { sec: -1, nsec: 500_000_000 }),
            UNIX_EPOCH - Duration::from_millis(500)
        );
        assert_eq!(system_time(Stamp { sec: 5, nsec: 7 }), UNIX_EPOCH + Duration::new(5, 7));
    }
}
