//! From the file system's threads to the store: a bounded queue and one thread that empties it.
//!
//! - I1: [`Sink::record`] does no I/O. It waits only when the queue is full, and counts it.
//! - I2: an event leaves the recorder's memory when it is committed, or when it is counted as lost.
//! - I3: what was lost is said twice: by a `gap` event once writing works again, and in the run's summary.
//! - I4: refusals and changes are accounted for in memory, so a run's result is right even where its log isn't.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::event::{Event, Op, Outcome, Process, SessionId, Sink, Time, Version};
use crate::live::{HeadFile, Live, hex, mark_interrupted};
use crate::run::{DenialRow, Recording, RunInfo, RunOutcome, RunSummary};
use crate::store::Store;
use crate::tally::Tally;
use crate::writer::Writer;

/// Events that the queue holds.
pub const QUEUE: usize = 16_384;
/// Events in one transaction.
const BATCH: usize = 4096;
/// How long an event waits for others to share its transaction with.
const LINGER: Duration = Duration::from_millis(50);
/// A queue this long is emptied at once.
const HURRY: usize = 2048;
/// Events that are kept while writing fails.
const PENDING: usize = 65_536;
/// Time between attempts while writing fails.
const RETRY: Duration = Duration::from_millis(200);
/// How long writing may fail before it counts as a failure.
const GRACE: Duration = Duration::from_secs(1);
/// How long the end of a run waits for a store that fails.
const LAST_TRY: Duration = Duration::from_secs(3);

/// What a `gap` event's errno is, since the system call that failed is the recorder's own.
const EIO: i32 = 5;

/// What happens to a run whose events can't be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRecordFailure {
    /// The run is to be stopped: see [`Recorder::failed`].
    #[default]
    Stop,
    /// The run goes on; what is lost is counted and recorded as a `gap` once writing works again.
    GapRecord,
}

/// Why recording failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When writing first failed.
    pub since: Time,
    /// Why, with its causes.
    pub error: String,
    /// Events lost so far.
    pub lost: u64,
    /// Whether the policy wants the run stopped.
    pub stop: bool,
}

enum Message {
    Event(Box<Event>),
    Flush(Sender<Result<(), String>>),
    Subscribe(Sender<DenialRow>),
    Finish(RunOutcome, Sender<RunSummary>),
    Abandon,
}

/// What the threads share.
struct Shared {
    queue: Sender<Message>,
    recorder: Mutex<Option<Thread>>,
    waits: AtomicU64,
    lost: AtomicU64,
    failure: Mutex<Option<Failure>>,
    on_failure: OnRecordFailure,
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = &*self.recorder.lock() {
            thread.unpark();
        }
    }

    fn send(&self, message: Message) {
        match self.queue.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => {
                self.waits.fetch_add(1, Ordering::Relaxed);
                self.wake();
                if self.queue.send(message).is_err() {
                    self.recorder_gone();
                }
            }
            Err(TrySendError::Disconnected(_)) => self.recorder_gone(),
        }
    }

    fn recorder_gone(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.fail("the recorder has stopped".to_owned(), Time::now());
    }

    fn fail(&self, error: String, since: Time) {
        let stop = self.on_failure == OnRecordFailure::Stop;
        self.failure.lock().get_or_insert(Failure { since, error, lost: 0, stop });
    }
}

impl Sink for Shared {
    fn record(&self, event: Event) {
        let urgent = matches!(event.outcome, Outcome::Denied { .. });
        self.send(Message::Event(Box::new(event)));
        if urgent || self.queue.len() >= HURRY {
            self.wake();
        }
    }
}

/// Records the events of one run.
#[derive(Debug)]
#[must_use = "a recorder that is dropped leaves an interrupted run in the log"]
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("queued", &self.queue.len()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Starts recording a run into the log in `session_dir`. The log is opened, and made if need be, by the recorder's
    /// own thread, so this returns at once; that it can't be opened shows in [`Recorder::failed`] and in the summary.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(
        session_dir: &Path,
        session: SessionId,
        run: RunInfo,
        on_failure: OnRecordFailure,
    ) -> Result<Self> {
        let (queue, received) = bounded(QUEUE);
        let shared = Arc::new(Shared {
            queue,
            recorder: Mutex::new(None),
            waits: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            failure: Mutex::new(None),
            on_failure,
        });
        let worker = Worker {
            dir: session_dir.to_owned(),
            session,
            run,
            received,
            shared: shared.clone(),
            log: None,
            pending: Vec::new(),
            lost: 0,
            unsaid: None,
            failing: None,
            error: None,
            tally: Tally::default(),
            subscribers: Vec::new(),
            flushes: Vec::new(),
        };
        let thread = thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || worker.run())
            .map_err(Error::io("start a thread for", session_dir))?;
        *shared.recorder.lock() = Some(thread.thread().clone());
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the sink that the file system gives its events to.
    #[must_use]
    pub fn sink(&self) -> Arc<dyn Sink> {
        self.shared.clone()
    }

    /// Returns once everything recorded so far is committed.
    ///
    /// # Errors
    /// It can't be written.
    pub fn flush(&self) -> Result<()> {
        let (done, result) = bounded(1);
        self.shared.send(Message::Flush(done));
        self.shared.wake();
        match result.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::Recording(error)),
            Err(_) => Err(Error::Stopped),
        }
    }

    /// Returns a channel of the refusals from now on, as they happen.
    #[must_use]
    pub fn denials(&self) -> Receiver<DenialRow> {
        let (sender, receiver) = unbounded();
        self.shared.send(Message::Subscribe(sender));
        self.shared.wake();
        receiver
    }

    /// Returns why recording failed, if it did for longer than a moment or anything was lost. It stays failed; with
    /// [`Failure::stop`] the run is to be stopped.
    #[must_use]
    pub fn failed(&self) -> Option<Failure> {
        let mut failure = self.shared.failure.lock().clone()?;
        failure.lost = self.shared.lost.load(Ordering::Relaxed);
        Some(failure)
    }

    /// Returns how often a system call had to wait because the queue was full.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.shared.waits.load(Ordering::Relaxed)
    }

    /// Writes what is left, closes the run and returns what came of it. Events that come later are counted as lost.
    ///
    /// # Errors
    /// The recorder's thread has died. That writing failed is no error here: the summary says so.
    pub fn finish(mut self, outcome: RunOutcome) -> Result<RunSummary> {
        let (done, summary) = bounded(1);
        self.shared.send(Message::Finish(outcome, done));
        self.shared.wake();
        let summary = summary.recv().map_err(|_| Error::Stopped)?;
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| Error::Stopped)?;
        }
        Ok(summary)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.send(Message::Abandon);
            self.shared.wake();
            // A panic of the recorder's has been reported as a failure.
            drop(thread.join());
        }
    }
}

#[derive(Clone, Copy)]
struct Failing {
    since: Instant,
    time: Time,
    tried: Instant,
    for_good: bool,
}

/// What ends the recorder.
enum End {
    Finish(RunOutcome, Sender<RunSummary>),
    Abandon,
}

/// The open log.
struct Log {
    writer: Writer,
    head: HeadFile,
    live: Live,
}

/// The recorder's thread.
struct Worker {
    dir: PathBuf,
    session: SessionId,
    run: RunInfo,
    received: Receiver<Message>,
    shared: Arc<Shared>,
    log: Option<Log>,
    pending: Vec<Event>,
    lost: u64,
    /// Lost events that no gap event speaks of yet, and since when.
    unsaid: Option<(u64, Time)>,
    /// Since when writing fails, and when it was last tried.
    failing: Option<Failing>,
    error: Option<String>,
    tally: Tally,
    subscribers: Vec<Sender<DenialRow>>,
    flushes: Vec<Sender<Result<(), String>>>,
}

impl Worker {
    fn run(mut self) {
        self.settle();
        while let Ok(message) = self.wait() {
            let mut end = self.take(message);
            if end.is_none() && !self.hurried() {
                thread::park_timeout(LINGER);
            }
            while end.is_none() {
                let Ok(message) = self.received.try_recv() else { break };
                end = self.take(message);
                if self.pending.len() >= BATCH {
                    self.settle();
                }
            }
            match end {
                None => self.settle(),
                Some(End::Finish(outcome, done)) => {
                    let summary = self.finish(outcome);
                    // Nobody waits for it any more only if the launcher is going down.
                    drop(done.send(summary));
                    return;
                }
                Some(End::Abandon) => break,
            }
        }
        // What it had is kept; the run stays open for the next opener.
        self.settle();
    }

    /// Waits for the next message; while writing fails, no longer than until the next attempt.
    fn wait(&mut self) -> Result<Message, crossbeam_channel::RecvError> {
        while self.failing.is_some() {
            match self.received.recv_timeout(RETRY) {
                Ok(message) => return Ok(message),
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => self.settle(),
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                    return Err(crossbeam_channel::RecvError);
                }
            }
        }
        self.received.recv()
    }

    fn hurried(&self) -> bool {
        self.received.len() >= HURRY || !self.flushes.is_empty()
    }

    fn take(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Event(event) => {
                if let Some(denial) = self.tally.add(&event) {
                    self.subscribers.retain(|to| to.send(denial.clone()).is_ok());
                }
                if self.pending.len() < PENDING {
                    self.pending.push(*event);
                } else {
                    self.lose(1);
                }
                None
            }
            Message::Flush(done) => {
                self.flushes.push(done);
                None
            }
            Message::Subscribe(to) => {
                self.subscribers.push(to);
                None
            }
            Message::Finish(outcome, done) => Some(End::Finish(outcome, done)),
            Message::Abandon => Some(End::Abandon),
        }
    }

    fn lose(&mut self, events: u64) {
        self.lost += events;
        self.unsaid.get_or_insert((0, Time::now())).0 += events;
        self.shared.lost.fetch_add(events, Ordering::Relaxed);
        let error = self.error.clone().unwrap_or_default();
        self.shared.fail(error, self.failing.map_or_else(Time::now, |failing| failing.time));
    }

    /// Writes what is pending, unless writing failed a moment ago; what can't be written is kept.
    fn settle(&mut self) {
        if let Some(failing) = self.failing
            && failing.tried.elapsed() < RETRY
        {
            return;
        }
        let result = self.write();
        match &result {
            Ok(()) => self.failing = None,
            Err(error) => self.note_failure(error),
        }
        for done in self.flushes.drain(..) {
            // A caller that gave up waiting needs no answer.
            drop(done.send(result.as_ref().copied().map_err(Error::chain)));
        }
    }

    fn note_failure(&mut self, error: &Error) {
        let text = error.chain();
        self.error.get_or_insert_with(|| text.clone());
        let tried = Instant::now();
        let for_good = matches!(
            error,
            Error::Newer { .. } | Error::NotALog(_) | Error::BadId(_) | Error::OtherSession { .. }
        );
        let before =
            self.failing.map_or((tried, Time::now()), |failing| (failing.since, failing.time));
        let failing = Failing { since: before.0, time: before.1, tried, for_good };
        self.failing = Some(failing);
        if for_good || failing.since.elapsed() >= GRACE {
            self.shared.fail(text, failing.time);
        }
    }

    fn write(&mut self) -> Result<()> {
        if self.log.is_none() {
            self.log = Some(self.open()?);
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        if let Some((lost, since)) = self.unsaid.take() {
            self.pending.push(gap_event(lost, since));
        }
        let mut rest = self.pending.as_slice();
        let mut head = None;
        let mut result = Ok(());
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(rest.len().min(BATCH));
            match log.writer.write(batch) {
                Ok(entry) => head = Some(entry),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            rest = after;
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        if let Some(entry) = head {
            log.head.set(&entry)?;
        }
        result
    }

    fn open(&self) -> Result<Log> {
        let store = Store::create_or_open(&self.dir)?;
        store.set_session(&self.session)?;
        let live = Live::claim(&self.dir, &self.run.id)?;
        let head = HeadFile::open(&self.dir)?;
        mark_interrupted(&store.conn, &self.dir, (QUEUE + BATCH) as u64)?;
        let writer = Writer::begin_run(store, &self.run)?;
        Ok(Log { writer, head, live })
    }

    fn finish(mut self, outcome: RunOutcome) -> RunSummary {
        let deadline = Instant::now() + LAST_TRY;
        self.settle();
        while self.failing.is_some_and(|failing| !failing.for_good) && Instant::now() < deadline {
            thread::sleep(RETRY);
            self.settle();
        }
        if !self.pending.is_empty() {
            let left = self.pending.iter().filter(|event| event.op != Op::Gap).count();
            self.lose(left as u64);
        }
        let recording = Recording {
            lost: self.lost,
            at_most: 0,
            error: self.error.clone().filter(|_| self.lost > 0),
        };
        let waits = self.shared.waits.load(Ordering::Relaxed);
        let mut summary = std::mem::take(&mut self.tally).finish(waits, recording);
        if let Some(mut log) = self.log.take() {
            let text = serde_json::to_string(&summary).ok();
            match log.writer.end_run(outcome, self.lost, text.as_deref()) {
                Ok(entry) => {
                    summary.head = Some(hex(&entry.hash));
                    if let Err(error) = log.head.set(&entry) {
                        summary.recording.error.get_or_insert(error.chain());
                    }
                    log.live.release();
                }
                Err(error) => {
                    summary.recording.error.get_or_insert(error.chain());
                }
            }
        } else {
            let error = self.error.unwrap_or_else(|| "the log was never opened".to_owned());
            summary.recording.error.get_or_insert(error);
        }
        summary
    }
}

/// Says that events were lost since a time, which is where the event has its version's times.
fn gap_event(lost: u64, since: Time) -> Event {
    let now = Time::now();
    Event {
        time: now,
        process: Arc::new(Process { pid: std::process::id(), ..Process::default() }),
        op: Op::Gap,
        path: PathBuf::new(),
        path2: None,
        key: None,
        outcome: Outcome::Error { errno: EIO },
        bytes_read: None,
        bytes_written: None,
        version_before: Some(Version { size: 0, mtime: since.0, ctime: since.0 }),
        version_after: None,
        publication: None,
        count: lost,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::event::RunId;
    use crate::query::Filter;
    use crate::store::FORMAT;
    use stockade_policy::{Denial, Mode, ModeSource, Rule};

    fn info(id: &str) -> RunInfo {
        RunInfo {
            id: RunId(id.into()),
            argv: vec!["sh".into()],
            cwd: "/w".into(),
            mode: Mode::WorkspaceWrite,
            source: ModeSource::Default,
            root: "/w".into(),
            writable_roots: vec!["/w".into(), "/tmp".into()],
            backend: "bwrap".to_owned(),
            started: Time::now(),
        }
    }

    fn event(op: Op, path: &str) -> Event {
        Event {
            time: Time::now(),
            process: Arc::new(Process { pid: 7, exe: "/bin/sh".into(), ..Process::default() }),
            op,
            path: path.into(),
            path2: None,
            key: None,
            outcome: Outcome::Ok,
            bytes_read: None,
            bytes_written: None,
            version_before: None,
            version_after: None,
            publication: None,
            count: 1,
        }
    }

    fn denied(path: &str, count: u64) -> Event {
        let denial = Arc::new(Denial::new(Rule::ReadDenied, "deny-read **/.env"));
        Event { outcome: Outcome::Denied { denial, errno: 13 }, count, ..event(Op::Read, path) }
    }

    fn count(dir: &Path, table: &str) -> u64 {
        let store = Store::open_read_only(dir).unwrap();
        store
            .conn
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
            .unwrap()
            .cast_unsigned()
    }

    fn session() -> SessionId {
        SessionId("s1".into())
    }

    #[test]
    fn a_run_is_recorded_and_summed_up() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("sessions/s1");
        let recorder = Recorder::start(&dir, session(), info("r1"), OnRecordFailure::Stop).unwrap();
        let sink = recorder.sink();
        let denials = recorder.denials();
        sink.record(event(Op::Create, "/w/a"));
        sink.record(event(Op::Read, "/w/b"));
        sink.record(denied("/w/.env", 2));
        sink.record(denied("/w/.env", 1));
        assert_eq!(denials.recv_timeout(Duration::from_secs(10)).unwrap().count, 2);
        recorder.flush().unwrap();
        assert_eq!(count(&dir, "event"), 4);
        let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
        assert_eq!((summary.denial_count, summary.reads, summary.events), (3, 1, 4));
        assert_eq!(summary.denials.len(), 1);
        assert_eq!(summary.denials[0].count, 3);
        assert_eq!(summary.changes.created, [PathBuf::from("/w/a")]);
        assert_eq!(summary.recording, Recording::default());
        let store = Store::open_read_only(&dir).unwrap();
        let report = store.verify(summary.head.as_deref()).unwrap();
        assert_eq!((report.problem, report.events), (None, 4));
        assert_eq!(
            store.last_run().unwrap().unwrap().end.unwrap().summary.unwrap().denial_count,
            3
        );
        assert_eq!(count(&dir, "run_end"), 1);
        assert_eq!(fs::read_dir(dir.join("live")).unwrap().count(), 0);
    }

    #[test]
    fn many_events_from_many_threads_all_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let recorder =
            Recorder::start(dir.path(), session(), info("r1"), OnRecordFailure::Stop).unwrap();
        thread::scope(|scope| {
            for thread in 0..4 {
                let sink = recorder.sink();
                scope.spawn(move || {
                    for at in 0..10_000 {
                        sink.record(event(Op::Write, &format!("/w/{thread}/{}", at % 100)));
                    }
                });
            }
        });
        let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
        assert_eq!(summary.events, 40_000);
        assert_eq!(summary.changes.modified.len(), 400);
        assert_eq!(count(dir.path(), "event"), 40_000);
    }

    #[test]
    fn two_recorders_share_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let recorders = ["r1", "r2"].map(|run| {
            Recorder::start(dir.path(), session(), info(run), OnRecordFailure::Stop).unwrap()
        });
        for _ in 0..50 {
            for recorder in &recorders {
                recorder.sink().record(event(Op::Write, "/w/a"));
                recorder.flush().unwrap();
            }
        }
        for recorder in recorders {
            assert_eq!(recorder.finish(RunOutcome::exited(0)).unwrap().recording.error, None);
        }
        assert_eq!(count(dir.path(), "event"), 100);
        let store = Store::open_read_only(dir.path()).unwrap();
        assert_eq!(store.verify(None).unwrap().problem, None);
        assert_eq!(store.runs().unwrap().len(), 2);
        for run in ["r1", "r2"] {
            let filter = Filter { run: Some(RunId(run.into())), ..Filter::default() };
            assert_eq!(store.events(&filter).unwrap().len(), 50);
        }
        assert_eq!(count(dir.path(), "path"), 2, "both use one row a path");
    }

    #[test]
    fn a_log_that_cannot_be_made_stops_the_run_and_the_result_is_right_still() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("s1");
        fs::write(&taken, "not a directory").unwrap();
        let recorder =
            Recorder::start(&taken, session(), info("r1"), OnRecordFailure::Stop).unwrap();
        recorder.sink().record(denied("/w/.env", 1));
        assert!(matches!(recorder.flush(), Err(Error::Recording(_))));
        let deadline = Instant::now() + Duration::from_secs(10);
        while recorder.failed().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        assert!(recorder.failed().unwrap().stop);
        let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
        assert_eq!((summary.denial_count, summary.recording.lost), (1, 1));
        assert!(summary.recording.error.is_some());
    }

    #[test]
    fn events_lost_while_writing_failed_leave_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("s1");
        fs::write(&taken, "not a directory").unwrap();
        let recorder =
            Recorder::start(&taken, session(), info("r1"), OnRecordFailure::GapRecord).unwrap();
        let sink = recorder.sink();
        let all = PENDING + QUEUE;
        for _ in 0..all {
            sink.record(event(Op::Read, "/w/a"));
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while recorder.failed().is_none_or(|failure| failure.lost == 0) {
            assert!(Instant::now() < deadline, "{recorder:?}");
            sink.record(event(Op::Read, "/w/a"));
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!recorder.failed().unwrap().stop);
        fs::remove_file(&taken).unwrap();
        while recorder.flush().is_err() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(20));
        }
        sink.record(event(Op::Read, "/w/a"));
        let summary = recorder.finish(RunOutcome::exited(0)).unwrap();
        let lost = summary.recording.lost;
        assert!(lost > 0);
        assert_eq!(count(&taken, "event"), summary.events - lost + 1, "and one gap");
        let store = Store::open_read_only(&taken).unwrap();
        let gaps: i64 = store
            .conn
            .query_row("SELECT sum(count) FROM events WHERE op = 'gap'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(gaps.cast_unsigned(), lost);
    }

    #[test]
    fn a_newer_format_and_another_sessions_log_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let start = |session: &str, run: &str| {
            Recorder::start(dir.path(), SessionId(session.into()), info(run), OnRecordFailure::Stop)
                .unwrap()
        };
        let recorder = start("s1", "r1");
        recorder.finish(RunOutcome::exited(0)).unwrap();
        let other = start("s2", "r2").finish(RunOutcome::exited(0)).unwrap();
        assert!(other.recording.error.unwrap().contains("session `s1`"));
        let store = Store::create_or_open(dir.path()).unwrap();
        store.conn.pragma_update(None, "user_version", FORMAT + 100).unwrap();
        drop(store);
        let newer = start("s1", "r3").finish(RunOutcome::exited(0)).unwrap();
        assert!(newer.recording.error.unwrap().contains("format 2.0"));
        assert!(matches!(Store::open_read_only(dir.path()), Err(Error::Newer { .. })));
    }

    #[test]
    fn a_recorder_that_died_leaves_an_interrupted_run() {
        let dir = tempfile::tempdir().unwrap();
        let recorder =
            Recorder::start(dir.path(), session(), info("r1"), OnRecordFailure::Stop).unwrap();
        recorder.sink().record(event(Op::Read, "/w/a"));
        recorder.flush().unwrap();
        // While it lives, another opener leaves it alone.
        let second =
            Recorder::start(dir.path(), session(), info("r2"), OnRecordFailure::Stop).unwrap();
        second.finish(RunOutcome::exited(0)).unwrap();
        assert_eq!(count(dir.path(), "run_end"), 1);
        drop(recorder);
        let third =
            Recorder::start(dir.path(), session(), info("r3"), OnRecordFailure::Stop).unwrap();
        third.finish(RunOutcome::exited(0)).unwrap();
        let store = Store::open_read_only(dir.path()).unwrap();
        let (outcome, at_most): (String, i64) = store
            .conn
            .query_row(
                "SELECT outcome, at_most FROM run_end e JOIN run r ON r.id = e.run WHERE r.name = 'r1'",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!((outcome.as_str(), at_most > 0), ("interrupted", true));
    }
}
