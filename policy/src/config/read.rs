//! From TOML to settings.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::de::value::{Error as ValueError, StrDeserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Config, ConfigError, Origin, Profile, Setting, Settings};

/// Makes the origin of a line.
type At<'a> = &'a dyn Fn(usize) -> Origin;

type Table<'a> = DeTable<'a>;

/// What each table may hold beside the settings.
const CONFIG_KEYS: [&str; 2] = ["use_profiles", "profile"];
const PROFILE_KEYS: [&str; 2] = ["description", "extends"];

struct Reader<'a> {
    text: &'a str,
    at: At<'a>,
}

pub(super) fn config(text: &str, at: At<'_>) -> Result<Config, ConfigError> {
    let reader = Reader { text, at };
    let table = reader.parse()?;
    let table = table.get_ref();
    reader.known(table, &CONFIG_KEYS)?;
    let mut config = Config { settings: reader.settings(table)?, ..Config::default() };
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "use_profiles" => config.use_profiles = reader.list("use_profiles", value)?,
            "profile" => {
                let profiles = value.get_ref().as_table().ok_or_else(|| {
                    reader.wrong(value, "`profile` takes tables, such as `[profile.NAME]`")
                })?;
                for (name, value) in profiles {
                    let profile = reader.profile(value)?;
                    config.profiles.insert(name.get_ref().clone().into_owned(), profile);
                }
            }
            _ => {}
        }
    }
    Ok(config)
}

/// Reads the profiles that come with Stockade. Each value's origin is its profile.
pub(super) fn shipped(text: &str) -> Result<BTreeMap<String, Profile>, ConfigError> {
    let whole = |line| Origin::File { name: "profiles.toml".to_owned(), line };
    let reader = Reader { text, at: &whole };
    let mut profiles = BTreeMap::new();
    for (name, value) in reader.parse()?.get_ref() {
        let profile = name.get_ref().clone().into_owned();
        let at = |_| Origin::Shipped { profile: profile.clone() };
        let read = Reader { text, at: &at }.profile(value)?;
        profiles.insert(profile.clone(), read);
    }
    Ok(profiles)
}

impl Reader<'_> {
    fn parse(&self) -> Result<Spanned<Table<'_>>, ConfigError> {
        DeTable::parse(self.text).map_err(|error| ConfigError::Invalid {
            origin: self.origin(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })
    }

    fn origin(&self, offset: usize) -> Origin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        (self.at)(before.matches('\n').count() + 1)
    }

    fn wrong(&self, value: &Spanned<DeValue<'_>>, message: impl Into<String>) -> ConfigError {
        let origin = self.origin(value.span().start);
        ConfigError::Invalid { origin, message: message.into() }
    }

    fn known(&self, table: &Table<'_>, more: &[&'static str]) -> Result<(), ConfigError> {
        let known = || Settings::KEYS.iter().chain(more).copied();
        let unknown = table
            .keys()
            .filter(|key| !known().any(|known| known == key.get_ref().as_ref()))
            .min_by_key(|key| key.span().start);
        unknown.map_or(Ok(()), |key| {
            let name = key.get_ref().as_ref().to_owned();
            let nearest = nearest(&name, known());
            Err(ConfigError::Unknown {
                origin: self.origin(key.span().start),
                what: "key",
                name,
                nearest,
            })
        })
    }

    fn profile(&self, value: &Spanned<DeValue<'_>>) -> Result<Profile, ConfigError> {
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.wrong(value, "a profile is a table"));
        };
        self.known(table, &PROFILE_KEYS)?;
        let mut profile = Profile { settings: self.settings(table)?, ..Profile::default() };
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "description" => {
                    self.text("description", value)?.clone_into(&mut profile.description)
                }
                "extends" => profile.extends = self.list("extends", value)?,
                _ => {}
            }
        }
        Ok(profile)
    }

    fn settings(&self, table: &Table<'_>) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        for (key, value) in table {
            let key = key.get_ref().as_ref();
            match key {
                "mode" => settings.mode = self.word(key, value)?,
                "approval_policy" => settings.approval_policy = self.word(key, value)?,
                "guard" => settings.guard = self.word(key, value)?,
                "publish" => settings.publish = self.word(key, value)?,
                "network" => settings.network = self.word(key, value)?,
                "hardlinks" => settings.hardlinks = self.word(key, value)?,
                "observe" => settings.observe = self.word(key, value)?,
                "backend" => settings.backend = self.word(key, value)?,
                "durable" => settings.durable = self.flag(key, value)?,
                "keep_history" => settings.keep_history = self.flag(key, value)?,
                "history_size" => settings.history_size = self.size(key, value)?,
                "history_age" => settings.history_age = self.duration(key, value)?,
                "log_age" => settings.log_age = self.duration(key, value)?,
                "log_size" => settings.log_size = self.size(key, value)?,
                "require_full" => settings.require_full = self.flag(key, value)?,
                "timeout" => settings.timeout = self.duration(key, value)?,
                "memory" => settings.memory = self.size(key, value)?,
                "pids" => settings.pids = self.number(key, value)?,
                "cpus" => settings.cpus = self.thousandths(key, value)?,
                "approver" => settings.approver = self.command(key, value)?,
                "approver_timeout" => settings.approver_timeout = self.duration(key, value)?,
                "ask_elsewhere" => settings.ask_elsewhere = self.flag(key, value)?,
                "runner_command" => settings.runner_command = self.command(key, value)?,
                "writable_roots" => settings.writable_roots = self.list(key, value)?,
                "observe_roots" => settings.observe_roots = self.list(key, value)?,
                "deny_read" => settings.deny_read = self.list(key, value)?,
                "deny_write" => settings.deny_write = self.list(key, value)?,
                "allow_write" => settings.allow_write = self.list(key, value)?,
                "publish_direct" => settings.publish_direct = self.list(key, value)?,
                "sockets" => settings.sockets = self.list(key, value)?,
                "withhold_env" => settings.withhold_env = self.list(key, value)?,
                "pass_env" => settings.pass_env = self.list(key, value)?,
                // `known` has refused every other one.
                _ => {}
            }
        }
        Ok(settings)
    }

    fn set<T>(&self, value: T, place: &Spanned<DeValue<'_>>) -> Option<Setting<T>> {
        Some(Setting::new(value, self.origin(place.span().start)))
    }

    fn text<'v>(&self, key: &str, value: &'v Spanned<DeValue<'_>>) -> Result<&'v str, ConfigError> {
        value.get_ref().as_str().ok_or_else(|| self.wrong(value, format!("`{key}` takes a string")))
    }

    fn word<T: DeserializeOwned>(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<T>>, ConfigError> {
        let text = self.text(key, value)?;
        T::deserialize(StrDeserializer::<ValueError>::new(text))
            .map(|word| self.set(word, value))
            .map_err(|error| self.wrong(value, format!("`{key}`: {error}")))
    }

    fn flag(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<bool>>, ConfigError> {
        match value.get_ref().as_bool() {
            Some(flag) => Ok(self.set(flag, value)),
            None => Err(self.wrong(value, format!("`{key}` takes true or false"))),
        }
    }

    fn duration(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<Duration>>, ConfigError> {
        match parse_duration(self.text(key, value)?) {
            Some(duration) => Ok(self.set(duration, value)),
            None => {
                Err(self.wrong(value, format!("`{key}` takes a duration such as `90s` or `5m`")))
            }
        }
    }

    fn size(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<u64>>, ConfigError> {
        match parse_size(self.text(key, value)?) {
            Some(size) => Ok(self.set(size, value)),
            None => {
                Err(self.wrong(value, format!("`{key}` takes a size such as `500 MB` or `2 GiB`")))
            }
        }
    }

    fn number(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<u64>>, ConfigError> {
        let integer = value.get_ref().as_integer();
        match integer.and_then(|number| number.as_str().parse().ok()).filter(|&number| number > 0) {
            Some(number) => Ok(self.set(number, value)),
            None => Err(self.wrong(value, format!("`{key}` takes a whole number above 0"))),
        }
    }

    fn thousandths(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<u64>>, ConfigError> {
        let value_ref = value.get_ref();
        let text = value_ref
            .as_integer()
            .map(|number| number.as_str())
            .or_else(|| value_ref.as_float().map(|number| number.as_str()));
        match text.and_then(parse_thousandths) {
            Some(number) => Ok(self.set(number, value)),
            None => Err(self.wrong(value, format!("`{key}` takes a number such as `2` or `0.5`"))),
        }
    }

    fn list(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<Setting<String>>, ConfigError> {
        let Some(array) = value.get_ref().as_array() else {
            return Err(self.wrong(value, format!("`{key}` takes a list of strings")));
        };
        array
            .iter()
            .map(|item| {
                let text = self.text(&format!("an element of {key}"), item)?;
                if text.is_empty() {
                    return Err(self.wrong(item, format!("`{key}` holds an empty string")));
                }
                Ok(Setting::new(text.to_owned(), self.origin(item.span().start)))
            })
            .collect()
    }

    fn command(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Option<Setting<Vec<String>>>, ConfigError> {
        let words: Vec<String> =
            self.list(key, value)?.into_iter().map(|word| word.value).collect();
        if words.is_empty() {
            return Err(self.wrong(value, format!("`{key}` needs a program")));
        }
        Ok(self.set(words, value))
    }
}

/// Returns the known name that was probably meant.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    known
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&plain, &known.replace('-', "_"));
            // Names by which others call the same thing.
            let alias = match plain.as_str() {
                "sandbox_mode" | "sandbox" => known == "mode",
                "writable" | "allow_roots" | "writable_paths" => known == "writable_roots",
                "approval" | "ask_for_approval" => known == "approval_policy",
                "publication" => known == "publish",
                "profiles" => known == "use_profiles",
                "network_access" => known == "network",
                _ => false,
            };
            (if alias { 0 } else { distance }, known)
        })
        .filter(|(distance, _)| *distance <= 2.max(plain.len() / 3))
        .min()
        .map(|(_, known)| known.to_owned())
}

/// Reads a duration such as `500ms`, `90s`, `5m`, `2h` or `1d`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" | "min" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// Reads a size: a whole number with `B`, `kB`, `MB`, `GB`, `TB`, `KiB`, `MiB`, `GiB` or `TiB` behind it.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().ok()?;
    let (base, power): (u64, u32) = match unit.trim() {
        "" | "B" => (1, 1),
        "kB" => (1000, 1),
        "MB" => (1000, 2),
        "GB" => (1000, 3),
        "TB" => (1000, 4),
        "KiB" => (1024, 1),
        "MiB" => (1024, 2),
        "GiB" => (1024, 3),
        "TiB" => (1024, 4),
        _ => return None,
    };
    number.checked_mul(base.checked_pow(power)?)
}

/// Reads a number such as `2` or `0.5`, above 0, in thousandths.
#[must_use]
pub fn parse_thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    let all = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)?;
    // More processors than any machine has is a slip.
    (1..=10_000_000).contains(&all).then_some(all)
}

/// Writes thousandths as [`parse_thousandths`] reads them.
#[must_use]
pub fn show_thousandths(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes a duration as [`parse_duration`] reads it.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if duration.subsec_millis() > 0 {
        return format!("{}ms", duration.as_millis());
    }
    match (seconds % 60, seconds % (60 * 60)) {
        (_, 0) if seconds > 0 => format!("{}h", seconds / (60 * 60)),
        (0, _) if seconds > 0 => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}
