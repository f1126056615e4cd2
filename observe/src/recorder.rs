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
use crate::observed::Observed;
use crate::run::{DenialRow, Recording, RunInfo, RunOutcome, RunSummary};
use crate::store::Store;
use crate::tally::Tally;
use crate::writer::Writer;

/// Events that the queue holds.
pub const QUEUE: usize = 16_384;
/// Events in one transaction.
const BATCH: usize = 4096;
/// Bounds what a killed recorder takes with it: a full queue and the batch that it was writing.
pub(crate) const AT_MOST: u64 = (QUEUE + BATCH) as u64;
/// The same while writing fails: what is kept between attempts, too.
pub(crate) const AT_MOST_FAILING: u64 = (QUEUE + PENDING + BATCH) as u64;
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
    observed: Arc<Observed>,
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
        let observed = Observed::new(session_dir);
        let worker = Worker {
            dir: session_dir.to_owned(),
            observed: observed.clone(),
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
        Ok(Self { shared, observed, thread: Some(thread) })
    }

    /// Returns the sink that the file system gives its events to.
    #[must_use]
    pub fn sink(&self) -> Arc<dyn Sink> {
        self.shared.clone()
    }

    /// Returns what the run's session has seen; what the file system adds to it is written along with the events.
    #[must_use]
    pub fn observed(&self) -> Arc<Observed> {
        self.observed.clone()
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
    observed: Arc<Observed>,
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
            Ok(()) => {
                if self.failing.take().is_some() {
                    self.mark_live(false);
                }
            }
            Err(error) => {
                if self.failing.is_none() {
                    self.mark_live(true);
                }
                self.note_failure(error);
            }
        }
        for done in self.flushes.drain(..) {
            // A caller that gave up waiting needs no answer.
            drop(done.send(result.as_ref().copied().map_err(Error::chain)));
        }
    }

    /// Best effort: on a full disk a file's length can change still.
    fn mark_live(&self, failing: bool) {
        if let Some(log) = &self.log {
            drop(log.live.set_failing(failing));
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
        result.and_then(|()| log.writer.observe(&self.observed))
    }

    fn open(&self) -> Result<Log> {
        let store = Store::create_or_open(&self.dir)?;
        store.set_session(&self.session)?;
        let live = Live::claim(&self.dir, &self.run.id)?;
        let head = HeadFile::open(&self.dir)?;
        mark_interrupted(&store.conn, &self.dir)?;
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
        noted: None,
        count: lost,
    }
}

#[cfg(test)]
mod tests;
