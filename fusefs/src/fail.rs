//! Points at which a test can have the server killed (contract F7). Release builds have none.

/// The moments of a publication and of a guarded rename, in their order.
#[derive(Clone, Copy, Debug)]
pub enum Point {
    /// Nothing has been done yet.
    Begun,
    /// The staged file has its hidden name.
    Linked,
    /// It has its own name, and the hidden one is that of the file it displaced.
    Exchanged,
    /// The hidden name is gone.
    Cleared,
    /// A created file has its name.
    Created,
    /// A renamed file has its new name, and its old one is that of the file it displaced.
    Moved,
    /// What a file that is being cut holds was copied, and the copy has its hidden name.
    Copied,
    /// The copy has the name, and the file that is being cut the hidden one.
    Parted,
}

/// Kills this process if `STOCKADE_FAILPOINT` names this point: `NAME`, or `NAME:N` for the Nth time.
#[cfg(debug_assertions)]
pub fn reached(point: Point) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("STOCKADE_FAILPOINT").ok()?;
        let (name, at) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), at.parse().ok()?))
    });
    if let Some((name, at)) = wanted
        && format!("{point:?}").eq_ignore_ascii_case(name)
        && COUNT.fetch_add(1, Ordering::Relaxed) + 1 == *at
    {
        let own = rustix::process::getpid();
        if let Err(error) = rustix::process::kill_process(own, rustix::process::Signal::KILL) {
            tracing::error!(%error, "the server can't be killed");
        }
        std::process::abort();
    }
}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
pub fn reached(_point: Point) {}
