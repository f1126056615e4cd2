//! Shared mappings.
#![expect(unsafe_code, reason = "a mapping is memory that others change")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A shared mapping of a file's first bytes.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<std::ffi::c_void>,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of a file to be read and written.
    pub fn new(file: BorrowedFd<'_>, length: usize) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses the place, so nothing that Rust knows of is replaced; the mapping is taken away
        // once, when this value is dropped.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(start).map(|start| Self { start, length }).ok_or(Errno::NOMEM)
    }

    /// Writes one byte `count` times from `offset` on, and has it written to the file. The caller has made sure that the
    /// file is that long.
    pub fn fill(&mut self, offset: usize, count: usize, byte: u8) -> Result<(), Errno> {
        assert!(offset.checked_add(count).is_some_and(|end| end <= self.length));
        // SAFETY: the range lies inside the mapping, as was just checked, and inside the file, as the caller has; no
        // reference to it exists.
        unsafe {
            self.start.as_ptr().cast::<u8>().add(offset).write_bytes(byte, count);
            msync(self.start.as_ptr(), self.length, MsyncFlags::SYNC)
        }
    }

    /// Reads `count` bytes from `offset` on, under the same condition.
    pub fn read(&self, offset: usize, count: usize) -> Vec<u8> {
        assert!(offset.checked_add(count).is_some_and(|end| end <= self.length));
        let mut bytes = vec![0_u8; count];
        // SAFETY: as for `fill`; `bytes` has room for `count` and is memory of its own.
        unsafe {
            let from = self.start.as_ptr().cast::<u8>().add(offset);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), count);
        }
        bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nothing refers to it any more.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr(), self.length) } {
            unreachable!("munmap: {errno}");
        }
    }
}
