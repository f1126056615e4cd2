//! What `stockade top` knows and what of it is looked at; nothing here draws.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_observe::{
    Event, Op, Outcome, Process, RunId, RunRow, SessionId, Stored, Time, is_change,
};

use stockade_policy::{ApprovalRequest, Verdict};

use super::feed::News;
use crate::cli::log::{path, program};

/// Events that can be looked back at.
const EVENTS: usize = 20_000;
/// Files and processes that are counted; the least busy are given up first.
const COUNTED: usize = 50_000;
/// Seconds of the rate's history.
pub(super) const HISTORY: usize = 120;

/// What is listed below the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Events,
    Programs,
    Files,
    Processes,
}

impl View {
    pub(super) const ALL: [Self; 4] = [Self::Events, Self::Programs, Self::Files, Self::Processes];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Events => "Events",
            Self::Programs => "Programs",
            Self::Files => "Files",
            Self::Processes => "Processes",
        }
    }
}

/// How busy something was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub events: u64,
    pub reads: u64,
    pub changes: u64,
    pub denied: u64,
    pub last: i64,
}

impl Count {
    fn add(&mut self, event: &Event) {
        self.events += 1;
        match &event.outcome {
            Outcome::Denied { .. } => self.denied += 1,
            Outcome::Ok if is_change(event) => self.changes += 1,
            Outcome::Ok if matches!(event.op, Op::Read | Op::Exec | Op::Readdir) => self.reads += 1,
            Outcome::Ok | Outcome::Error { .. } => {}
        }
        self.last = self.last.max(event.time.0);
    }
}

/// One event, and where it is from.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub session: SessionId,
    pub stored: Stored,
}

/// One run.
#[derive(Clone, Debug)]
pub(super) struct RunLine {
    pub session: SessionId,
    pub row: RunRow,
    pub count: Count,
}

/// A process by its number and start, and what it ran last.
#[derive(Clone, Debug)]
pub(super) struct Proc {
    pub process: Arc<Process>,
    pub count: Count,
}

/// What is typed at the bottom line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Input {
    #[default]
    None,
    Filter,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub runs: Vec<RunLine>,
    pub events: VecDeque<Item>,
    programs: HashMap<PathBuf, Count>,
    files: HashMap<PathBuf, Count>,
    processes: HashMap<(u32, u64), Proc>,
    /// Events of each of the last seconds, the latest last.
    pub rate: VecDeque<u64>,
    second: u64,
    pub total: Count,
    pub conflicts: u64,
    pub view: View,
    pub filter: String,
    pub denied_only: bool,
    pub paused: bool,
    waiting: Vec<News>,
    /// How far the list is scrolled from its first line.
    pub selected: usize,
    /// The list stays at its end as events come.
    pub follow: bool,
    pub detail: bool,
    pub help: bool,
    /// Requests for a wider mode that wait for an answer, the oldest first.
    pub asking: Vec<ApprovalRequest>,
    /// The one that is looked at.
    pub question: Option<String>,
    /// The answer that was given to it and is to be passed on.
    pub verdict: Option<(String, Verdict)>,
    /// What came of the last answer.
    pub said: Option<String>,
    pub input: Input,
}

/// A line of one of the busiest lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    pub name: String,
    pub count: Count,
}

impl Model {
    pub(super) fn new() -> Self {
        Self { follow: true, ..Self::default() }
    }

    /// Takes news; while paused it's kept for later.
    pub(super) fn take(&mut self, news: News) {
        self.second += u64::try_from(news.events.len()).unwrap_or(0);
        if self.paused {
            self.waiting.push(news);
        } else {
            self.apply(news);
        }
    }

    fn apply(&mut self, news: News) {
        for row in news.runs {
            let known = |line: &&mut RunLine| {
                line.session == news.session && line.row.info.id == row.info.id
            };
            match self.runs.iter_mut().find(known) {
                Some(line) => line.row = row,
                None => {
                    let count = Count::default();
                    self.runs.push(RunLine { session: news.session.clone(), row, count });
                }
            }
        }
        // Those that live first, then the latest.
        self.runs.sort_by_key(|line| (!line.row.live, std::cmp::Reverse(line.row.info.started)));
        for stored in news.events {
            self.push(&news.session, stored);
        }
    }

    fn push(&mut self, session: &SessionId, stored: Stored) {
        let event = &stored.event;
        self.total.add(event);
        self.conflicts += u64::from(event.op == Op::Conflict);
        self.programs.entry(event.process.exe.clone()).or_default().add(event);
        for path in [Some(&event.path), event.path2.as_ref()].into_iter().flatten() {
            self.files.entry(path.clone()).or_default().add(event);
        }
        let who = (event.process.pid, event.process.start_time);
        let process = self
            .processes
            .entry(who)
            .or_insert_with(|| Proc { process: event.process.clone(), count: Count::default() });
        process.process = event.process.clone();
        process.count.add(event);
        if let Some(line) = self.run_mut(session, &stored.run) {
            line.count.add(event);
        }
        thin(&mut self.files, |count| count.last);
        thin(&mut self.processes, |process| process.count.last);
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.selected = self.selected.saturating_sub(1);
        }
        self.events.push_back(Item { session: session.clone(), stored });
    }

    fn run_mut(&mut self, session: &SessionId, run: &RunId) -> Option<&mut RunLine> {
        self.runs.iter_mut().find(|line| line.session == *session && line.row.info.id == *run)
    }

    /// A second has passed.
    pub(super) fn tick(&mut self) {
        if self.rate.len() == HISTORY {
            self.rate.pop_front();
        }
        self.rate.push_back(std::mem::take(&mut self.second));
    }

    pub(super) fn pause(&mut self) {
        self.paused = !self.paused;
        if !self.paused {
            for news in std::mem::take(&mut self.waiting) {
                self.apply(news);
            }
        }
    }

    /// Takes the requests that wait now; a window on one that is over closes.
    pub(super) fn ask(&mut self, asking: Vec<ApprovalRequest>) {
        self.asking = asking;
        if let Some(id) = &self.question
            && self.asked().is_none()
        {
            self.said = Some(format!("request {id} is over"));
            self.question = None;
        }
    }

    /// The request that is looked at.
    pub(super) fn asked(&self) -> Option<&ApprovalRequest> {
        let id = self.question.as_deref()?;
        self.asking.iter().find(|request| request.id == id)
    }

    /// Looks at the next request, from the one that is looked at.
    pub(super) fn next_question(&mut self) {
        let at = self.asking.iter().position(|request| Some(&request.id) == self.question.as_ref());
        let next = at.map_or(0, |at| at + 1) % self.asking.len().max(1);
        self.question = self.asking.get(next).map(|request| request.id.clone());
        self.said = None;
    }

    /// Answers the request that is looked at.
    pub(super) fn decide(&mut self, verdict: Verdict) {
        if let Some(request) = self.asked() {
            self.verdict = Some((request.id.clone(), verdict));
        }
        self.question = None;
    }

    /// How many events wait for the pause to end.
    pub(super) fn kept_back(&self) -> usize {
        self.waiting.iter().map(|news| news.events.len()).sum()
    }

    pub(super) fn live(&self) -> usize {
        self.runs.iter().filter(|line| line.row.live).count()
    }

    /// The events that the filter wants, in order.
    pub(super) fn listed(&self) -> Vec<&Item> {
        let wanted = |item: &&Item| {
            let event = &item.stored.event;
            (!self.denied_only || matches!(event.outcome, Outcome::Denied { .. }))
                && self.wants(|| {
                    let second = event.path2.as_deref().map(path).unwrap_or_default();
                    let who = program(&event.process.exe);
                    format!("{} {who} {} {second}", event.op, path(&event.path))
                })
        };
        self.events.iter().filter(wanted).collect()
    }

    fn wants(&self, text: impl FnOnce() -> String) -> bool {
        self.filter.is_empty() || text().to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// The lines of the list of programs, files or processes, the busiest first.
    pub(super) fn busiest(&self) -> Vec<Busy> {
        let mut all: Vec<Busy> = match self.view {
            View::Events => Vec::new(),
            View::Programs => busy(self.programs.iter().map(|(exe, count)| (name_of(exe), *count))),
            View::Files => busy(self.files.iter().map(|(file, count)| (path(file), *count))),
            View::Processes => busy(self.processes.values().map(|one| {
                let process = &one.process;
                (format!("{:>7}  {}", process.pid, command_of(process)), one.count)
            })),
        };
        all.retain(|line| {
            (!self.denied_only || line.count.denied > 0) && self.wants(|| line.name.clone())
        });
        all.sort_by(|a, b| (b.count.events, &a.name).cmp(&(a.count.events, &b.name)));
        all
    }

    /// The number of lines in the list.
    pub(super) fn len(&self) -> usize {
        if self.view == View::Events { self.listed().len() } else { self.busiest().len() }
    }

    /// Moves the selection; at the end of the events it follows them.
    pub(super) fn go(&mut self, by: isize) {
        let len = self.len();
        let at = if self.follow && self.view == View::Events {
            len.saturating_sub(1)
        } else {
            self.selected
        };
        let at = at.saturating_add_signed(by).min(len.saturating_sub(1));
        self.selected = at;
        self.follow = at + 1 >= len;
    }

    /// Returns the line that is selected.
    pub(super) fn at(&self, len: usize) -> usize {
        let last = len.saturating_sub(1);
        if self.view == View::Events && self.follow { last } else { self.selected.min(last) }
    }

    pub(super) fn show(&mut self, view: View) {
        self.view = view;
        self.selected = 0;
        self.follow = true;
        self.detail = false;
    }
}

fn busy(all: impl Iterator<Item = (String, Count)>) -> Vec<Busy> {
    all.map(|(name, count)| Busy { name, count }).collect()
}

fn name_of(exe: &Path) -> String {
    if exe.as_os_str().is_empty() { "?".to_owned() } else { path(exe) }
}

fn command_of(process: &Process) -> String {
    let line = process.cmdline.strip_suffix(b"\0").unwrap_or(&process.cmdline);
    if line.is_empty() {
        return name_of(&process.exe);
    }
    stockade_policy::text::show_command(line.split(|&byte| byte == 0))
}

/// Gives up the half that was busy the longest ago when there are too many.
fn thin<K: Clone + Eq + std::hash::Hash, V>(all: &mut HashMap<K, V>, last: impl Fn(&V) -> i64) {
    if all.len() <= COUNTED {
        return;
    }
    let mut times: Vec<i64> = all.values().map(&last).collect();
    let half = times.len() / 2;
    let (_, &mut middle, _) = times.select_nth_unstable(half);
    all.retain(|_, value| last(value) > middle);
}

/// What somebody should look at, in words.
pub(super) fn describe(item: &Item) -> Vec<(&'static str, String)> {
    let event = &item.stored.event;
    let process = &event.process;
    let mut all = vec![
        ("time", event.time.to_rfc3339()),
        ("operation", event.op.to_string()),
        ("path", path(&event.path)),
    ];
    if let Some(second) = &event.path2 {
        all.push(("to", path(second)));
    }
    match &event.outcome {
        Outcome::Ok => all.push(("outcome", "ok".to_owned())),
        Outcome::Error { errno } => {
            all.push(("outcome", format!("failed: {}", crate::errno::name(*errno))));
        }
        Outcome::Denied { denial, errno } => {
            all.push(("outcome", format!("refused with {}", crate::errno::name(*errno))));
            let source = stockade_policy::text::sanitise(denial.source());
            all.push(("rule", format!("{} ({source})", denial.rule())));
        }
    }
    if let Some(noted) = &event.noted {
        all.push(("noted", noted.rule().to_string()));
    }
    let bytes = |count: Option<u64>| count.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
    if matches!(event.op, Op::Read | Op::Copy) {
        all.push(("bytes read", bytes(event.bytes_read)));
    }
    if matches!(event.op, Op::Write | Op::Copy) {
        all.push(("bytes written", bytes(event.bytes_written)));
    }
    if let Some(publication) = event.publication {
        all.push(("publication", publication.as_str().to_owned()));
    }
    if let Some(key) = event.key {
        all.push(("key", key.to_string()));
    }
    all.push(("process", format!("{} (parent {})", process.pid, process.ppid)));
    all.push(("program", name_of(&process.exe)));
    all.push(("command", command_of(process)));
    all.push(("user", process.uid.to_string()));
    all.push(("session, run", format!("{}, {}", item.session, item.stored.run)));
    all.push(("number", item.stored.seq.to_string()));
    if event.count > 1 {
        all.push(("stands for", format!("{} operations", event.count)));
    }
    all
}

/// How long a run has gone on, or went on.
pub(super) fn age(row: &RunRow) -> Time {
    let until = row.end.as_ref().map_or_else(Time::now, |end| end.time);
    Time(until.0.saturating_sub(row.info.started.0).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_observe::Key;

    fn stored(seq: i64, op: Op, path: &str, denied: bool) -> Stored {
        let outcome = if denied {
            let denial = stockade_policy::Denial::new(stockade_policy::Rule::WriteDenied, "test");
            Outcome::Denied { denial: Arc::new(denial), errno: 30 }
        } else {
            Outcome::Ok
        };
        let process = Process { pid: 7, exe: "/bin/cat".into(), ..Process::default() };
        let event = Event {
            time: Time(seq),
            process: Arc::new(process),
            op,
            path: path.into(),
            path2: None,
            key: Some(Key { dev: 1, ino: 2, generation: 3 }),
            outcome,
            bytes_read: Some(0),
            bytes_written: Some(0),
            version_before: None,
            version_after: None,
            publication: None,
            noted: None,
            count: 1,
        };
        Stored { seq, run: RunId("r".into()), event }
    }

    fn news(events: Vec<Stored>) -> News {
        News { session: SessionId("s".into()), runs: Vec::new(), events }
    }

    #[test]
    fn events_are_filtered_counted_and_kept_while_paused() {
        let mut model = Model::new();
        model.take(news(vec![
            stored(1, Op::Read, "/w/a", false),
            stored(2, Op::Unlink, "/w/b", true),
        ]));
        model.pause();
        model.take(news(vec![stored(3, Op::Mkdir, "/w/C", false)]));
        assert_eq!((model.listed().len(), model.kept_back()), (2, 1));
        model.pause();
        assert_eq!((model.listed().len(), model.kept_back()), (3, 0));
        model.tick();
        assert_eq!(model.rate, [3]);
        assert_eq!((model.total.reads, model.total.changes, model.total.denied), (1, 1, 1));
        model.filter = "/w/c".to_owned();
        assert_eq!(model.listed().len(), 1);
        model.filter.clear();
        model.denied_only = true;
        assert_eq!(model.listed()[0].stored.seq, 2);
        model.show(View::Files);
        assert_eq!(model.busiest().iter().map(|line| &*line.name).collect::<Vec<_>>(), ["/w/b"]);
    }

    #[test]
    fn the_list_follows_until_it_is_scrolled() {
        let mut model = Model::new();
        model.take(news((1..=10).map(|seq| stored(seq, Op::Read, "/w/a", false)).collect()));
        assert_eq!(model.at(10), 9);
        model.go(-3);
        assert!(!model.follow);
        assert_eq!(model.at(10), 6);
        model.go(isize::MAX);
        assert!(model.follow);
        assert_eq!(model.at(10), 9);
        model.go(isize::MIN);
        assert_eq!(model.at(10), 0);
    }

    #[test]
    fn the_busiest_stay_when_there_are_too_many() {
        let mut all: HashMap<u64, i64> = HashMap::new();
        for number in 0..=u64::try_from(COUNTED).unwrap() {
            all.insert(number, i64::try_from(number).unwrap());
        }
        thin(&mut all, |last| *last);
        assert!(all.len() <= COUNTED / 2 + 1, "{}", all.len());
        assert!(all.contains_key(&u64::try_from(COUNTED).unwrap()));
    }
}
