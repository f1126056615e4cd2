//! A test's own corner of the machine.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::identity::Ids;
use crate::leak::{self, MARKER};
use crate::{Identity, Invocation, Leaks, skip, stockade_binary};

/// Where worlds are made. Not `/tmp`: that is a writable root of its own, and most workspaces aren't in it.
const BASE: &str = "/var/tmp";

/// Where the suite looks for the programs it runs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// A test's own corner of the machine: a workspace `w`, a home, a state directory, an identity and an environment.
/// Everything in it is gone when it is dropped.
#[derive(Debug)]
pub struct World {
    directory: TempDir,
    name: String,
    identity: Identity,
    ids: Ids,
    marker: String,
    results: Cell<u32>,
    private_tmp: Cell<bool>,
}

/// Runs a test's body in a new world, and checks that nothing is left after it.
///
/// # Panics
/// When the body does, or something is left.
pub fn check(name: &str, identity: Identity, body: impl FnOnce(&World)) {
    let ids = match identity.ids() {
        Ok(ids) => ids,
        Err(reason) => return skip(name, &reason),
    };
    let world = World::new(name, identity, ids);
    let leaks = Leaks::watch(&world.marker, world.directory(), None);
    body(&world);
    let found = leaks.found();
    assert!(found.is_empty(), "{name} left: {found:#?}");
}

impl World {
    fn new(name: &str, identity: Identity, ids: Ids) -> Self {
        let base = std::env::var_os("STOCKADE_TEST_BASE").unwrap_or_else(|| BASE.into());
        // Socket names have 108 bytes: the path is kept short.
        let directory = tempfile::Builder::new()
            .prefix("sk-")
            .rand_bytes(5)
            .tempdir_in(base)
            .expect("a directory for the test");
        let path = fs::canonicalize(directory.path()).expect("the directory is there");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode is set");
        let marker = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        let world = Self {
            directory,
            name: name.to_owned(),
            identity,
            ids,
            marker,
            results: Cell::new(0),
            private_tmp: Cell::new(false),
        };
        for (part, mode) in
            [("w", 0o755), ("home", 0o700), ("state", 0o700), ("out", 0o755), ("tmp", 0o1777)]
        {
            let part = world.directory().join(part);
            fs::create_dir(&part).expect("a part of the world");
            fs::set_permissions(&part, fs::Permissions::from_mode(mode)).expect("its mode is set");
            world.own(&part);
        }
        world
    }

    /// From here on, commands see a `/tmp` of the world's own. Needs a suite that is run by root; returns whether it is.
    #[must_use]
    pub fn with_private_tmp(&self) -> bool {
        self.private_tmp.set(rustix::process::geteuid().is_root());
        self.private_tmp.get()
    }

    /// Returns the name of its test.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns who runs its commands.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the user and group ids of its commands.
    #[must_use]
    pub fn ids(&self) -> (u32, u32) {
        (self.ids.uid, self.ids.gid)
    }

    /// Returns its directory, which holds all the others.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns its workspace.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.directory().join("w")
    }

    /// Returns a directory of its own that no run may write: outside the workspace and the temporary directories.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.directory().join("out")
    }

    /// Returns its `/tmp`, where [`Self::with_private_tmp`] holds.
    #[must_use]
    pub fn tmp(&self) -> PathBuf {
        self.directory().join("tmp")
    }

    /// Returns the home of its commands.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.directory().join("home")
    }

    /// Returns the state directory (`XDG_STATE_HOME`) of its commands.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory().join("state")
    }

    /// Writes a file and hands it to the identity.
    ///
    /// # Panics
    /// When it can't be written.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.workspace().join(path);
        let parent = path.parent().expect("a file has a directory");
        let mut missing: Vec<&Path> =
            parent.ancestors().take_while(|directory| !directory.exists()).collect();
        while let Some(directory) = missing.pop() {
            fs::create_dir(directory).expect("the directory is made");
            self.own(directory);
        }
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.own(&path);
        path
    }

    /// Hands a file to the identity.
    ///
    /// # Panics
    /// When it can't be.
    pub fn own(&self, path: &Path) {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(path, Some(self.ids.uid), Some(self.ids.gid))
                .unwrap_or_else(|error| panic!("chown {}: {error}", path.display()));
        }
    }

    /// Hands a whole tree to the identity.
    ///
    /// # Panics
    /// When it can't be.
    pub fn own_tree(&self, top: &Path) {
        if rustix::process::geteuid().is_root() {
            let owner = format!("{}:{}", self.ids.uid, self.ids.gid);
            let status = std::process::Command::new("chown")
                .args(["-hR", &owner])
                .arg(top)
                .status()
                .expect("chown starts");
            assert!(status.success(), "chown -R {}", top.display());
        }
    }

    /// Returns whether the machine has a program; says that the test is skipped where it hasn't.
    #[must_use]
    pub fn has(&self, program: &str) -> bool {
        let found = PATH.split(':').any(|directory| Path::new(directory).join(program).is_file());
        if !found {
            skip(&self.name, &format!("`{program}` is not installed"));
        }
        found
    }

    /// Returns a command that runs in the workspace without Stockade.
    pub fn native(&self, program: impl Into<OsString>) -> Invocation {
        let mut invocation =
            Invocation::new(program, &self.workspace(), self.environment(), &self.marker, self.ids);
        if self.private_tmp.get() {
            invocation = invocation.private_tmp(self.tmp());
        }
        invocation
    }

    /// Returns an invocation of `stockade`, in the workspace.
    pub fn stockade(&self) -> Invocation {
        self.native(self.binary())
    }

    /// Returns an invocation of `stockade run` with the given options; the command is still to be added.
    pub fn run(&self, options: &[&str]) -> Invocation {
        self.stockade().arg("run").args(options).arg("--")
    }

    /// Runs a command in the given mode and returns what it left, and its result file.
    ///
    /// # Panics
    /// When the result file is missing or isn't JSON.
    #[must_use]
    pub fn run_with_result(&self, options: &[&str], argv: &[&str]) -> (crate::Output, Value) {
        let file = self.result_file();
        let output = self
            .stockade()
            .args(["run", "--result"])
            .arg(&file)
            .args(options)
            .arg("--")
            .args(argv)
            .run();
        (output.clone(), Self::read_result(&file, &output))
    }

    /// Returns a name for a result file that isn't taken yet.
    #[must_use]
    pub fn result_file(&self) -> PathBuf {
        self.results.set(self.results.get() + 1);
        self.outside().join(format!("result-{}.json", self.results.get()))
    }

    /// Reads a result file.
    ///
    /// # Panics
    /// When it is missing or isn't JSON.
    #[must_use]
    pub fn read_result(file: &Path, output: &crate::Output) -> Value {
        let text = fs::read(file).unwrap_or_else(|error| {
            panic!("no result at {}: {error}; stderr: {}", file.display(), output.stderr())
        });
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            panic!("the result is not JSON: {error}: {}", String::from_utf8_lossy(&text))
        })
    }

    /// Starts to watch what the commands of this world leave behind.
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        let tmp = self.tmp();
        Leaks::watch(
            &self.marker,
            self.directory(),
            self.private_tmp.get().then_some(tmp.as_path()),
        )
    }

    /// Returns the binary under test at a path that every identity can execute.
    #[must_use]
    pub fn binary(&self) -> PathBuf {
        let name = self.directory().join("stockade");
        if !name.exists() {
            let built = stockade_binary();
            if fs::hard_link(built, &name).is_err() {
                fs::copy(built, &name).expect("the binary is copied");
            }
        }
        name
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PATH".into(), PATH.into()),
            ("HOME".into(), self.home().into()),
            ("XDG_STATE_HOME".into(), self.state().into()),
            ("XDG_CONFIG_HOME".into(), self.home().join(".config").into()),
            ("LANG".into(), "C.UTF-8".into()),
            ("TERM".into(), "dumb".into()),
            ("RUST_BACKTRACE".into(), "1".into()),
            (MARKER.into(), self.marker.clone().into()),
        ]
    }
}

impl Drop for World {
    fn drop(&mut self) {
        leak::kill_marked(&self.marker);
    }
}
