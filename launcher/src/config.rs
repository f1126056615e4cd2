//! The operator's configuration (contract 5): the file, the profiles, the options, and what comes of them.
//!
//! Invariant: only the file in the configuration directory and one that was named are read. A workspace's own files are
//! never configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_observe::Keep;
use stockade_observe::history::Bounds;
use stockade_policy::config::{Origin, Setting, Settings};
use stockade_policy::{Config, ConfigError, Mode, Policy, Resolution};

use crate::error::{Code, Failure};
use crate::resolve::{self, Places, Request};
use crate::state;

/// What one run keeps at most of what it changes, in bytes.
const HISTORY_SIZE: u64 = 1_000_000_000;
/// How long that is kept.
const HISTORY_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// What is asked for on the command line, or by a caller of the library.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A configuration file instead of the one in the configuration directory.
    pub file: Option<PathBuf>,
    /// Profiles, the strongest last.
    pub profiles: Vec<String>,
    /// The options.
    pub options: Settings,
    /// Writable directories that were named as options but aren't text.
    pub writable: Vec<PathBuf>,
}

/// What is in force, with the origin of each value.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The values.
    pub settings: Settings,
    /// The file that was read.
    pub file: Option<PathBuf>,
    writable: Vec<PathBuf>,
}

/// Returns the configuration file that is read when none is named. It need not exist.
#[must_use]
pub fn default_file() -> Option<PathBuf> {
    state::configuration_directory().map(|directory| directory.join("config.toml"))
}

/// Returns Stockade's own directories: the state, which is canonical, and the configuration, which need not exist. Each
/// is also there as the environment spells it: who could change the way to it, could put another in its place.
#[must_use]
pub fn own_directories(state: &Path) -> Vec<PathBuf> {
    let mut own = vec![state.to_owned()];
    let spelled = state::directory().ok().into_iter().chain(state::configuration_directory());
    for path in spelled.flat_map(|path| [real(&path), path]) {
        if !own.contains(&path) {
            own.push(path);
        }
    }
    own
}

/// Returns those of them that can be hidden by a mount. What isn't there can't be made by the command.
pub(crate) fn there(own: Vec<PathBuf>) -> Vec<PathBuf> {
    own.into_iter().filter(|path| fs::canonicalize(path).is_ok_and(|real| real == *path)).collect()
}

/// Returns what a path leads to: its nearest ancestor that exists, canonical, and the names that are missing.
pub(crate) fn real(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|ancestor| {
        let rest = path.strip_prefix(ancestor).ok()?;
        Some(fs::canonicalize(ancestor).ok()?.components().chain(rest.components()).collect())
    });
    found.unwrap_or_else(|| path.to_owned())
}

/// Reads a configuration: the file that is named, else the one in the configuration directory if there is one.
///
/// # Errors
/// The file can't be read or isn't understood.
pub fn load(named: Option<&Path>) -> Result<(Config, Option<PathBuf>), Failure> {
    let Some(file) = named.map(Path::to_owned).or_else(default_file) else {
        return Ok((Config::default(), None));
    };
    let unreadable = |error: io::Error| {
        let what = format!("can't read the configuration `{}`", file.display());
        Failure::new(Code::ConfigInvalid, what).because(error)
    };
    match fs::read(&file) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes)
                .map_err(|_| unreadable(io::Error::other("it is not UTF-8")))?;
            let config = Config::parse(&text, &file.display().to_string()).map_err(invalid)?;
            Ok((config, Some(file)))
        }
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
            Ok((Config::default(), None))
        }
        Err(error) => Err(unreadable(error)),
    }
}

fn invalid(error: ConfigError) -> Failure {
    let help = error.help();
    help.into_iter().fold(Failure::new(Code::ConfigInvalid, error.to_string()), Failure::help)
}

impl Sources {
    /// Lays out the layers; `default` is the deployment's mode when nobody names one.
    ///
    /// # Errors
    /// The configuration can't be read, isn't understood, or lacks a profile.
    pub fn resolve(self, default: Mode) -> Result<Effective, Failure> {
        let (config, file) = load(self.file.as_deref())?;
        let profiles: Vec<_> = self
            .profiles
            .into_iter()
            .map(|name| Setting::new(name, Origin::Option("--profile".to_owned())))
            .collect();
        let variable = |name: &str| std::env::var(name).ok();
        let settings =
            config.resolve(default, &profiles, self.options, &variable).map_err(invalid)?;
        Ok(Effective { settings, file, writable: self.writable })
    }
}

impl Effective {
    /// Returns the deployment's mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.settings.mode.as_ref().map_or_else(Mode::default, |mode| mode.value)
    }

    /// Returns the paths that the settings name, relative ones below `root`.
    #[must_use]
    pub fn paths(&self, root: &Path) -> Vec<PathBuf> {
        let settings = &self.settings;
        let lists = [
            &settings.writable_roots,
            &settings.observe_roots,
            &settings.deny_read,
            &settings.deny_write,
            &settings.allow_write,
            &settings.publish_direct,
            &settings.sockets,
        ];
        let listed = lists.into_iter().flatten();
        listed.map(|setting| crate::answer::of_pattern(&setting.value, root)).collect()
    }

    /// Returns how much history a run keeps and for how long, if it keeps any.
    #[must_use]
    pub fn history(&self) -> Option<(Bounds, Duration)> {
        let settings = &self.settings;
        let wanted = settings.keep_history.as_ref().is_some_and(|keep| keep.value);
        let size = settings.history_size.as_ref().map_or(HISTORY_SIZE, |size| size.value);
        let age = settings.history_age.as_ref().map_or(HISTORY_AGE, |age| age.value);
        wanted.then_some((Bounds { size }, age))
    }

    /// Returns which logs are kept, if not all are.
    #[must_use]
    pub fn keep_logs(&self) -> Option<Keep> {
        let keep = Keep {
            age: self.settings.log_age.as_ref().map(|age| age.value),
            size: self.settings.log_size.as_ref().map(|size| size.value),
        };
        (keep != Keep::default()).then_some(keep)
    }

    /// Returns the complete policy of a call in this workspace; `own` are Stockade's own directories.
    ///
    /// # Errors
    /// A path can't be what it is to be.
    pub fn policy(
        &self,
        workspace: &Path,
        session: Option<String>,
        resolution: Resolution,
        own: &[PathBuf],
    ) -> Result<Policy, Failure> {
        let mut request = self.request(workspace.to_owned());
        request.mode = (resolution.mode, resolution.source);
        request.session = session;
        resolve::resolve(&request, &Places::of_this_machine(own.to_vec()))
    }

    /// Returns the request for a workspace.
    #[must_use]
    pub fn request(&self, workspace: PathBuf) -> Request {
        fn texts(list: &[Setting<String>]) -> Vec<String> {
            list.iter().map(|setting| setting.value.clone()).collect()
        }
        fn value<T: Copy + Default>(setting: Option<&Setting<T>>) -> T {
            setting.map_or_else(T::default, |setting| setting.value)
        }
        let settings = &self.settings;
        let mut request = Request::new(self.mode(), workspace);
        for root in &settings.writable_roots {
            match root.origin {
                // Who names a directory wants it; what a profile lists needn't be on every machine.
                Origin::Option(_) => request.writable.push(PathBuf::from(&root.value)),
                Origin::Default | Origin::File { .. } | Origin::Shipped { .. } => {
                    request.writable_if_there.push(PathBuf::from(&root.value));
                }
            }
        }
        request.writable.extend(self.writable.iter().cloned());
        request.observed =
            settings.observe_roots.iter().map(|root| PathBuf::from(&root.value)).collect();
        request.deny_read = texts(&settings.deny_read);
        request.deny_write = texts(&settings.deny_write);
        request.allow_write = texts(&settings.allow_write);
        request.guard = value(settings.guard.as_ref());
        request.publish = value(settings.publish.as_ref());
        request.network = value(settings.network.as_ref());
        request.hardlinks = value(settings.hardlinks.as_ref());
        request.publish_direct = texts(&settings.publish_direct);
        request.durable = value(settings.durable.as_ref());
        request.observe = value(settings.observe.as_ref());
        request.protected = self.file.iter().cloned().collect();
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> (tempfile::NamedTempFile, Sources) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
        (file, sources)
    }

    #[test]
    fn the_file_is_named_in_what_is_wrong_with_it() {
        let (file, wrong) = sources("mode = \"read-only\"\nguerd = \"off\"\n");
        let failure = wrong.resolve(Mode::WorkspaceWrite).unwrap_err();
        assert_eq!(failure.code(), Code::ConfigInvalid);
        let lines = failure.lines();
        assert!(lines[0].contains(&format!("{}:2", file.path().display())), "{lines:?}");
        assert_eq!(lines[1], "help: did you mean `guard`?");
        let missing = Sources { file: Some("/nonexistent/c.toml".into()), ..Sources::default() };
        assert_eq!(missing.resolve(Mode::ReadOnly).unwrap_err().code(), Code::ConfigInvalid);
    }

    #[test]
    fn what_is_listed_needs_not_be_there_and_what_is_named_must() {
        let (file, mut sources) = sources("writable_roots = [\"/a\"]\nmode = \"read-only\"\n");
        let named = Setting::new("/b".to_owned(), Origin::Option("--writable".to_owned()));
        sources.options.writable_roots = vec![named];
        let effective = sources.resolve(Mode::WorkspaceWrite).unwrap();
        assert_eq!(effective.mode(), Mode::ReadOnly);
        let request = effective.request("/w".into());
        assert_eq!(request.writable, [PathBuf::from("/b")]);
        assert_eq!(request.writable_if_there, [PathBuf::from("/a")]);
        assert_eq!(request.protected, [file.path()]);
    }
}
