//! Directories on the host, walked by descriptor and never through a link.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Component;
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};

use super::fold::{History, Place};
use super::image::{Seen, look, same};
use super::record::Id;

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directories of a history as they are now.
#[derive(Debug)]
pub(crate) struct Tree<'h> {
    history: &'h History,
    pub root: Rc<OwnedFd>,
    device: u64,
    open: RefCell<HashMap<Id, Rc<OwnedFd>>>,
}

impl<'h> Tree<'h> {
    pub(crate) fn open(history: &'h History) -> io::Result<Self> {
        let root = rustix::fs::openat(CWD, &history.source, DIRECTORY, Mode::empty())?;
        let seen = look(root.as_fd(), b"")?;
        if seen.ino != history.root.1 {
            return Err(io::Error::other("another directory is there now"));
        }
        let root = Rc::new(root);
        let open = RefCell::new(HashMap::from([(history.root, root.clone())]));
        Ok(Self { history, root, device: seen.dev, open })
    }

    /// Returns the device of the tree's root.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Tells whether `seen` is the file `id`; the device number may be another one since the machine was started.
    pub(crate) fn is(&self, seen: &Seen, id: Id) -> bool {
        let device = if id.0 == self.history.root.0 { self.device } else { id.0 };
        same(seen, device, id.1)
    }

    /// Opens a directory where the run left it.
    pub(crate) fn directory(&self, id: Id) -> io::Result<Rc<OwnedFd>> {
        if let Some(open) = self.open.borrow().get(&id) {
            return Ok(open.clone());
        }
        let path = self.history.directory_now(id).ok_or(io::ErrorKind::NotFound)?;
        let mut at = self.root.clone();
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(io::Error::other("it has no path"));
            };
            at = Rc::new(rustix::fs::openat(&*at, name, DIRECTORY, Mode::empty())?);
        }
        if !self.is(&look(at.as_fd(), b"")?, id) {
            return Err(io::Error::other("another directory is there now"));
        }
        self.open.borrow_mut().insert(id, at.clone());
        Ok(at)
    }

    /// Says which directory now stands for one that was gone.
    pub(crate) fn made(&self, id: Id, fd: OwnedFd) {
        self.open.borrow_mut().insert(id, Rc::new(fd));
    }

    /// Looks at a place.
    pub(crate) fn look(&self, (at, name): &Place) -> io::Result<Option<Seen>> {
        let dir = self.directory(*at)?;
        match look(dir.as_fd(), name) {
            Ok(seen) => Ok(Some(seen)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the regular file at a place for reading.
    pub(crate) fn read(&self, (at, name): &Place) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.directory(*at)?, name, flags, Mode::empty())?)
    }
}
