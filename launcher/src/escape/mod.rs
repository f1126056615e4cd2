//! The battery of escapes: small attempts to have an effect outside, made for real (contract L1, L11, L12).
//!
//! `stockade doctor --verify` makes each attempt twice: unconfined, where it must show that it would have an effect on this
//! machine, and under each back end. What counts is never what the attempt says, but what its canary outside shows: a
//! file, a socket, a process or a kernel object of its own (`canary`). Only for what leaves no trace, such as opening a
//! device, its own word is taken.
//!
//! - I1: attempts change nothing of the machine but their canaries, also where they succeed.
//! - I2: what needs mounts is tried in a mount namespace of its own where nothing else confines it.
//! - I3: an attempt is a process of its own with a time limit; one that ends badly doesn't spoil the others.

mod canary;
mod files;
mod kernel;
mod mounts;
mod processes;
mod sockets;
pub mod verify;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use crate::enforcement::Gap;
use crate::sys;

/// The first argument of the program that makes the attempts.
pub const FLAG: &str = "--stockade-escape";

/// How long one attempt may take.
const LIMIT: Duration = Duration::from_secs(5);

/// What an attempt finds around itself, the same at each place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scene {
    /// The directory of everything that belongs to the battery at this place.
    top: PathBuf,
    /// Whether nothing confines the attempts.
    unconfined: bool,
    /// A word that stands for this battery in names that are the machine's own.
    word: String,
    /// Descriptors that were left open for the attempts.
    descriptor: i32,
    /// Processes outside, by the attempt that they are for.
    victims: BTreeMap<String, i32>,
    /// Where each of them keeps a word of memory.
    memory: u64,
    /// A descriptor by which each of them holds its file open for writing.
    held: i32,
    /// Keys of System V objects.
    keys: BTreeMap<String, i32>,
    /// A terminal of somebody else's.
    terminal: PathBuf,
    /// A directory of the host's below `/tmp`.
    temporary: PathBuf,
    /// Which attempt this is for.
    #[serde(skip)]
    id: &'static str,
}

impl Scene {
    fn workspace(&self) -> PathBuf {
        self.top.join("work")
    }

    /// The attempt's own directory in the workspace.
    fn own(&self) -> PathBuf {
        self.workspace().join(self.id)
    }

    /// The attempt's own directory outside.
    fn outside(&self) -> PathBuf {
        self.top.join("out").join(self.id)
    }

    /// The file outside that must not change.
    fn file(&self) -> PathBuf {
        self.outside().join("file")
    }

    /// The file that the policy lets nobody read.
    fn secret(&self) -> PathBuf {
        self.top.join("secrets").join(self.id)
    }

    fn victim(&self) -> io::Result<rustix::process::Pid> {
        let pid = self.victims.get(self.id).copied().and_then(rustix::process::Pid::from_raw);
        pid.ok_or_else(|| io::Error::other("there is no process to try it on"))
    }

    fn key(&self) -> i32 {
        self.keys.get(self.id).copied().unwrap_or(-1)
    }

    /// A name for a kernel object of this attempt's.
    fn name(&self) -> String {
        format!("stockade-{}-{}", self.word, self.id)
    }
}

/// What is tried, and how it shows.
#[derive(Clone, Copy)]
enum Act {
    /// The canary shows it.
    Try(fn(&Scene) -> io::Result<()>),
    /// That it could be done is the effect.
    Own(fn(&Scene) -> io::Result<()>),
    /// It reads the secret.
    Read(fn(&Scene) -> io::Result<Vec<u8>>),
}

/// One attempt.
#[derive(Clone, Copy)]
pub struct Attempt {
    /// Its stable name; what comes before the first hyphen is its family.
    pub id: &'static str,
    act: Act,
    /// The gaps that let it out.
    pub gaps: &'static [Gap],
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("id", &self.id).field("gaps", &self.gaps).finish()
    }
}

const fn attempt(id: &'static str, act: Act) -> Attempt {
    Attempt { id, act, gaps: &[] }
}

const fn with_gap(id: &'static str, gaps: &'static [Gap], act: Act) -> Attempt {
    Attempt { id, act, gaps }
}

/// Returns every attempt, in the order in which they are made.
#[must_use]
pub fn all() -> Vec<Attempt> {
    [files::ALL, mounts::ALL, sockets::ALL, processes::ALL, kernel::ALL, processes::LAST].concat()
}

/// What came back from an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    id: String,
    /// It got to its end.
    done: bool,
    /// What stopped it.
    #[serde(default)]
    why: String,
    /// What it read.
    #[serde(default)]
    read: Vec<u8>,
}

/// Makes the attempts if the command line asks for it.
#[must_use]
pub fn main_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    (args.next()? == FLAG).then(|| {
        let file: OsString = args.next().unwrap_or_default();
        match drive(Path::new(&file)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(125),
        }
    })
}

/// Makes one attempt after the other and writes a line of JSON about each.
fn drive(file: &Path) -> io::Result<()> {
    let mut scene: Scene = serde_json::from_slice(&fs::read(file)?)?;
    let mut out = io::stdout();
    // A terminal of the attempts' own.
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(io::stdin())?;
    for attempt in all() {
        scene.id = attempt.id;
        let answer = make(attempt, &scene)?;
        let line = serde_json::to_string(&answer)?;
        writeln!(out, "{line}")?;
        out.flush()?;
    }
    Ok(())
}

/// Makes one attempt in a process of its own (invariant I3).
fn make(attempt: Attempt, scene: &Scene) -> io::Result<Answer> {
    let (mut reader, mut writer) = io::pipe()?;
    let mut child = sys::fork(|| {
        let answer = perform(attempt, scene);
        let text = serde_json::to_string(&answer).unwrap_or_default();
        u8::from(writer.write_all(text.as_bytes()).is_err())
    })?;
    drop(writer);
    let mut fds = [PollFd::from_borrowed_fd(child.pidfd(), PollFlags::IN)];
    let limit = Timespec { tv_sec: i64::try_from(LIMIT.as_secs()).unwrap_or(5), tv_nsec: 0 };
    let ended = rustix::event::poll(&mut fds, Some(&limit))? > 0;
    if !ended {
        child.signal(rustix::process::Signal::KILL)?;
    }
    child.wait()?;
    let mut text = String::new();
    if ended {
        reader.read_to_string(&mut text)?;
    }
    let died = if ended { "it was killed" } else { "no answer within five seconds" };
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| Answer {
        id: attempt.id.to_owned(),
        done: false,
        why: died.to_owned(),
        read: Vec::new(),
    }))
}

fn perform(attempt: Attempt, scene: &Scene) -> Answer {
    let result = fs::create_dir_all(scene.own()).and_then(|()| match attempt.act {
        Act::Try(act) | Act::Own(act) => act(scene).map(|()| Vec::new()),
        Act::Read(act) => act(scene),
    });
    let (done, why, read) = match result {
        Ok(read) => (true, String::new(), read),
        Err(error) => (false, error.to_string(), Vec::new()),
    };
    Answer { id: attempt.id.to_owned(), done, why, read }
}

/// What the attempts write.
const MARK: &[u8] = b"OUT\n";

/// Writes into a file that exists.
fn write_to(path: impl AsRef<Path>) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(MARK)
}

/// Makes a file.
fn create(path: impl AsRef<Path>) -> io::Result<()> {
    fs::File::create_new(path)?.write_all(MARK)
}

fn below(root: impl AsRef<Path>, path: &Path) -> PathBuf {
    root.as_ref().join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns every process that can be seen and seems to be the one outside.
fn suspects(scene: &Scene) -> io::Result<Vec<rustix::process::Pid>> {
    let mut found = vec![scene.victim()?];
    for entry in fs::read_dir("/proc")?.flatten() {
        let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if cwd == scene.outside()
            && let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
        {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Tries something on each process that could be the one outside, until it works.
fn on_suspects(
    scene: &Scene,
    mut act: impl FnMut(rustix::process::Pid) -> io::Result<()>,
) -> io::Result<()> {
    let mut last = Err(io::ErrorKind::NotFound.into());
    for pid in suspects(scene)? {
        last = act(pid);
        if last.is_ok() {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_has_a_name_of_its_own() {
        let mut names: Vec<_> = all().iter().map(|attempt| attempt.id).collect();
        assert!(names.len() >= 60, "{}", names.len());
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| name.contains('-') && name.len() <= 30));
    }
}
