//! The file system servers of a run: one for each region.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use stockade_fusefs::{HistoryConfig, Owner, Server, ServerConfig};
use stockade_observe::Recorder;
use stockade_observe::history::Bounds;
use stockade_policy::{Policy, Rules};

use crate::error::{Code, Failure};
use crate::launch::{history_directory, runner};
use crate::namespace::Region;
use crate::resolve::Places;

/// What is served, and how.
#[derive(Debug)]
pub(crate) struct Served<'p> {
    pub(crate) policy: &'p Policy,
    pub(crate) rules: &'p Arc<Rules>,
    pub(crate) regions: &'p [PathBuf],
    pub(crate) user_namespace: bool,
    pub(crate) history: Option<Bounds>,
    pub(crate) session_directory: PathBuf,
    pub(crate) run: String,
}

/// Opens the directories below the mounts, and prepares the mounts.
pub(crate) fn open_regions(
    paths: &[PathBuf],
    user_namespace: bool,
) -> Result<(Vec<OwnedFd>, Vec<Region>), Failure> {
    let owner = owner(user_namespace);
    let mut sources = Vec::new();
    let mut regions = Vec::new();
    for path in paths {
        let opened = rustix::fs::open(
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(io::Error::from);
        let what = format!("can't open `{}`", path.display());
        let source = opened.map_err(runner(&what))?;
        let region = Region::new(path, source.as_fd(), |device| {
            stockade_fusefs::mount_data(device, &owner, true)
        });
        regions.push(region.map_err(runner(&what))?);
        sources.push(source);
    }
    Ok((sources, regions))
}

impl Served<'_> {
    /// Starts the servers.
    pub(crate) fn serve(
        &self,
        sources: Vec<OwnedFd>,
        devices: Vec<OwnedFd>,
        recorder: &Recorder,
    ) -> Result<Vec<Server>, Failure> {
        let temporary = Places::of_this_machine(Vec::new()).temporary;
        let kept = self.session_directory.join("kept").join(&self.run);
        let mut servers = Vec::new();
        for (number, ((path, source), device)) in
            self.regions.iter().zip(sources).zip(devices).enumerate()
        {
            let keeps = self.policy.root.starts_with(path) || !is_temporary(path, &temporary);
            let history = self.history.filter(|_| keeps).map(|bounds| HistoryConfig {
                directory: history_directory(&self.session_directory, &self.run)
                    .join(number.to_string()),
                source: path.clone(),
                bounds,
            });
            let config = ServerConfig {
                rules: self.rules.clone(),
                policy: self.policy.clone(),
                sink: recorder.sink(),
                source,
                path: path.clone(),
                owner: owner(self.user_namespace),
                passthrough: !self.user_namespace,
                state: crate::state::staged_directory(),
                observed: recorder.observed(),
                kept: Some(kept.clone()),
                history,
                threads: 0,
            };
            servers.push(stockade_fusefs::serve(device, config).map_err(|error| {
                Failure::new(Code::MountFailed, "the file system can't be served").because(error)
            })?);
        }
        Ok(servers)
    }
}

fn owner(user_namespace: bool) -> Owner {
    if user_namespace {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Owner::User {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    } else {
        Owner::Root
    }
}

/// Tells whether a directory is one for temporary files, of which no history is kept.
fn is_temporary(path: &Path, temporary: &[PathBuf]) -> bool {
    temporary.iter().any(|one| std::fs::canonicalize(one).is_ok_and(|one| one == path))
}
