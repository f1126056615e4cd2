//! Limits of memory, processes and processor time for everything that a run starts, kept by the kernel's control groups.
//!
//! A group of the run's own is made below one that this process may make groups in, the run's first process is put into
//! it before it becomes any program, and the group is removed when the run is over. The file system's server isn't in it.
//!
//! Invariants:
//! - L1: a limit that can't be kept is a gap of the plan, decided before anything is made. What the plan says is kept is
//!   kept, or nothing runs.
//! - L2: a group is made in the caller's own, or beside it where the caller's own limits nothing: no run gets out of limits
//!   that its caller has.
//! - L3: a group is written down, in a file that its maker holds locked, before it is made. So the next start removes what
//!   a killed one has left, and never the group of a run that goes on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation};
use rustix::process::Pid;
use serde_json::{Value, json};
use stockade_policy::config::{Settings, show_thousandths};

use crate::enforcement::Gap;
use crate::error::{Code, Failure};

/// What the names of our groups begin with.
const PREFIX: &str = "stockade-";

/// The length of the kernel's accounting of processor time, in microseconds.
const PERIOD: u64 = 100_000;

/// How long the end of a group's last processes is waited for.
const LAST: Duration = Duration::from_secs(5);

/// How long the processes of a killed run have, at the next start, to be gone.
const DYING: Duration = Duration::from_millis(300);

/// What a run may use at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory and swap.
    pub memory: Option<u64>,
    /// Processes and threads of the command's.
    pub pids: Option<u64>,
    /// Thousandths of a processor.
    pub millicpus: Option<u64>,
}

impl Limits {
    /// Returns those that the settings ask for.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        Self {
            memory: settings.memory.as_ref().map(|set| set.value),
            pids: settings.pids.as_ref().map(|set| set.value),
            millicpus: settings.cpus.as_ref().map(|set| set.value),
        }
    }

    fn wanted(self) -> Vec<(Controller, u64)> {
        let all = [
            (Controller::Memory, self.memory),
            (Controller::Pids, self.pids),
            (Controller::Cpu, self.millicpus),
        ];
        all.into_iter().filter_map(|(controller, most)| Some((controller, most?))).collect()
    }
}

/// What the kernel limits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    const fn gap(self) -> Gap {
        match self {
            Self::Memory => Gap::MemoryLimit,
            Self::Pids => Gap::PidsLimit,
            Self::Cpu => Gap::CpuLimit,
        }
    }
}

/// A limit, and the directory in which a group can be made that keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    controller: Controller,
    most: u64,
    parent: PathBuf,
    unified: bool,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = match self.controller {
            Controller::Memory => format!("{} bytes of memory", self.most),
            Controller::Pids => format!("{} processes", self.most),
            Controller::Cpu => format!("{} processors", show_thousandths(self.most)),
        };
        write!(f, "{most} by a group in {}", self.parent.display())
    }
}

/// Decides which limits can be kept here, and where; the others are gaps.
#[must_use]
pub fn place(limits: Limits) -> (Vec<Limit>, Vec<Gap>) {
    let wanted = limits.wanted();
    if wanted.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut kept = Vec::new();
    let mut gaps = Vec::new();
    for (controller, most) in wanted {
        let found = hierarchy(&groups, &mounts, controller).and_then(|(own, unified)| {
            let parent = if unified { unified_parent(&own, controller) } else { writable(&own) };
            parent.map(|parent| Limit { controller, most, parent, unified })
        });
        match found {
            Some(limit) => kept.push(limit),
            None => gaps.push(controller.gap()),
        }
    }
    (kept, gaps)
}

/// Returns the directory of this process's group in the hierarchy that has a controller, and whether that is the unified one.
fn hierarchy(groups: &str, mounts: &str, controller: Controller) -> Option<(PathBuf, bool)> {
    let group = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    let named = |list: &str| list.split(',').any(|name| name == controller.name());
    let (path, unified) = match group(&named) {
        Some(path) => (path, false),
        None => (group(&str::is_empty)?, true),
    };
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.splitn(3, ' ');
        let right = match (kind.next()?, unified) {
            ("cgroup2", true) => true,
            ("cgroup", false) => named(kind.nth(1)?),
            _ => false,
        };
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescape(place.next()?), unescape(place.next()?));
        let below = Path::new(path).strip_prefix(&root).ok().filter(|_| right)?;
        let own: PathBuf = point.components().chain(below.components()).collect();
        // Whatever the names say, this is the right one if we are in it.
        let pids = fs::read_to_string(own.join("cgroup.procs")).ok()?;
        let me = std::process::id().to_string();
        pids.lines().any(|pid| pid == me).then_some((own, unified))
    })
}

/// Undoes the escapes of `/proc/self/mountinfo`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| byte == b'\\');
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Returns a directory if groups can be made in it.
fn writable(directory: &Path) -> Option<PathBuf> {
    let may = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(directory, may).ok().map(|()| directory.to_owned())
}

/// Returns where in the unified hierarchy a group with a controller can be made: the group of this process has processes, so
/// only a group above it can hand controllers on, but for the root.
fn unified_parent(own: &Path, controller: Controller) -> Option<PathBuf> {
    let has = |directory: &Path, list: &str| {
        fs::read_to_string(directory.join(list))
            .is_ok_and(|names| names.split_whitespace().any(|name| name == controller.name()))
    };
    let mut directory = own;
    loop {
        let top = !directory.join("cgroup.type").exists();
        let hands_on = has(directory, "cgroup.subtree_control")
            || top && has(directory, "cgroup.controllers") && writable_file(directory);
        // Moving a process between groups takes the right to do it in the one above both.
        if hands_on && may_move(directory) {
            return writable(directory);
        }
        if top || !limits_nothing(directory) {
            return None;
        }
        directory = directory.parent()?;
    }
}

fn writable_file(directory: &Path) -> bool {
    rustix::fs::access(directory.join("cgroup.subtree_control"), Access::WRITE_OK).is_ok()
}

fn may_move(directory: &Path) -> bool {
    rustix::fs::access(directory.join("cgroup.procs"), Access::WRITE_OK).is_ok()
}

/// Tells whether a group sets no limit that a process would leave behind with it (invariant L2).
fn limits_nothing(group: &Path) -> bool {
    let Ok(entries) = fs::read_dir(group) else { return false };
    entries.flatten().all(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let free: &[&str] = match &*name {
            "cpuset.cpus" | "cpuset.mems" | "io.max" | "io.latency" | "misc.max" | "rdma.max" => {
                &[""]
            }
            "cpu.max" => &["max 100000"],
            "cpu.idle" => &["0"],
            _ if name.starts_with("cgroup.") => return true,
            _ if name.ends_with(".max") || name.ends_with(".high") => &["max"],
            _ => return true,
        };
        fs::read_to_string(entry.path()).is_ok_and(|value| free.contains(&value.trim()))
    })
}

/// The groups of a run. Dropping it removes them.
#[derive(Debug)]
#[must_use = "dropping this removes the groups"]
pub struct Groups {
    made: Vec<PathBuf>,
    note: PathBuf,
    _locked: File,
    limits: Vec<Limit>,
    name: String,
}

/// What the kernel said about the limits, at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The limits: name in the result, value.
    limits: Vec<Limit>,
    /// Processes that were killed because there was no more memory.
    pub oom_kills: Option<u64>,
    /// Processes and threads that couldn't be started.
    pub pids_refused: Option<u64>,
    /// The most memory that was in use, in bytes.
    pub memory_peak: Option<u64>,
}

impl Used {
    /// Says what the limits did.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let processes = |count: u64| if count == 1 { "process" } else { "processes" };
        let killed = self.oom_kills.filter(|&count| count > 0).map(|count| {
            format!("{count} {} killed: the limit of memory was reached", processes(count))
        });
        let refused = self.pids_refused.filter(|&count| count > 0).map(|count| {
            format!("{count} {} not started: the limit of processes was reached", processes(count))
        });
        killed.into_iter().chain(refused).collect()
    }

    /// Returns the object of the result.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let most = |wanted: Controller| {
            self.limits.iter().find(|limit| limit.controller == wanted).map(|limit| limit.most)
        };
        let mut object = serde_json::Map::new();
        if let Some(most) = most(Controller::Memory) {
            let kills = self.oom_kills;
            let value = json!({ "max": most, "peak": self.memory_peak, "oom_kills": kills });
            object.insert("memory".to_owned(), value);
        }
        if let Some(most) = most(Controller::Pids) {
            let value = json!({ "max": most, "refused": self.pids_refused });
            object.insert("pids".to_owned(), value);
        }
        if let Some(most) = most(Controller::Cpu) {
            object.insert("cpus".to_owned(), json!({ "max": cpus(most) }));
        }
        Value::Object(object)
    }
}

/// Returns a number of processors as a number of JSON's.
fn cpus(thousandths: u64) -> Value {
    serde_json::from_str(&show_thousandths(thousandths)).unwrap_or_default()
}

impl Groups {
    /// Makes the groups of a run and sets their limits. `overhead` is how many of our own processes are counted in.
    ///
    /// # Errors
    /// One of them can't be made, or doesn't take its limit; nothing may run then (invariant L1).
    pub fn make(
        limits: &[Limit],
        run: &str,
        overhead: u64,
        state: &Path,
    ) -> Result<Option<Self>, Failure> {
        if limits.is_empty() {
            return Ok(None);
        }
        let name = format!("{PREFIX}{run}");
        let mut paths: Vec<PathBuf> = Vec::new();
        for limit in limits {
            let path = limit.parent.join(&name);
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        let cannot = |error: io::Error| {
            Failure::new(Code::RunnerFailed, "can't keep the limits that were asked for")
                .because(error)
                .help("run without --memory, --pids and --cpus (or without these keys in the configuration)")
        };
        let (locked, note) = write_down(state, run, &paths).map_err(cannot)?;
        let made = Vec::with_capacity(paths.len());
        let limits = limits.to_vec();
        let mut groups = Self { made, note, _locked: locked, limits, name };
        for path in paths {
            fs::create_dir(&path).map_err(|error| cannot(named(&path, &error)))?;
            groups.made.push(path);
        }
        groups.limits.iter().try_for_each(|limit| groups.set(limit, overhead)).map_err(cannot)?;
        Ok(Some(groups))
    }

    fn path(&self, limit: &Limit) -> PathBuf {
        limit.parent.join(&self.name)
    }

    fn set(&self, limit: &Limit, overhead: u64) -> io::Result<()> {
        let group = self.path(limit);
        let put = |file: &str, value: String| write(&group.join(file), &value);
        // Where the kernel doesn't account for swap there is no such file; with it, swap counts too.
        let put_if_there = |file: &str, value: String| match put(file, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        if limit.unified && !group.join("cgroup.controllers").exists() {
            return Err(io::Error::other(format!("`{}` is no control group", group.display())));
        }
        let name = limit.controller.name();
        if limit.unified
            && !fs::read_to_string(group.join("cgroup.controllers"))?
                .split_whitespace()
                .any(|one| one == name)
        {
            write(&limit.parent.join("cgroup.subtree_control"), &format!("+{name}"))?;
        }
        let quota = (limit.most * PERIOD / 1000).max(1000);
        match (limit.controller, limit.unified) {
            (Controller::Memory, true) => {
                put("memory.max", limit.most.to_string())?;
                put_if_there("memory.swap.max", "0".to_owned())
            }
            (Controller::Memory, false) => {
                put("memory.limit_in_bytes", limit.most.to_string())?;
                put_if_there("memory.memsw.limit_in_bytes", limit.most.to_string())
            }
            (Controller::Pids, _) => {
                put("pids.max", limit.most.saturating_add(overhead).to_string())
            }
            (Controller::Cpu, true) => put("cpu.max", format!("{quota} {PERIOD}")),
            (Controller::Cpu, false) => {
                put("cpu.cfs_period_us", PERIOD.to_string())?;
                put("cpu.cfs_quota_us", quota.to_string())
            }
        }
    }

    /// Puts a process, and so whatever it starts from here on, into the groups.
    ///
    /// # Errors
    /// The kernel refuses; then it must not go on.
    pub fn add(&self, process: Pid) -> Result<(), Failure> {
        let pid = process.as_raw_nonzero().to_string();
        self.made.iter().try_for_each(|group| write(&group.join("cgroup.procs"), &pid)).map_err(
            |error| {
                Failure::new(Code::RunnerFailed, "can't limit the command's process")
                    .because(error)
                    .help("run without --memory, --pids and --cpus")
            },
        )
    }

    /// Returns what the kernel has counted.
    #[must_use]
    pub fn used(&self) -> Used {
        let mut used = Used { limits: self.limits.clone(), ..Used::default() };
        for limit in &self.limits {
            let group = self.path(limit);
            match (limit.controller, limit.unified) {
                (Controller::Memory, unified) => {
                    let events = if unified { "memory.events" } else { "memory.oom_control" };
                    used.oom_kills = field(&group.join(events), "oom_kill");
                    let peak =
                        if unified { "memory.peak" } else { "memory.memsw.max_usage_in_bytes" };
                    used.memory_peak = fs::read_to_string(group.join(peak))
                        .ok()
                        .and_then(|text| text.trim().parse().ok());
                }
                (Controller::Pids, _) => {
                    used.pids_refused = field(&group.join("pids.events"), "max");
                }
                (Controller::Cpu, _) => {}
            }
        }
        used
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let until = Instant::now() + LAST;
        // Every process is dead, or dies now; a group goes with its last one.
        while !remove(&self.made) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if remove(&self.made) {
            // Otherwise the next start finds it.
            let _kept = fs::remove_file(&self.note);
        }
    }
}

/// Returns the number after a word at the beginning of a line.
fn field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// Writes a value to a file of a control group, which must be there.
fn write(path: &Path, value: &str) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).open(path);
    opened
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|error| named(path, &error))
}

/// Removes groups; tells whether none is left.
fn remove(groups: &[PathBuf]) -> bool {
    let gone = |group: &PathBuf| {
        fs::remove_dir(group).is_ok() || !group.symlink_metadata().is_ok_and(|kind| kind.is_dir())
    };
    groups.iter().rev().filter(|group| !gone(group)).count() == 0
}

fn notes(state: &Path) -> PathBuf {
    state.join("cgroups")
}

/// Writes down which groups are going to be made, in a file that stays locked while this process has it open.
fn write_down(state: &Path, run: &str, paths: &[PathBuf]) -> io::Result<(File, PathBuf)> {
    let directory = notes(state);
    match rustix::fs::mkdir(&directory, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // It has its name only once it is locked and whole.
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&directory)?;
    rustix::fs::flock(file.as_file().as_fd(), FlockOperation::LockExclusive)?;
    for path in paths {
        file.write_all(path.as_os_str().as_bytes())?;
        file.write_all(&[0])?;
    }
    let note = directory.join(run);
    let file = file.persist(&note).map_err(|error| error.error)?;
    Ok((file, note))
}

/// Removes the groups that runs which were killed have left (invariant L3).
pub fn sweep(state: &Path) {
    let Ok(entries) = fs::read_dir(notes(state)) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
        let lock = rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive);
        let same = || {
            let (one, other) = (file.metadata().ok()?, fs::symlink_metadata(&path).ok()?);
            Some((one.dev(), one.ino()) == (other.dev(), other.ino()))
        };
        if lock.is_err() || same() != Some(true) {
            continue;
        }
        let Ok(text) = fs::read(&path) else { continue };
        let groups: Vec<PathBuf> = text
            .split(|&byte| byte == 0)
            .map(|bytes| PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
            .filter(|path| path.is_absolute() && is_ours(path))
            .collect();
        let until = Instant::now() + DYING;
        while !remove(&groups) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if remove(&groups) {
            let _gone = fs::remove_file(&path);
        }
    }
}

fn is_ours(group: &Path) -> bool {
    group.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_controller_and_mount_and_only_if_we_are_in_it() {
        let base = tempfile::tempdir().unwrap();
        let point = base.path().join("a b");
        let group = point.join("x/y");
        fs::create_dir_all(&group).unwrap();
        let shown = point.to_str().unwrap().replace(' ', "\\040");
        let mounts = format!(
            "31 1 0:1 / /sys rw - sysfs sysfs rw\n\
             32 1 0:2 /top {shown} rw,relatime shared:1 - cgroup cgroup rw,cpu,memory\n\
             33 1 0:3 / {shown} rw - cgroup2 cgroup2 rw\n"
        );
        let groups = "4:cpu,memory:/top/x/y\n0::/x/y\n";
        let find = |controller| hierarchy(groups, &mounts, controller);
        assert_eq!(find(Controller::Memory), None);
        fs::write(group.join("cgroup.procs"), format!("1\n{}\n", std::process::id())).unwrap();
        assert_eq!(find(Controller::Memory), Some((group.clone(), false)));
        assert_eq!(find(Controller::Pids), Some((group, true)));
    }

    #[test]
    fn a_group_that_limits_something_is_not_left() {
        let base = tempfile::tempdir().unwrap();
        let rows = [
            ("memory.max", "max\n", true),
            ("memory.max", "1000\n", false),
            ("cpu.max", "max 100000\n", true),
            ("cpu.max", "5000 100000\n", false),
            ("io.max", "\n", true),
            ("io.max", "8:0 rbps=1\n", false),
            ("memory.high", "1\n", false),
            ("pids.current", "7\n", true),
        ];
        for (file, value, free) in rows {
            fs::write(base.path().join(file), value).unwrap();
            assert_eq!(limits_nothing(base.path()), free, "{file} {value}");
            fs::remove_file(base.path().join(file)).unwrap();
        }
    }

    #[test]
    fn a_killed_run_is_cleaned_up_after_and_a_living_one_is_not() {
        let state = tempfile::tempdir().unwrap();
        let places = tempfile::tempdir().unwrap();
        let group = |name: &str| {
            let path = places.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (ours, foreign) = (group("stockade-r1"), group("other"));
        let (living, _) = write_down(state.path(), "r1", &[ours.clone(), foreign.clone()]).unwrap();
        sweep(state.path());
        assert!(ours.exists());
        drop(living);
        sweep(state.path());
        assert!(!ours.exists() && foreign.exists());
        assert_eq!(fs::read_dir(notes(state.path())).unwrap().count(), 0);
    }
}
