//! Options that `run`, `shell` and `mount` share.

use std::path::PathBuf;
use std::time::Duration;

use stockade_policy::config::{Origin, Setting, Settings, parse_size};
use stockade_policy::{Guard, Hardlinks, Mode, Network, ObserveLevel, Publish};

use crate::answer;
use crate::config::{Effective, Sources};
use crate::error::{Code, Failure};
use crate::session::Session;

/// What the command may do.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Policy")]
pub struct PolicyArgs {
    /// What the command may do to files: read-only, workspace-write or danger-full-access. [default: workspace-write]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// The directory to work in. [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// One more directory, or one file, that may be written; or a glob of names in a directory, there or not yet.
    #[arg(long, value_name = "PATH|GLOB")]
    writable: Vec<PathBuf>,
    /// A directory outside that is served too, so that what is read and refused there is in the log ('/' for all).
    #[arg(long, value_name = "DIR")]
    pub observe_root: Vec<PathBuf>,
    /// A path or glob that can't be read.
    #[arg(long, value_name = "PATH|GLOB")]
    deny_read: Vec<String>,
    /// A path or glob that can't be written.
    #[arg(long, value_name = "PATH|GLOB")]
    deny_write: Vec<String>,
    /// A path or glob whose protection is lifted.
    #[arg(long, value_name = "PATH|GLOB")]
    allow_write: Vec<String>,
    /// What to do when a write meets content that the session hasn't seen. [default: audit]
    #[arg(long, value_enum, value_name = "HOW")]
    guard: Option<GuardArg>,
    /// How rewritten content reaches its name. [default: atomic]
    #[arg(long, value_enum, value_name = "HOW")]
    publish: Option<PublishArg>,
    /// A path or glob that is written directly, whatever --publish says.
    #[arg(long, value_name = "PATH|GLOB")]
    publish_direct: Vec<String>,
    /// Wait for the disk whenever content reaches its name.
    #[arg(long)]
    durable: bool,
    /// Whether the command sees the host's network. [default: host]
    #[arg(long, value_enum, value_name = "NET")]
    network: Option<NetworkArg>,
    /// What a write to a file with another name outside does. [default: break]
    #[arg(long, value_enum, value_name = "HOW")]
    hardlinks: Option<HardlinksArg>,
    /// How much of the reading and writing is recorded. [default: open]
    #[arg(long, value_enum, value_name = "LEVEL")]
    observe: Option<ObserveArg>,
    /// Keep what is changed, so that `stockade diff` shows it and `stockade undo` puts it back.
    #[arg(long)]
    keep_history: bool,
    /// How much of it to keep at most. [default: 1 GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    history_size: Option<u64>,
    /// For how long. [default: 30d]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    history_age: Option<Duration>,
    /// Add the settings of a profile, shipped or of the configuration.
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Read this configuration instead of the one in the configuration directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The enumerations of the policy crate as arguments: that crate knows nothing of command lines.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum GuardArg {
    /// Nothing
    Off,
    /// Record it
    Audit,
    /// Refuse it
    Enforce,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PublishArg {
    /// Whole, in one step
    Atomic,
    /// As it is written
    Direct,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum NetworkArg {
    /// It does
    Host,
    /// It has none
    None,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum HardlinksArg {
    /// Goes to a file of its own
    Break,
    /// Is refused
    Deny,
    /// Goes through
    Follow,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ObserveArg {
    /// One event from open to close
    Open,
    /// Each operation
    Full,
}

impl PolicyArgs {
    /// Returns the paths that are named.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let here = std::env::current_dir().unwrap_or_default();
        let root = self.workspace.clone().unwrap_or(here);
        let patterns = [&self.deny_read, &self.deny_write, &self.allow_write, &self.publish_direct];
        let patterns = patterns.into_iter().flatten();
        self.workspace
            .iter()
            .chain(&self.config)
            .chain(&self.writable)
            .chain(&self.observe_root)
            .cloned()
            .chain(patterns.map(|pattern| answer::of_pattern(pattern, &root)))
            .collect()
    }

    /// Checks that `--mode` doesn't say something else than the session, whose mode goes before it: nobody gets more
    /// than they asked for, or less, in silence.
    ///
    /// # Errors
    /// It does.
    pub fn agree_with(&self, session: &Session) -> Result<(), Failure> {
        match (self.mode, session.state()?.mode()) {
            (Some(wanted), Some(mode)) if wanted != mode => {
                let what =
                    format!("the session's mode is `{mode}`, which goes before `--mode {wanted}`");
                let id = session.id();
                Err(Failure::new(Code::PolicyInvalid, what)
                    .help(format!("change it with `stockade session mode {id} {wanted}`"))
                    .help("or ask for a wider one, for one run, with `--sandbox-permissions`"))
            }
            _ => Ok(()),
        }
    }

    /// Returns what is in force: the options over the profiles over the configuration.
    ///
    /// # Errors
    /// The configuration can't be used.
    pub fn effective(&self) -> Result<Effective, Failure> {
        let mut writable = Vec::new();
        let mut roots = Vec::new();
        for path in &self.writable {
            // A file's value would have to be absolute.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            match path.to_str() {
                Some(text) => roots.push(option("--writable", text.to_owned())),
                None => writable.push(path),
            }
        }
        let observed = self.observe_root.iter().filter_map(|path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            path.to_str().map(|text| option("--observe-root", text.to_owned()))
        });
        let observed: Vec<_> = observed.collect();
        if observed.len() < self.observe_root.len() {
            let what = "a directory to be observed has a name that is not UTF-8";
            return Err(Failure::new(Code::ConfigInvalid, what)
                .help("name the directory above it with --observe-root"));
        }
        let list = |name: &str, values: &[String]| -> Vec<Setting<String>> {
            values.iter().map(|value| option(name, value.clone())).collect()
        };
        let options = Settings {
            mode: self.mode.map(|mode| option("--mode", mode)),
            guard: self.guard.map(|guard| option("--guard", guard.into())),
            publish: self.publish.map(|publish| option("--publish", publish.into())),
            publish_direct: list("--publish-direct", &self.publish_direct),
            durable: self.durable.then(|| option("--durable", true)),
            keep_history: self.keep_history.then(|| option("--keep-history", true)),
            history_size: self.history_size.map(|size| option("--history-size", size)),
            history_age: self.history_age.map(|age| option("--history-age", age)),
            network: self.network.map(|network| option("--network", network.into())),
            hardlinks: self.hardlinks.map(|links| option("--hardlinks", links.into())),
            observe: self.observe.map(|level| option("--observe", level.into())),
            writable_roots: roots,
            observe_roots: observed,
            deny_read: list("--deny-read", &self.deny_read),
            deny_write: list("--deny-write", &self.deny_write),
            allow_write: list("--allow-write", &self.allow_write),
            ..Settings::default()
        };
        let sources = Sources {
            file: self.config.clone(),
            profiles: self.profile.clone(),
            options,
            writable,
        };
        // The shipped command line's default; the library's is read-only (contract P3).
        sources.resolve(Mode::COMMAND_LINE_DEFAULT)
    }
}

fn option<T>(name: &str, value: T) -> Setting<T> {
    Setting::new(value, Origin::Option(name.to_owned()))
}

impl From<GuardArg> for Guard {
    fn from(arg: GuardArg) -> Self {
        match arg {
            GuardArg::Off => Self::Off,
            GuardArg::Audit => Self::Audit,
            GuardArg::Enforce => Self::Enforce,
        }
    }
}

impl From<PublishArg> for Publish {
    fn from(arg: PublishArg) -> Self {
        match arg {
            PublishArg::Atomic => Self::Atomic,
            PublishArg::Direct => Self::Direct,
        }
    }
}

impl From<NetworkArg> for Network {
    fn from(arg: NetworkArg) -> Self {
        match arg {
            NetworkArg::Host => Self::Host,
            NetworkArg::None => Self::None,
        }
    }
}

impl From<HardlinksArg> for Hardlinks {
    fn from(arg: HardlinksArg) -> Self {
        match arg {
            HardlinksArg::Break => Self::Break,
            HardlinksArg::Deny => Self::Deny,
            HardlinksArg::Follow => Self::Follow,
        }
    }
}

impl From<ObserveArg> for ObserveLevel {
    fn from(arg: ObserveArg) -> Self {
        match arg {
            ObserveArg::Open => Self::Open,
            ObserveArg::Full => Self::Full,
        }
    }
}

/// Reads a size: a number with `B`, `kB`, `MB`, `GiB` and the like behind it; bytes without.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("`{text}` is not a size (such as 500MB or 2GiB)"))
}

/// Reads a duration: a number with `ms`, `s`, `m`, `h` or `d` behind it; seconds without.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("unknown unit `{unit}` (expected ms, s, m, h or d)")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
    Duration::try_from_secs_f64(number * factor)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("`{text}` is not a length of time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_and_without_a_unit() {
        let rows = [("1.5", 1500), ("20ms", 20), ("2m", 120_000), ("1h", 3_600_000), ("3s", 3000)];
        for (text, millis) in rows {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "x", "-1", "0", "5y", "nan", "inf", "1e400"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
