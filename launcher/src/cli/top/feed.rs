//! Where `stockade top` gets its news: the logs of the sessions, as they grow.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use stockade_observe::{
    Filter, RunRow, SessionDir, SessionId, Store, Stored, find_session, session_dirs,
};

use crate::error::Failure;
use crate::session::failure;

/// Sessions are looked for so often.
const LOOK: Duration = Duration::from_secs(1);
/// Of a session that was there before us, so many of the last events are shown.
const BEFORE: i64 = 500;
/// At most so many events of a session are taken at once.
const MANY: usize = 5_000;

/// What is new in one session.
#[derive(Debug)]
pub(super) struct News {
    pub session: SessionId,
    pub runs: Vec<RunRow>,
    pub events: Vec<Stored>,
}

/// The sessions that are watched.
pub(super) struct Feed {
    state: PathBuf,
    only: Option<String>,
    watched: HashMap<SessionId, Watched>,
    looked: Option<Instant>,
}

struct Watched {
    store: Store,
    /// When the log was last written, as far as it was read.
    seen: Option<SystemTime>,
    active: SystemTime,
    after: i64,
    any_live: bool,
}

impl Feed {
    /// Watches one session, or all that have a run going on and the one that was active last.
    pub(super) fn new(state: &Path, only: Option<String>) -> Self {
        Self { state: state.to_owned(), only, watched: HashMap::new(), looked: None }
    }

    /// Returns what came since the last time.
    pub(super) fn poll(&mut self) -> Result<Vec<News>, Failure> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.look()?;
            self.looked = Some(Instant::now());
        }
        let mut news = Vec::new();
        for (session, watched) in &mut self.watched {
            if let Some(new) = watched.poll(session).map_err(failure)? {
                news.push(new);
            }
        }
        Ok(news)
    }

    fn look(&mut self) -> Result<(), Failure> {
        let sessions = match &self.only {
            Some(name) => vec![find_session(&self.state, name).map_err(failure)?],
            None => session_dirs(&self.state).map_err(failure)?,
        };
        for (at, session) in sessions.into_iter().enumerate() {
            if let Some(watched) = self.watched.get_mut(&session.id) {
                watched.active = session.active;
            } else if self.only.is_some()
                || (at == 0 && self.looked.is_none())
                || is_fresh(&session)
            {
                // One that is just being made can't be opened yet, and will be in a second.
                if let Ok(watched) = Watched::open(&session) {
                    self.watched.insert(session.id, watched);
                }
            }
        }
        Ok(())
    }
}

/// Tells whether a run may be going on that nobody has seen yet.
fn is_fresh(session: &SessionDir) -> bool {
    let recent = session.active.elapsed().is_ok_and(|age| age < Duration::from_secs(5));
    recent || has_live_run(&session.dir)
}

/// A run says that it lives by a file of its own.
fn has_live_run(dir: &Path) -> bool {
    std::fs::read_dir(dir.join("live")).is_ok_and(|mut files| files.next().is_some())
}

impl Watched {
    fn open(session: &SessionDir) -> stockade_observe::Result<Self> {
        let store = Store::open_read_only(&session.dir)?;
        let after = (store.last_seq()? - BEFORE).max(0);
        Ok(Self { store, seen: None, active: session.active, after, any_live: false })
    }

    fn poll(&mut self, session: &SessionId) -> stockade_observe::Result<Option<News>> {
        // A run that dies writes nothing, so those that live are looked at each time.
        if self.seen == Some(self.active) && !self.any_live {
            return Ok(None);
        }
        self.seen = Some(self.active);
        let mut events = Vec::new();
        self.store.for_each(&Filter { after: Some(self.after), ..Filter::default() }, |event| {
            events.push(event);
            if events.len() < MANY { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if events.len() == MANY {
            self.seen = None;
        }
        self.after = events.last().map_or(self.after, |event| event.seq);
        let runs = self.store.runs()?;
        self.any_live = runs.iter().any(|run| run.live);
        Ok(Some(News { session: session.clone(), runs, events }))
    }
}
