//! The operator's configuration: typed settings, profiles and layers, each value with its origin.
//!
//! Layers, from the strongest: the command line, the profiles (the one named last first; a profile goes before what it
//! extends), the file's own settings, the defaults. One value of a setting replaces another; lists add up.
//!
//! Invariants:
//! - I1: what isn't understood is refused, with file, line and the nearest name. Nothing is skipped.
//! - I2: each value of the result says where it came from.
//! - I3: text is read elsewhere, and variables come as a function: nothing here looks at the machine.

mod expand;
mod read;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ApprovalPolicy, Guard, Hardlinks, Mode, Network, ObserveLevel, Policy, Publish};

pub use expand::{Unset, expand, unexpanded};
pub use read::{parse_duration, parse_size, parse_thousandths, show_duration, show_thousandths};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// What holds when nobody says anything.
    Default,
    /// A line of a file.
    File {
        /// The file as it is called.
        name: String,
        /// The line, from 1.
        line: usize,
    },
    /// A profile that comes with Stockade.
    Shipped {
        /// The profile's name.
        profile: String,
    },
    /// An option of the command line.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Shipped { profile } => write!(f, "profile {profile} (shipped)"),
            Self::Option(option) => f.write_str(option),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Joins a value to its origin.
    pub const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }
}

/// What confines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The first of the platform's that works.
    #[default]
    Auto,
    /// Bubblewrap.
    Bwrap,
    /// Landlock.
    Landlock,
    /// The operator's own runner.
    Custom,
}

/// One layer of settings. What isn't set is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is documented in the example configuration")]
pub struct Settings {
    pub mode: Option<Setting<Mode>>,
    pub approval_policy: Option<Setting<ApprovalPolicy>>,
    pub guard: Option<Setting<Guard>>,
    pub publish: Option<Setting<Publish>>,
    pub network: Option<Setting<Network>>,
    pub hardlinks: Option<Setting<Hardlinks>>,
    pub observe: Option<Setting<ObserveLevel>>,
    pub backend: Option<Setting<Backend>>,
    pub durable: Option<Setting<bool>>,
    pub keep_history: Option<Setting<bool>>,
    pub history_size: Option<Setting<u64>>,
    pub history_age: Option<Setting<Duration>>,
    pub log_age: Option<Setting<Duration>>,
    pub log_size: Option<Setting<u64>>,
    pub require_full: Option<Setting<bool>>,
    pub timeout: Option<Setting<Duration>>,
    pub memory: Option<Setting<u64>>,
    pub pids: Option<Setting<u64>>,
    pub cpus: Option<Setting<u64>>,
    pub approver: Option<Setting<Vec<String>>>,
    pub approver_timeout: Option<Setting<Duration>>,
    pub ask_elsewhere: Option<Setting<bool>>,
    pub runner_command: Option<Setting<Vec<String>>>,
    pub writable_roots: Vec<Setting<String>>,
    pub observe_roots: Vec<Setting<String>>,
    pub deny_read: Vec<Setting<String>>,
    pub deny_write: Vec<Setting<String>>,
    pub allow_write: Vec<Setting<String>>,
    pub publish_direct: Vec<Setting<String>>,
    pub sockets: Vec<Setting<String>>,
    pub withhold_env: Vec<Setting<String>>,
    pub pass_env: Vec<Setting<String>>,
}

impl Settings {
    /// Every key of a configuration and of a profile, as it is written.
    pub const KEYS: [&'static str; 32] = [
        "mode",
        "approval_policy",
        "guard",
        "publish",
        "network",
        "hardlinks",
        "observe",
        "backend",
        "durable",
        "keep_history",
        "history_size",
        "history_age",
        "log_age",
        "log_size",
        "require_full",
        "timeout",
        "memory",
        "pids",
        "cpus",
        "approver",
        "approver_timeout",
        "ask_elsewhere",
        "runner_command",
        "writable_roots",
        "observe_roots",
        "deny_read",
        "deny_write",
        "allow_write",
        "publish_direct",
        "sockets",
        "withhold_env",
        "pass_env",
    ];

    /// Returns this layer laid over a weaker one: one value replaces another, lists add up, the weaker one's first.
    #[must_use]
    pub fn over(self, weaker: Self) -> Self {
        Self {
            mode: self.mode.or(weaker.mode),
            approval_policy: self.approval_policy.or(weaker.approval_policy),
            guard: self.guard.or(weaker.guard),
            publish: self.publish.or(weaker.publish),
            network: self.network.or(weaker.network),
            hardlinks: self.hardlinks.or(weaker.hardlinks),
            observe: self.observe.or(weaker.observe),
            backend: self.backend.or(weaker.backend),
            durable: self.durable.or(weaker.durable),
            keep_history: self.keep_history.or(weaker.keep_history),
            history_size: self.history_size.or(weaker.history_size),
            history_age: self.history_age.or(weaker.history_age),
            log_age: self.log_age.or(weaker.log_age),
            log_size: self.log_size.or(weaker.log_size),
            require_full: self.require_full.or(weaker.require_full),
            timeout: self.timeout.or(weaker.timeout),
            memory: self.memory.or(weaker.memory),
            pids: self.pids.or(weaker.pids),
            cpus: self.cpus.or(weaker.cpus),
            approver: self.approver.or(weaker.approver),
            approver_timeout: self.approver_timeout.or(weaker.approver_timeout),
            ask_elsewhere: self.ask_elsewhere.or(weaker.ask_elsewhere),
            runner_command: self.runner_command.or(weaker.runner_command),
            writable_roots: joined(weaker.writable_roots, self.writable_roots),
            observe_roots: joined(weaker.observe_roots, self.observe_roots),
            deny_read: joined(weaker.deny_read, self.deny_read),
            deny_write: joined(weaker.deny_write, self.deny_write),
            allow_write: joined(weaker.allow_write, self.allow_write),
            publish_direct: joined(weaker.publish_direct, self.publish_direct),
            sockets: joined(weaker.sockets, self.sockets),
            withhold_env: joined(weaker.withhold_env, self.withhold_env),
            pass_env: joined(weaker.pass_env, self.pass_env),
        }
    }

    /// Returns every value as `config show --origin` prints it: key, value in TOML, origin. Each element of a list is
    /// a row; what isn't set at all is left out.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, String, &Origin)> {
        let mut rows = Vec::new();
        named("mode", self.mode.as_ref(), &mut rows);
        named("approval_policy", self.approval_policy.as_ref(), &mut rows);
        named("guard", self.guard.as_ref(), &mut rows);
        named("publish", self.publish.as_ref(), &mut rows);
        named("network", self.network.as_ref(), &mut rows);
        named("hardlinks", self.hardlinks.as_ref(), &mut rows);
        named("observe", self.observe.as_ref(), &mut rows);
        named("backend", self.backend.as_ref(), &mut rows);
        named("durable", self.durable.as_ref(), &mut rows);
        named("keep_history", self.keep_history.as_ref(), &mut rows);
        named("require_full", self.require_full.as_ref(), &mut rows);
        let sizes = [("history_size", &self.history_size), ("log_size", &self.log_size)];
        for (key, setting) in sizes {
            if let Some(Setting { value, origin }) = setting {
                rows.push((key, format!("\"{value} B\""), origin));
            }
        }
        if let Some(Setting { value, origin }) = &self.memory {
            rows.push(("memory", format!("\"{value} B\""), origin));
        }
        named("pids", self.pids.as_ref(), &mut rows);
        if let Some(Setting { value, origin }) = &self.cpus {
            rows.push(("cpus", show_thousandths(*value), origin));
        }
        let durations = [
            ("history_age", &self.history_age),
            ("log_age", &self.log_age),
            ("timeout", &self.timeout),
            ("approver_timeout", &self.approver_timeout),
        ];
        for (key, setting) in durations {
            if let Some(Setting { value, origin }) = setting {
                rows.push((key, format!("\"{}\"", show_duration(*value)), origin));
            }
        }
        named("approver", self.approver.as_ref(), &mut rows);
        named("ask_elsewhere", self.ask_elsewhere.as_ref(), &mut rows);
        named("runner_command", self.runner_command.as_ref(), &mut rows);
        for (key, list) in [
            ("writable_roots", &self.writable_roots),
            ("observe_roots", &self.observe_roots),
            ("deny_read", &self.deny_read),
            ("deny_write", &self.deny_write),
            ("allow_write", &self.allow_write),
            ("publish_direct", &self.publish_direct),
            ("sockets", &self.sockets),
            ("withhold_env", &self.withhold_env),
            ("pass_env", &self.pass_env),
        ] {
            for setting in list {
                named(key, Some(setting), &mut rows);
            }
        }
        rows
    }

    /// Writes what a policy holds into it. Its root, its session and the source of its mode stay.
    pub fn apply(&self, policy: &mut Policy) {
        fn set<T: Copy>(target: &mut T, setting: Option<&Setting<T>>) {
            if let Some(setting) = setting {
                *target = setting.value;
            }
        }
        let texts = |list: &[Setting<String>]| -> Vec<String> {
            list.iter().map(|setting| setting.value.clone()).collect()
        };
        set(&mut policy.mode, self.mode.as_ref());
        set(&mut policy.guard, self.guard.as_ref());
        set(&mut policy.publish, self.publish.as_ref());
        set(&mut policy.durable, self.durable.as_ref());
        set(&mut policy.network, self.network.as_ref());
        set(&mut policy.hardlinks, self.hardlinks.as_ref());
        set(&mut policy.observe, self.observe.as_ref());
        policy
            .extra_roots
            .extend(self.writable_roots.iter().map(|root| PathBuf::from(&root.value)));
        policy.deny_read.extend(texts(&self.deny_read));
        policy.deny_write.extend(texts(&self.deny_write));
        policy.allow_write.extend(texts(&self.allow_write));
        policy.publish_direct.extend(texts(&self.publish_direct));
    }

    /// Replaces `~` and variables in every path of a file: a shell has done so for options. A shipped profile's path is
    /// dropped where its variable isn't set.
    fn expanded(mut self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        for list in [
            &mut self.writable_roots,
            &mut self.observe_roots,
            &mut self.deny_read,
            &mut self.deny_write,
            &mut self.allow_write,
            &mut self.publish_direct,
            &mut self.sockets,
        ] {
            let mut kept = Vec::with_capacity(list.len());
            for setting in list.drain(..) {
                if matches!(setting.origin, Origin::Option(_)) {
                    kept.push(setting);
                    continue;
                }
                match (expand(&setting.value, variable), &setting.origin) {
                    (Ok(value), _) => kept.push(Setting { value, ..setting }),
                    (Err(_), Origin::Shipped { .. }) => {}
                    (Err(Unset(name)), _) => {
                        let origin = setting.origin;
                        return Err(ConfigError::Unset { origin, value: setting.value, name });
                    }
                }
            }
            *list = kept;
        }
        if let Some(root) = self.writable_roots.iter().find(|root| !root.value.starts_with('/')) {
            let (origin, value) = (root.origin.clone(), root.value.clone());
            return Err(ConfigError::Relative { origin, value });
        }
        Ok(self)
    }

    /// What holds when nobody says anything, with the deployment's default mode.
    fn defaults(mode: Mode) -> Self {
        fn set<T>(value: T) -> Option<Setting<T>> {
            Some(Setting::new(value, Origin::Default))
        }
        Self {
            mode: set(mode),
            approval_policy: set(ApprovalPolicy::default()),
            guard: set(Guard::default()),
            publish: set(Publish::default()),
            network: set(Network::default()),
            hardlinks: set(Hardlinks::default()),
            observe: set(ObserveLevel::default()),
            backend: set(Backend::default()),
            durable: set(false),
            keep_history: set(false),
            require_full: set(false),
            approver_timeout: set(Duration::from_secs(300)),
            ..Self::default()
        }
    }
}

fn joined(mut first: Vec<Setting<String>>, then: Vec<Setting<String>>) -> Vec<Setting<String>> {
    for setting in then {
        if !first.iter().any(|known| known.value == setting.value) {
            first.push(setting);
        }
    }
    first
}

fn named<'a, T: Serialize>(
    key: &'static str,
    setting: Option<&'a Setting<T>>,
    rows: &mut Vec<(&'static str, String, &'a Origin)>,
) {
    if let Some(Setting { value, origin }) = setting {
        // JSON's strings, booleans and lists of strings are TOML's.
        rows.push((key, serde_json::to_string(value).unwrap_or_default(), origin));
    }
}

/// A named set of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What it's for.
    pub description: String,
    /// The profiles that it builds on.
    pub extends: Vec<Setting<String>>,
    /// Its settings.
    pub settings: Settings,
}

/// A configuration as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The settings outside profiles.
    pub settings: Settings,
    /// The profiles that are always on.
    pub use_profiles: Vec<Setting<String>>,
    /// The profiles that the configuration defines.
    pub profiles: BTreeMap<String, Profile>,
}

/// A configuration that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text isn't TOML, or a value isn't what the key takes.
    #[error("{origin}: {message}")]
    Invalid {
        /// Where.
        origin: Origin,
        /// What is wrong.
        message: String,
    },
    /// Nothing has this name.
    #[error("{origin}: unknown {what} `{name}`")]
    Unknown {
        /// Where.
        origin: Origin,
        /// `key` or `profile`.
        what: &'static str,
        /// The name as it was written.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// Profiles that extend each other.
    #[error("{origin}: profile `{name}` extends itself")]
    Cycle {
        /// Where.
        origin: Origin,
        /// One of them.
        name: String,
    },
    /// A path names a variable that isn't set.
    #[error("{origin}: `{value}` needs the variable `{name}`, which is not set")]
    Unset {
        /// Where.
        origin: Origin,
        /// The path as it was written.
        value: String,
        /// The variable.
        name: String,
    },
    /// A writable root must be absolute.
    #[error("{origin}: writable root `{value}` is not absolute")]
    Relative {
        /// Where.
        origin: Origin,
        /// The path.
        value: String,
    },
}

impl ConfigError {
    /// Returns the stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "CONFIG_INVALID"
    }

    /// Returns what a person can do about it.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Unknown { nearest: Some(nearest), .. } => {
                Some(format!("did you mean `{nearest}`?"))
            }
            Self::Unset { name, .. } => {
                Some(format!("write `${{{name}:-PATH}}` to give a default"))
            }
            Self::Relative { .. } => Some("begin it with `/`, `~/` or a variable".to_owned()),
            Self::Invalid { .. } | Self::Unknown { nearest: None, .. } | Self::Cycle { .. } => None,
        }
    }
}

impl Config {
    /// Reads a configuration. `name` is what the file is called in messages and origins.
    ///
    /// # Errors
    /// The first thing that isn't understood.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        read::config(text, &|line| Origin::File { name: name.to_owned(), line })
    }

    /// Returns the profiles that come with Stockade.
    #[must_use]
    pub fn shipped() -> BTreeMap<String, Profile> {
        // A test reads the text, so nothing is lost to this default.
        read::shipped(include_str!("profiles.toml")).unwrap_or_default()
    }

    /// Returns a configuration that shows and explains every key. All of it is commented out.
    #[must_use]
    pub const fn example() -> &'static str {
        include_str!("example.toml")
    }

    /// Lays out the layers: `options` over `profiles` and those that are always on over the file's settings over the
    /// defaults, with `~` and variables replaced.
    ///
    /// # Errors
    /// An unknown profile, profiles that extend each other, a variable that isn't set.
    pub fn resolve(
        &self,
        default: Mode,
        profiles: &[Setting<String>],
        options: Settings,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Settings, ConfigError> {
        let shipped = Self::shipped();
        let mut result = self.settings.clone().over(Settings::defaults(default));
        for name in self.use_profiles.iter().chain(profiles) {
            let mut path = Vec::new();
            result = self.profile(&shipped, name, &mut path)?.over(result);
        }
        options.over(result).expanded(variable)
    }

    /// Returns a profile's settings over those of what it extends.
    fn profile(
        &self,
        shipped: &BTreeMap<String, Profile>,
        name: &Setting<String>,
        path: &mut Vec<String>,
    ) -> Result<Settings, ConfigError> {
        let origin = name.origin.clone();
        if path.contains(&name.value) {
            return Err(ConfigError::Cycle { origin, name: name.value.clone() });
        }
        let own = self.profiles.get(&name.value);
        let Some(profile) = own.or_else(|| shipped.get(&name.value)) else {
            let known = self.profiles.keys().chain(shipped.keys()).map(String::as_str);
            return Err(ConfigError::Unknown {
                origin,
                what: "profile",
                name: name.value.clone(),
                nearest: read::nearest(&name.value, known),
            });
        };
        // The operator's profile of a shipped one's name may build on that one.
        let builds_on_shipped = |base: &Setting<String>| own.is_some() && base.value == name.value;
        path.push(name.value.clone());
        let mut result = Settings::default();
        for base in &profile.extends {
            result = match shipped.get(&base.value) {
                Some(shipped) if builds_on_shipped(base) => shipped.settings.clone(),
                _ => self.profile(shipped, base, path)?,
            }
            .over(result);
        }
        path.pop();
        Ok(profile.settings.clone().over(result))
    }
}

#[cfg(test)]
mod tests;
