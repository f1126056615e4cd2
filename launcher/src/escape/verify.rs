//! The battery, made unconfined and then under each back end, and what came of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::canary::{Canaries, random};
use super::{Answer, Attempt, FLAG};
use crate::error::{Code, Failure};
use crate::sys::{SignalFd, SignalSet};

/// How long one pass may take.
const LIMIT: Duration = Duration::from_secs(120);

/// How the name of the battery's directory begins; the process that made it follows.
pub(super) const PREFIX: &str = "stockade-verify-";

/// What came of an attempt under a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It had no effect outside, and would have one unconfined.
    Held,
    /// It had an effect outside that nothing declares.
    Out,
    /// It had an effect outside, and the run said that it could.
    DeclaredGap,
    /// It has no effect here unconfined either.
    NotPossible,
}

impl Outcome {
    /// Returns its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Out => "out",
            Self::DeclaredGap => "declared gap",
            Self::NotPossible => "not possible here",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The attempt.
    pub id: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// The effect that was seen, or what stopped it.
    pub detail: String,
}

/// The table of one back end.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The back end's name.
    pub backend: String,
    /// What the run said it doesn't enforce.
    pub gaps: Vec<String>,
    /// The gaps among them that an attempt went through.
    pub shown: Vec<String>,
    /// What came of each attempt; empty where the back end doesn't work here.
    pub rows: Vec<Row>,
    /// Why the back end doesn't work here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl Table {
    /// Counts an outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.outcome == outcome).count()
    }
}

/// The battery's directory, gone when dropped.
struct Ground {
    directory: tempfile::TempDir,
    word: String,
    signals: SignalFd,
}

fn broken(what: &str) -> impl FnOnce(io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::new(Code::RunnerFailed, what).because(error)
}

/// Makes the battery under these back ends and returns a table for each. `progress` is told what begins.
///
/// # Errors
/// The battery can't be set up, or is called off by a signal.
pub fn run(backends: &[String], mut progress: impl FnMut(&str)) -> Result<Vec<Table>, Failure> {
    let ground = Ground::find()?;
    let all = super::all();
    progress("unconfined");
    let unconfined = ground.pass("n", None, &all)?;
    let mut tables = Vec::new();
    for (index, backend) in backends.iter().enumerate() {
        progress(backend);
        let pass = ground.pass(&index.to_string(), Some(backend), &all)?;
        tables.push(judge(backend, &all, &unconfined, pass));
    }
    Ok(tables)
}

/// What was seen of one pass.
struct Pass {
    answers: BTreeMap<String, Answer>,
    effects: BTreeMap<&'static str, String>,
    gaps: Vec<String>,
    unavailable: Option<String>,
    ended: String,
}

impl Ground {
    /// Finds a place that no run may write and every attempt may see, and clears what a killed battery left there.
    fn find() -> Result<Self, Failure> {
        let ending = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
            .into_iter()
            .fold(SignalSet::default(), SignalSet::with);
        let old = crate::sys::set_signal_mask(ending);
        crate::sys::set_signal_mask(SignalSet(ending.0 | old.0));
        let signals = SignalFd::new(ending).map_err(broken("can't wait for signals"))?;
        let temporary = std::env::temp_dir();
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let writable = [Path::new("/tmp").to_owned(), temporary]
            .iter()
            .filter_map(|path| fs::canonicalize(path).ok())
            .collect::<Vec<_>>();
        let bases = [Some(PathBuf::from("/var/tmp")), home, Some(PathBuf::from("/opt"))];
        let base = bases
            .into_iter()
            .flatten()
            .filter_map(|path| fs::canonicalize(path).ok())
            .filter(|path| !writable.iter().any(|root| path.starts_with(root)))
            .find(|path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok())
            .ok_or_else(|| {
                Failure::new(Code::RunnerFailed, "there is no place for the battery's files")
                    .help("make /var/tmp or your home directory writable")
            })?;
        clear(&base);
        clear(Path::new("/tmp"));
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir_in(&base)
            .map_err(broken("can't make a directory for the battery"))?;
        let word = random::<4>().map_err(broken("can't make a name"))?;
        let word = format!("{:08x}", u32::from_ne_bytes(word));
        Ok(Self { directory, word, signals })
    }

    /// Makes every attempt once.
    fn pass(&self, name: &str, backend: Option<&str>, all: &[Attempt]) -> Result<Pass, Failure> {
        let top = self.directory.path().join(name);
        let word = format!("{}{name}", self.word);
        let set_up = Canaries::set_up(&top, &word, backend.is_none(), all);
        let mut canaries = set_up.map_err(broken("can't set up what the attempts aim at"))?;
        let (output, ended, result) =
            self.perform(&canaries, &top, backend)?.map_err(broken("can't make the attempts"))?;
        let mut pass = Pass {
            answers: BTreeMap::new(),
            effects: BTreeMap::new(),
            gaps: Vec::new(),
            unavailable: None,
            ended,
        };
        for line in output.lines() {
            if let Ok(answer) = serde_json::from_str::<Answer>(line) {
                pass.answers.insert(answer.id.clone(), answer);
            }
        }
        if let Some(result) = result {
            let gaps = result["enforcement"]["gaps"].as_array().cloned().unwrap_or_default();
            pass.gaps = gaps.iter().filter_map(|gap| Some(gap.as_str()?.to_owned())).collect();
            if result["outcome"] == "unavailable" {
                pass.unavailable = Some(
                    result["error"]["message"].as_str().unwrap_or("it can't be used").to_owned(),
                );
            }
        }
        if pass.unavailable.is_none() && pass.answers.is_empty() {
            return Err(Failure::new(Code::RunnerFailed, "no attempt was made")
                .because(io::Error::other(format!("{} ({output})", pass.ended))));
        }
        for attempt in all {
            let answer = pass.answers.get(attempt.id);
            if let Some(effect) = canaries.effect(*attempt, answer) {
                pass.effects.insert(attempt.id, effect);
            }
        }
        Ok(pass)
    }

    /// Starts the program that makes the attempts, and waits for its end.
    fn perform(
        &self,
        canaries: &Canaries,
        top: &Path,
        backend: Option<&str>,
    ) -> Result<io::Result<(String, String, Option<serde_json::Value>)>, Failure> {
        let attempt = || -> io::Result<_> {
            let program = std::env::current_exe()?;
            let scene = top.join("scene.json");
            fs::write(&scene, serde_json::to_vec(&canaries.scene)?)?;
            let result = top.join("result.json");
            let mut words: Vec<OsString> = vec![FLAG.into(), scene.into()];
            if let Some(backend) = backend {
                let options = ["run", "-q", "--backend", backend, "--mode", "workspace-write"];
                let mut run: Vec<OsString> = options.iter().map(OsString::from).collect();
                run.extend(["--workspace".into(), top.join("work").into()]);
                run.extend(["--deny-read".into(), top.join("secrets").into()]);
                run.extend([
                    "--result".into(),
                    result.clone().into(),
                    "--".into(),
                    program.clone().into(),
                ]);
                run.append(&mut words);
                words = run;
            }
            // What the attempts find open.
            let inherited = canaries.inherited();
            rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::empty())?;
            let (output, complaints) = (top.join("answers"), top.join("complaints"));
            let child = Command::new(program)
                .args(words)
                .current_dir(top.join("work"))
                .env("STOCKADE_STATE", top.join("state"))
                .env("XDG_CONFIG_HOME", top.join("config"))
                .env_remove("TMPDIR")
                .stdin(canaries.terminal.inner.try_clone()?)
                .stdout(fs::File::create(&output)?)
                .stderr(fs::File::create(&complaints)?)
                .spawn();
            rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC)?;
            Ok((child?, output, complaints, result))
        };
        let (mut child, output, complaints, result) = match attempt() {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        let deadline = Instant::now() + LIMIT;
        let ended = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status.to_string(),
                Ok(None) => {}
                Err(error) => return Ok(Err(error)),
            }
            let called_off = self.signals.take().is_some();
            if called_off || Instant::now() > deadline {
                // It takes everything with it.
                let ended = child.kill().and_then(|()| child.wait());
                if called_off {
                    return Err(Failure::new(Code::RunnerFailed, "the battery was called off"));
                }
                break format!("it took too long: {ended:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let read = || -> io::Result<_> {
            let text = fs::read_to_string(output)?;
            let complaints = fs::read_to_string(complaints)?;
            let result =
                fs::read(result).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let ended = complaints.lines().fold(ended, |all, line| format!("{all}; {line}"));
            Ok((text, ended, result))
        };
        Ok(read())
    }
}

/// Removes what a battery that was killed has left.
fn clear(base: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let gone = pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if gone && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            // Whoever cleans up at the same time has done it.
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

fn judge(backend: &str, all: &[Attempt], unconfined: &Pass, pass: Pass) -> Table {
    let mut table = Table {
        backend: backend.to_owned(),
        gaps: pass.gaps,
        shown: Vec::new(),
        rows: Vec::new(),
        unavailable: pass.unavailable,
    };
    if table.unavailable.is_some() {
        return table;
    }
    for attempt in all {
        let why = |answers: &BTreeMap<String, Answer>| {
            answers.get(attempt.id).map(|answer| answer.why.clone()).unwrap_or_default()
        };
        let (outcome, detail) = match pass.effects.get(attempt.id) {
            Some(effect) => {
                let mut declared = attempt.gaps.iter().map(|gap| gap.as_str());
                match declared.find(|gap| table.gaps.iter().any(|listed| listed == gap)) {
                    Some(gap) => {
                        table.shown.push(gap.to_owned());
                        (Outcome::DeclaredGap, format!("{gap}: {effect}"))
                    }
                    None => (Outcome::Out, effect.clone()),
                }
            }
            // The run ended before it, or by it: nothing was proved.
            None if !pass.answers.contains_key(attempt.id) => {
                (Outcome::Out, format!("the run ended: {}", pass.ended))
            }
            None if unconfined.effects.contains_key(attempt.id) => {
                (Outcome::Held, why(&pass.answers))
            }
            None => (Outcome::NotPossible, why(&unconfined.answers)),
        };
        table.rows.push(Row { id: attempt.id, outcome, detail });
    }
    table.shown.sort();
    table.shown.dedup();
    table
}
