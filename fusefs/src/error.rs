//! Why an operation didn't succeed, and the one place where that becomes an errno.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use stockade_policy::{Denial, Refusal};

/// What a file system operation can end with instead of its result.
#[derive(Clone, Debug)]
pub enum FsError {
    /// The policy said no.
    Denied(Arc<Denial>),
    /// The host said no; the program sees the host's errno.
    Host(Errno),
    /// The kernel named a node that we don't know.
    UnknownNode,
    /// The kernel named a handle that we don't know.
    UnknownHandle,
    /// The node's name leads to another file now; the kernel walks again.
    Stale,
}

pub type FsResult<T> = Result<T, FsError>;

impl FsError {
    /// Returns what the program sees.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Denied(denial) => match denial.rule().refusal() {
                Refusal::ReadOnlyFileSystem => Errno::ROFS,
                Refusal::AccessDenied => Errno::ACCESS,
                Refusal::NotPermitted => Errno::PERM,
            },
            Self::Host(errno) => *errno,
            Self::UnknownNode | Self::Stale => Errno::STALE,
            Self::UnknownHandle => Errno::BADF,
        }
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

impl From<io::Error> for FsError {
    fn from(error: io::Error) -> Self {
        Self::Host(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}
