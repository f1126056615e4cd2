//! One process that takes part: it does what it is told, and says how it ended.

use std::io::{BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;

use super::observe::{describe, hash, listing, when};
use super::operation::{Operation, SLOTS, Set};
use super::sys::Mapping;

/// A mapping covers so many bytes.
const MAPPED: usize = 24_576;

#[derive(Default)]
struct Worker {
    open: [Option<OwnedFd>; SLOTS],
    /// The mapping, and a descriptor of its file, which tells how much of it can be touched.
    map: Option<(Mapping, OwnedFd)>,
}

/// What is sent to a worker.
#[derive(serde::Serialize, serde::Deserialize)]
pub enum Order {
    /// Forget everything and go to this directory.
    Begin(std::path::PathBuf),
    /// Do this.
    Do(Operation),
}

/// Obeys until the input ends.
pub fn serve() {
    let mut worker = Worker::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("orders can be read");
        let answer = match serde_json::from_str(&line).expect("an order") {
            Order::Begin(directory) => {
                worker = Worker::default();
                std::env::set_current_dir(directory).expect("the directory of the case");
                "begun".to_owned()
            }
            Order::Do(operation) => match worker.carry_out(&operation) {
                Ok(answer) => answer,
                Err(errno) => format!("{errno:?}"),
            },
        };
        writeln!(out, "{answer}").expect("the answer is taken");
        out.flush().expect("the answer is taken");
    }
}

fn time(set: Set) -> Timespec {
    match set {
        Set::At(tv_sec, nsec) => Timespec { tv_sec, tv_nsec: nsec.into() },
        Set::Now => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Set::Keep => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
    }
}

fn times(access: Set, modification: Set) -> Timestamps {
    Timestamps { last_access: time(access), last_modification: time(modification) }
}

fn nofollow(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn attribute(name: u8) -> &'static str {
    if name == 0 { "user.a" } else { "user.long name" }
}

/// What root writes loses its set-id bits inside, though the kernel would let root's natively stay: the side that
/// is safe. So root sets none.
fn bits(mode: u32) -> Mode {
    let root = rustix::process::geteuid().is_root();
    Mode::from_raw_mode(if root { mode & !0o6000 } else { mode })
}

impl Worker {
    fn fd(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<String, Errno> {
        use Operation as Op;
        let done = || Ok("done".to_owned());
        match operation {
            Op::Open { slot, at, flags, mode } => {
                let flags = OFlags::from_bits_retain(*flags) | OFlags::CLOEXEC;
                self.open[*slot] = Some(fs::open(at.path(), flags, bits(*mode))?);
                done()
            }
            Op::Close { slot } => {
                self.open[*slot].take().ok_or(Errno::BADF)?;
                done()
            }
            Op::Dup { from, to } => {
                let copy = rustix::io::fcntl_dupfd_cloexec(self.fd(*from)?, 0)?;
                self.open[*to] = Some(copy);
                done()
            }
            Op::Read { slot, length } => {
                let mut buffer = vec![0; *length];
                let read = rustix::io::read(self.fd(*slot)?, &mut buffer[..])?;
                Ok(format!("{read} {:x}", hash(&buffer[..read])))
            }
            Op::PRead { slot, offset, length } => {
                let mut buffer = vec![0; *length];
                let read = rustix::io::pread(self.fd(*slot)?, &mut buffer[..], *offset)?;
                Ok(format!("{read} {:x}", hash(&buffer[..read])))
            }
            Op::Write { slot, length, byte } => {
                Ok(rustix::io::write(self.fd(*slot)?, &vec![*byte; *length])?.to_string())
            }
            Op::PWrite { slot, offset, length, byte } => {
                Ok(rustix::io::pwrite(self.fd(*slot)?, &vec![*byte; *length], *offset)?.to_string())
            }
            Op::Seek { slot, offset, whence } => {
                let start = u64::try_from(*offset);
                let to = match *whence {
                    libc::SEEK_CUR => SeekFrom::Current(*offset),
                    libc::SEEK_END => SeekFrom::End(*offset),
                    libc::SEEK_DATA => SeekFrom::Data(start.map_err(|_| Errno::NXIO)?),
                    libc::SEEK_HOLE => SeekFrom::Hole(start.map_err(|_| Errno::NXIO)?),
                    _ => SeekFrom::Start(start.map_err(|_| Errno::INVAL)?),
                };
                let fd = self.fd(*slot)?;
                // What a directory's position means is its own business.
                if fs::FileType::from_raw_mode(fs::fstat(fd)?.st_mode).is_dir() {
                    return Ok("directory".to_owned());
                }
                Ok(fs::seek(fd, to)?.to_string())
            }
            Op::FTruncate { slot, length } => {
                fs::ftruncate(self.fd(*slot)?, *length)?;
                done()
            }
            Op::Truncate { at, length } => {
                truncate(&at.path(), *length)?;
                done()
            }
            Op::Allocate { slot, mode, offset, length } => {
                let mode = FallocateFlags::from_bits_retain(*mode);
                fs::fallocate(self.fd(*slot)?, mode, *offset, *length)?;
                done()
            }
            Op::CopyRange { from, from_at, to, to_at, length } => {
                let (mut source, mut target) = (*from_at, *to_at);
                let copied = fs::copy_file_range(
                    self.fd(*from)?,
                    Some(&mut source),
                    self.fd(*to)?,
                    Some(&mut target),
                    *length,
                )?;
                Ok(copied.to_string())
            }
            Op::Sync { slot } => {
                fs::fsync(self.fd(*slot)?)?;
                done()
            }
            Op::FStat { slot } => Ok(describe(&fs::statx(
                self.fd(*slot)?,
                c"",
                AtFlags::EMPTY_PATH,
                fs::StatxFlags::BASIC_STATS,
            )?)),
            Op::FChmod { slot, mode } => {
                fs::fchmod(self.fd(*slot)?, bits(*mode))?;
                done()
            }
            Op::FUtimes { slot, access, modification } => {
                fs::futimens(self.fd(*slot)?, &times(*access, *modification))?;
                done()
            }
            Op::Map { slot } => {
                let fd = self.fd(*slot)?;
                let map = Mapping::new(fd.as_fd(), MAPPED)?;
                self.map = Some((map, rustix::io::fcntl_dupfd_cloexec(fd, 0)?));
                done()
            }
            Op::MapWrite { offset, length, byte } => {
                let Some((map, count)) = self.touchable(*offset, *length)? else {
                    return Ok("nothing".to_owned());
                };
                map.fill(*offset, count, *byte)?;
                Ok(count.to_string())
            }
            Op::MapRead { offset, length } => {
                let Some((map, count)) = self.touchable(*offset, *length)? else {
                    return Ok("nothing".to_owned());
                };
                Ok(format!("{count} {:x}", hash(&map.read(*offset, count))))
            }
            Op::Unmap => {
                self.map = None;
                done()
            }
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                fs::renameat_with(CWD, from.path(), CWD, to.path(), flags)?;
                done()
            }
            Op::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                fs::linkat(CWD, from.path(), CWD, to.path(), flags)?;
                done()
            }
            Op::Symlink { target, at } => {
                fs::symlink(target.path(), at.path())?;
                done()
            }
            Op::Unlink { at } => {
                fs::unlink(at.path())?;
                done()
            }
            Op::RmDir { at } => {
                fs::rmdir(at.path())?;
                done()
            }
            Op::MkDir { at, mode } => {
                fs::mkdir(at.path(), bits(*mode))?;
                done()
            }
            Op::MkNod { at, fifo, mode } => {
                let kind = if *fifo { fs::FileType::Fifo } else { fs::FileType::RegularFile };
                fs::mknodat(CWD, at.path(), kind, bits(*mode), 0)?;
                done()
            }
            Op::Chmod { at, mode } => {
                fs::chmod(at.path(), bits(*mode))?;
                done()
            }
            Op::Chown { at, follow } => {
                // To whom it belongs anyway, which clears the set-id bits.
                let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
                fs::chownat(CWD, at.path(), Some(uid), Some(gid), nofollow(*follow))?;
                done()
            }
            Op::Utimes { at, access, modification, follow } => {
                let times = times(*access, *modification);
                let path = at.path();
                fs::utimensat(CWD, &path, &times, nofollow(*follow))?;
                let stat = fs::statx(CWD, &path, nofollow(*follow), fs::StatxFlags::BASIC_STATS)?;
                let shown = if *access == Set::Keep { String::new() } else { when(stat.stx_atime) };
                Ok(format!("access {shown} modification {}", when(stat.stx_mtime)))
            }
            Op::SetXattr { at, name, value, length, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                fs::lsetxattr(at.path(), attribute(*name), &vec![*value; *length], flags)?;
                done()
            }
            Op::GetXattr { at, name } => {
                let mut value = vec![0; 1024];
                let length = fs::lgetxattr(at.path(), attribute(*name), &mut value[..])?;
                Ok(format!("{length} {:x}", hash(&value[..length])))
            }
            Op::RemoveXattr { at, name } => {
                fs::lremovexattr(at.path(), attribute(*name))?;
                done()
            }
            Op::List { at } => listing(&at.path()),
            Op::Stat { at, follow } => Ok(describe(&fs::statx(
                CWD,
                at.path(),
                nofollow(*follow),
                fs::StatxFlags::BASIC_STATS,
            )?)),
            Op::ReadLink { at } => {
                let target = fs::readlink(at.path(), Vec::new())?;
                Ok(String::from_utf8_lossy(target.as_bytes()).into_owned())
            }
            Op::Access { at, mode } => {
                fs::access(at.path(), fs::Access::from_bits_retain(*mode))?;
                done()
            }
            Op::ChDir { at } => {
                rustix::process::chdir(at.path())?;
                done()
            }
        }
    }

    /// Returns the mapping and how much of the range lies inside the file now: nobody else is at work meanwhile.
    fn touchable(
        &mut self,
        offset: usize,
        length: usize,
    ) -> Result<Option<(&mut Mapping, usize)>, Errno> {
        let Some((map, fd)) = &mut self.map else { return Err(Errno::BADF) };
        let size = usize::try_from(fs::fstat(&*fd)?.st_size).unwrap_or(usize::MAX).min(MAPPED);
        let count = size.saturating_sub(offset).min(length);
        Ok((count > 0).then_some((map, count)))
    }
}

/// rustix has no `truncate(2)`. A FIFO would keep this waiting; a directory is refused either way.
fn truncate(path: &Path, length: u64) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::ftruncate(fs::open(path, flags, Mode::empty())?, length)
}
