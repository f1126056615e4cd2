//! Directories that were moved, told at once.
//!
//! An answer about what lies where holds until a directory moves. The kernel queues the event inside the very
//! `rename(2)` that moves a directory, so whoever asks after that call has returned hears of it. This is a descriptor of
//! its own, apart from `watch.rs`: it is nearly always silent, and asking it costs one system call.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::host;
use crate::node::{Node, WATCH_FAILED, WATCH_UNKNOWN};

/// The moves of directories that somebody relies on.
#[derive(Debug)]
pub struct Moves {
    inotify: Option<OwnedFd>,
    /// Held while events are read and counted: nobody may find the queue empty before its events have counted.
    reading: Mutex<()>,
    count: AtomicU64,
    device: u64,
}

impl Moves {
    /// Prepares to hear of moves on `device`; without `watch`, nothing that was found out ever holds for longer than the
    /// call that asked.
    pub fn new(device: u64, watch: bool) -> Self {
        let inotify = watch
            .then(|| inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK))
            .and_then(|made| {
                made.inspect_err(|error| tracing::warn!(%error, "moves can't be watched")).ok()
            });
        Self { inotify, reading: Mutex::new(()), count: AtomicU64::new(1), device }
    }

    /// Returns a number that is another one after each move of a directory that is watched here.
    pub fn now(&self) -> u64 {
        let Some(inotify) = &self.inotify else { return self.count.load(Ordering::Acquire) };
        let _reading = self.reading.lock();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let kinds = ReadFlags::MOVE_SELF | ReadFlags::QUEUE_OVERFLOW;
                    if event.events().intersects(kinds) {
                        self.count.fetch_add(1, Ordering::AcqRel);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return self.count.load(Ordering::Acquire),
            }
        }
    }

    /// Sees to it that moves of a directory count, and says whether they do.
    pub fn watch(&self, node: &Node, pin: &OwnedFd) -> bool {
        let known = node.moves.load(Ordering::Acquire);
        if known != WATCH_UNKNOWN {
            return known != WATCH_FAILED;
        }
        let Some(inotify) = self.inotify.as_ref().filter(|_| node.key().dev == self.device) else {
            return false;
        };
        // A watch that is there already is another's, who may be about to end it.
        let mask = WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR | WatchFlags::MASK_CREATE;
        match inotify::add_watch(inotify, host::magic_link(pin.as_fd()), mask) {
            Ok(watch) => {
                node.moves.store(watch, Ordering::Release);
                true
            }
            Err(Errno::EXIST) => false,
            Err(error) => {
                tracing::debug!(%error, "moves of a directory aren't watched");
                node.moves.store(WATCH_FAILED, Ordering::Release);
                false
            }
        }
    }

    /// The kernel has forgotten a node.
    pub fn forget(&self, node: &Node) {
        node.inside.store(0, Ordering::Release);
        let watch = node.moves.swap(WATCH_UNKNOWN, Ordering::AcqRel);
        if watch > 0
            && let Some(inotify) = &self.inotify
            && let Err(error) = inotify::remove_watch(inotify, watch)
        {
            tracing::debug!(%error, "a watch had ended by itself");
        }
    }
}
