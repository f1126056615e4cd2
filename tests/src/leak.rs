//! What a run must not leave behind: processes, mounts, files.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The environment variable that marks what belongs to a world. Descendants inherit it.
pub(crate) const MARKER: &str = "STOCKADE_TEST_WORLD";

/// The state of the machine before a run, to compare with the state after it.
#[derive(Clone, Debug)]
pub struct Leaks {
    marker: String,
    directory: PathBuf,
    mounts: BTreeSet<String>,
    tmp: Option<(PathBuf, BTreeSet<OsString>)>,
}

impl Leaks {
    pub(crate) fn watch(marker: &str, directory: &Path, tmp: Option<&Path>) -> Self {
        Self {
            marker: marker.to_owned(),
            directory: directory.to_owned(),
            mounts: mounts(directory),
            tmp: tmp.map(|tmp| (tmp.to_owned(), names(tmp))),
        }
    }

    /// Lists what is left, after a moment of grace for what the kernel is still taking down.
    #[must_use]
    pub fn found(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let found = self.look();
            if found.is_empty() || Instant::now() > deadline {
                return found;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn look(&self) -> Vec<String> {
        let mut found = Vec::new();
        for pid in marked(&self.marker) {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("process {pid} ({})", comm.trim()));
        }
        for mount in mounts(&self.directory).difference(&self.mounts) {
            found.push(format!("mount {mount}"));
        }
        if let Some((tmp, before)) = &self.tmp {
            for name in names(tmp).difference(before) {
                found.push(format!("file {}", tmp.join(name).display()));
            }
        }
        found
    }
}

/// Returns the processes, zombies left out, that carry a world's mark in their environment.
fn marked(marker: &str) -> Vec<i32> {
    let wanted = format!("{MARKER}={marker}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
            })
        })
        .collect()
}

/// Kills every process of a world, each by its id, and frees what hangs on its mounts.
pub(crate) fn kill_marked(marker: &str) {
    for round in 0..50 {
        let left = marked(marker);
        if left.is_empty() {
            return;
        }
        for pid in left {
            if round == 10 {
                abort_connections(pid);
            }
            if let Some(pid) = Pid::from_raw(pid) {
                // It may have ended by itself just now.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Aborts the FUSE connections of Stockade's mounts that a process sees: what waits for their server wakes up.
fn abort_connections(pid: i32) {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { return };
    for line in text.lines().filter(|line| line.contains(" - fuse") && line.contains("stockade")) {
        let minor = line.split(' ').nth(2).and_then(|device| device.split(':').nth(1));
        if let Some(minor) = minor {
            let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
            if let Ok(mut file) = fs::OpenOptions::new().write(true).open(abort) {
                drop(file.write_all(b"1"));
            }
        }
    }
}

/// Returns the mounts that are of Stockade's making or lie in a world's directory.
fn mounts(directory: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo can be read");
    let directory = directory.to_string_lossy();
    // Other tests have mounts of their own below other directories at the same time.
    text.lines()
        .filter(|line| {
            line.contains(&*directory) || line.contains(" /tmp ") && line.contains("stockade")
        })
        .map(str::to_owned)
        .collect()
}

fn names(directory: &Path) -> BTreeSet<OsString> {
    let Ok(entries) = fs::read_dir(directory) else { return BTreeSet::new() };
    entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
}
