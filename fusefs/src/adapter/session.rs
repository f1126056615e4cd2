//! The session: INIT, what is agreed in it, serving, and notifications.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{Config, INodeNo, InitFlags, KernelConfig, Session, SessionACL};

use super::Adapter;
use crate::fs::Fs;

/// The largest write and read that one request carries.
const LARGEST: u32 = 1024 * 1024;

/// A session that has answered INIT.
pub struct Connection(Session<Adapter>);

impl Connection {
    /// Answers INIT on a mounted `/dev/fuse` descriptor.
    pub fn open(
        fs: Arc<Fs>,
        device: OwnedFd,
        threads: usize,
        clone: bool,
        stack_depth: u32,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(threads.max(1));
        config.clone_fd = clone && threads > 1;
        // The kernel has decided who may come in (`allow_other` or not); there is nothing left to filter.
        let session =
            Session::from_fd(Adapter { fs, stack_depth }, device, SessionACL::All, config)?;
        Ok(Self(session))
    }

    /// Returns what tells the kernel about changes.
    pub fn notifier(&self) -> Notifier {
        Notifier(self.0.notifier())
    }

    /// Serves until the mount is gone.
    pub fn run(self) -> io::Result<()> {
        self.0.run()
    }
}

/// Tells the kernel that something it was told may not be so any more. What it doesn't know it ignores.
pub struct Notifier(fuser::Notifier);

impl Notifier {
    /// A name may lead elsewhere now, or nowhere.
    pub fn entry(&self, parent: u64, name: &OsStr) {
        if let Err(error) = self.0.inval_entry(INodeNo(parent), name) {
            tracing::debug!(%error, "the kernel didn't take a notification");
        }
    }

    /// A node's attributes, and its data if `data`, may be others now.
    pub fn inode(&self, id: u64, data: bool) {
        let (offset, length) = if data { (0, 0) } else { (-1, 0) };
        if let Err(error) = self.0.inval_inode(INodeNo(id), offset, length) {
            tracing::debug!(%error, "the kernel didn't take a notification");
        }
    }
}

/// Agrees with the kernel on what is used.
pub(super) fn negotiate(fs: &Fs, config: &mut KernelConfig, stack_depth: u32) -> io::Result<()> {
    let wanted = [
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        InitFlags::FUSE_EXPORT_SUPPORT,
        InitFlags::FUSE_DONT_MASK,
        InitFlags::FUSE_AUTO_INVAL_DATA,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    ];
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!(?flag, "the kernel lacks a capability");
        }
    }
    config
        .set_max_write(LARGEST)
        .map_err(|nearest| io::Error::other(format!("max_write: {nearest}")))?;
    if let Err(nearest) = config.set_max_readahead(LARGEST) {
        config.set_max_readahead(nearest).map_err(|_| io::Error::other("max_readahead"))?;
    }
    config
        .set_max_background(64)
        .map_err(|nearest| io::Error::other(format!("max_background: {nearest}")))?;
    let passthrough = fs.passthrough.load(Ordering::Relaxed)
        && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(stack_depth).is_ok();
    fs.passthrough.store(passthrough, Ordering::Relaxed);
    Ok(())
}
