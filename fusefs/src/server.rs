//! Serving one mount: INIT, the threads, the end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stockade_observe::{Observed, Sink};
use stockade_policy::{Policy, Rules};

use crate::adapter::Connection;
use crate::error::FsError;
use crate::fs::{Fs, Lifetimes, Parts};
use crate::owner::Owner;

/// What a mount serves, and how.
pub struct ServerConfig {
    /// The compiled policy.
    pub rules: Arc<Rules>,
    /// The policy it was compiled from, for its settings.
    pub policy: Policy,
    /// Takes the events.
    pub sink: Arc<dyn Sink>,
    /// The host directory that is served: `O_PATH | O_DIRECTORY`.
    pub source: OwnedFd,
    /// The absolute path at which programs see it.
    pub path: PathBuf,
    /// Whose mount it is.
    pub owner: Owner,
    /// Whether to try kernel passthrough; it needs `CAP_SYS_ADMIN`, and is left out where it isn't to be had.
    pub passthrough: bool,
    /// Where this server may note what a killed one would leave (contract F7); 0700.
    pub state: Option<PathBuf>,
    /// What the session has seen, told and asked here.
    pub observed: Arc<Observed>,
    /// Where content goes that must not be lost and can't have its name; made (0700) when first needed.
    pub kept: Option<PathBuf>,
    /// What to keep of what is changed, if anything.
    pub history: Option<HistoryConfig>,
    /// Threads that read requests; 0 for the default.
    pub threads: usize,
}

/// How a history is kept.
#[derive(Clone, Debug)]
pub struct HistoryConfig {
    /// Its directory; it doesn't exist yet.
    pub directory: PathBuf,
    /// The host's path of what is served.
    pub source: PathBuf,
    /// How much it may hold.
    pub bounds: stockade_observe::history::Bounds,
}

/// Why a mount can't be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The source directory or `/proc` can't be used.
    #[error("failed to use the source of `{}`", .path.display())]
    Source {
        /// Where programs would see it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel's first request wasn't answered.
    #[error("failed to start serving `{}`", .path.display())]
    Init {
        /// Where programs would see it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A mount that is being served by threads of this process.
#[derive(Debug)]
pub struct Server {
    passthrough: bool,
    fs: Arc<Fs>,
    thread: JoinHandle<io::Result<()>>,
}

/// The default number of threads. One that is awake serves a sequential program fastest; a second keeps a slow request
/// (a large write, an `fsync`) from holding up the others.
const THREADS: usize = 2;

/// `OVERLAYFS_SUPER_MAGIC` (linux/magic.h).
const OVERLAYFS: u64 = 0x794c_7630;

/// Answers INIT on a mounted `/dev/fuse` descriptor and starts serving it. Call it after `mount(2)` and before anybody
/// touches the mount: until INIT is answered, everybody who does waits.
///
/// # Errors
/// The source can't be used, or the kernel doesn't speak a protocol that we know.
pub fn serve(device: OwnedFd, config: ServerConfig) -> Result<Server, ServeError> {
    let path = config.path.clone();
    let source = |source: io::Error| ServeError::Source { path: path.clone(), source };
    let init = |source: io::Error| ServeError::Init { path: path.clone(), source };
    let pins = raise_descriptor_limit();
    let own = Arc::new(device.try_clone().map_err(init)?);
    // A file of an overlay is itself stacked, so passing it through needs one level more; a mount with that level can't
    // be stacked upon, so it isn't asked for elsewhere.
    let stacked = rustix::fs::fstatfs(&config.source)
        .is_ok_and(|fs| u64::try_from(fs.f_type) == Ok(OVERLAYFS));
    let root = config.owner == Owner::Root;
    let fs = Fs::new(Parts {
        rules: config.rules,
        policy: config.policy,
        sink: config.sink,
        source: config.source,
        base: config.path.clone(),
        owner: config.owner,
        device: own,
        passthrough: config.passthrough,
        pins,
        state: config.state,
        observed: config.observed,
        kept: config.kept,
        history: config.history,
        lifetimes: Lifetimes {
            watched: Duration::from_secs(24 * 3600),
            unwatched: Duration::from_secs(1),
        },
    });
    let fs = Arc::new(fs.map_err(|error| source(io_error(&error)))?);
    let threads = if config.threads == 0 { THREADS } else { config.threads };
    // A descriptor that was opened in a user namespace can't be cloned from outside it.
    let connection =
        Connection::open(fs.clone(), device, threads, root, if stacked { 2 } else { 1 })
            .map_err(init)?;
    let passthrough = fs.passthrough.load(Ordering::Relaxed);
    let notifier = connection.notifier();
    fs.notifier.get_or_init(|| connection.notifier());
    let watched = fs.clone();
    let watcher = std::thread::Builder::new()
        .name("stockade-watch".to_owned())
        .spawn(move || crate::watch::run(&watched, &notifier))
        .map_err(init)?;
    let ending = fs.clone();
    let thread = std::thread::Builder::new()
        .name("stockade-fs".to_owned())
        .spawn(move || {
            let result = connection.run();
            ending.watches.stop();
            if let Some(history) = &ending.history {
                history.finish();
            }
            watcher.join().map_err(|_| io::Error::other("the watching thread panicked"))?;
            result
        })
        .map_err(init)?;
    Ok(Server { passthrough, fs, thread })
}

fn io_error(error: &FsError) -> io::Error {
    error.errno().into()
}

/// Raises the soft limit of open descriptors to the hard one, and returns how many may pin nodes.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let current = current.and_then(|number| usize::try_from(number).ok()).unwrap_or(1 << 20);
    (current / 2).clamp(64, 1 << 18)
}

impl Server {
    /// Says whether the kernel passes data through without asking us.
    #[must_use]
    pub fn passthrough(&self) -> bool {
        self.passthrough
    }

    /// Says which device number the mount has (`st_dev`), so that it is never entered where it lies below its own source.
    pub fn set_mount_device(&self, device: u64) {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = u64::from(major) << 32 | u64::from(minor);
        self.fs.own_device.store(device, Ordering::Relaxed);
    }

    /// Says whether the mount is gone.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns when the mount is gone: unmounted, aborted, or its namespace ended.
    ///
    /// # Errors
    /// What ended the serving threads, if it wasn't the end of the mount.
    pub fn wait(self) -> io::Result<()> {
        self.thread.join().map_err(|_| io::Error::other("a serving thread panicked"))?
    }
}

/// Returns the options for `mount(2)` of type `fuse` with the descriptor `device` (mount flags `MS_NOSUID | MS_NODEV`).
/// The kernel checks permissions by the modes that we show.
#[must_use]
pub fn mount_data(device: BorrowedFd<'_>, owner: &Owner, allow_other: bool) -> CString {
    let (uid, gid) = match owner {
        Owner::Root => (0, 0),
        Owner::User { uid, gid, .. } => (*uid, *gid),
    };
    let others = if allow_other { ",allow_other" } else { "" };
    let text = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{others}",
        device.as_fd().as_raw_fd()
    );
    CString::new(text).unwrap_or_default()
}
