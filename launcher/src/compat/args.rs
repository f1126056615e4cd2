//! The arguments of bubblewrap: which there are, and what each says about mounts.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::Refusal;
use crate::sys;

/// Options with nothing behind them.
const PLAIN: [&str; 17] = [
    "--unshare-all",
    "--unshare-user",
    "--unshare-user-try",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup",
    "--unshare-cgroup-try",
    "--share-net",
    "--disable-userns",
    "--assert-userns-disabled",
    "--clearenv",
    "--new-session",
    "--die-with-parent",
    "--as-pid-1",
    "--",
];

/// Options with one word behind them.
const ONE: [&str; 21] = [
    "--argv0",
    "--hostname",
    "--chdir",
    "--unsetenv",
    "--uid",
    "--gid",
    "--lock-file",
    "--sync-fd",
    "--block-fd",
    "--info-fd",
    "--json-status-fd",
    "--seccomp",
    "--add-seccomp-fd",
    "--cap-add",
    "--cap-drop",
    "--perms",
    "--size",
    "--proc",
    "--dev",
    "--mqueue",
    "--args",
];

/// Options with one word behind them, which covers a path or changes one.
const PLACES: [&str; 3] = ["--tmpfs", "--dir", "--remount-ro"];

/// Options with two words behind them.
const TWO: [&str; 12] = [
    "--setenv",
    "--file",
    "--bind-data",
    "--ro-bind-data",
    "--symlink",
    "--chmod",
    "--bind",
    "--bind-try",
    "--dev-bind",
    "--dev-bind-try",
    "--ro-bind",
    "--ro-bind-try",
];

/// Options of bubblewrap's that would bring in what isn't looked at here.
const REFUSED: [&str; 12] = [
    "--bind-fd",
    "--ro-bind-fd",
    "--exec-label",
    "--file-label",
    "--userns",
    "--userns2",
    "--userns-block-fd",
    "--pidns",
    "--overlay-src",
    "--overlay",
    "--tmp-overlay",
    "--ro-overlay",
];

/// How many words there may be, as for bubblewrap.
const MOST: usize = 9000;

/// How many bytes of arguments are read from a descriptor.
const LARGEST: u64 = 64 << 20;

/// What an option does to the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory or file of the host's; `devices` says whether device nodes work.
    Bind {
        /// Whether it may be written.
        writable: bool,
        /// Whether devices work.
        devices: bool,
    },
    /// Something else that covers what was there.
    Cover,
    /// Nothing, or something within what is there.
    Other,
}

/// One option with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The option and what is behind it.
    pub words: Vec<OsString>,
    /// What it does to the view.
    pub kind: Kind,
}

impl Operation {
    fn new(words: Vec<OsString>) -> Self {
        let kind = match words.first().and_then(|word| word.to_str()) {
            Some("--bind" | "--bind-try") => Kind::Bind { writable: true, devices: false },
            Some("--dev-bind" | "--dev-bind-try") => Kind::Bind { writable: true, devices: true },
            Some("--ro-bind" | "--ro-bind-try") => Kind::Bind { writable: false, devices: false },
            Some(
                "--proc" | "--dev" | "--tmpfs" | "--mqueue" | "--bind-data" | "--ro-bind-data",
            ) => Kind::Cover,
            Some(_) | None => Kind::Other,
        };
        Self { words, kind }
    }

    /// Returns the option.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        self.words.first().map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// Returns the path on the host that a bind names.
    #[must_use]
    pub fn source(&self) -> Option<PathBuf> {
        matches!(self.kind, Kind::Bind { .. })
            .then(|| self.words.get(1).map(PathBuf::from))
            .flatten()
    }

    /// Returns the path inside that it covers, if it covers one.
    #[must_use]
    pub fn target(&self) -> Option<PathBuf> {
        (self.kind != Kind::Other).then(|| self.words.last().map(PathBuf::from)).flatten()
    }
}

/// A command line of bubblewrap's, with what `--args` named in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The options, in order.
    pub operations: Vec<Operation>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// What the caller wants instead of a run.
    pub asked: Option<Asked>,
}

/// What tells about bubblewrap instead of running something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `--help`
    Help,
    /// `--version`
    Version,
}

impl Arguments {
    /// Reads a command line; `--args` is read from its descriptor.
    ///
    /// # Errors
    /// An option isn't known or isn't supported, or lacks what must be behind it.
    pub fn parse(words: Vec<OsString>) -> Result<Self, Refusal> {
        let mut arguments = Self::default();
        let mut total = words.len();
        arguments.command = arguments.read(words, &mut total, false)?;
        Ok(arguments)
    }

    /// Returns the word behind every option of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a OsString> {
        let named = self.operations.iter().filter(move |operation| operation.name() == name);
        named.filter_map(|operation| operation.words.get(1))
    }

    /// Returns what of the host is bound.
    pub fn sources(&self) -> impl Iterator<Item = PathBuf> {
        let binds =
            self.operations.iter().filter(|operation| matches!(operation.kind, Kind::Bind { .. }));
        binds.filter_map(|operation| operation.words.get(1).map(PathBuf::from))
    }

    /// Reads options and returns what is behind them.
    fn read(
        &mut self,
        words: Vec<OsString>,
        total: &mut usize,
        in_file: bool,
    ) -> Result<Vec<OsString>, Refusal> {
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let name = word.to_string_lossy().into_owned();
            let behind = match name.as_str() {
                "--help" | "--version" => {
                    let asked = if name == "--help" { Asked::Help } else { Asked::Version };
                    self.asked.get_or_insert(asked);
                    continue;
                }
                "--" => return Ok(words.collect()),
                name if PLAIN.contains(&name) => 0,
                name if ONE.contains(&name) || PLACES.contains(&name) => 1,
                name if TWO.contains(&name) => 2,
                name if REFUSED.contains(&name) => {
                    return Err(Refusal(format!("bwrap-compat doesn't support `{name}`")));
                }
                name if name.starts_with('-') => {
                    return Err(Refusal(format!("bwrap-compat doesn't know `{name}`")));
                }
                _ => return Ok(std::iter::once(word).chain(words).collect()),
            };
            let mut operation = vec![word];
            operation.extend(words.by_ref().take(behind));
            if operation.len() != behind + 1 {
                let plural = if behind == 1 { "an argument" } else { "two arguments" };
                return Err(Refusal(format!("`{name}` takes {plural}")));
            }
            if name == "--args" {
                if in_file {
                    return Err(Refusal("`--args` can't stand in what `--args` names".to_owned()));
                }
                let more = words_of(operation.get(1).map_or(OsStr::new(""), OsString::as_os_str))?;
                *total += more.len();
                // What isn't an option there ends the reading, and is no command either.
                let _ignored = self.read(more, total, true)?;
            } else {
                self.operations.push(Operation::new(operation));
            }
            if *total > MOST {
                return Err(Refusal(format!("there are more than {MOST} arguments")));
            }
        }
        Ok(Vec::new())
    }

    /// Tells whether an option is there.
    #[must_use]
    pub fn has(&self, names: &[&str]) -> bool {
        self.operations.iter().any(|operation| names.iter().any(|name| operation.name() == *name))
    }

    /// Returns what stands behind the last of an option's appearances.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<&OsStr> {
        let found = self.operations.iter().rfind(|operation| operation.name() == name)?;
        found.words.get(1).map(OsString::as_os_str)
    }
}

/// Returns the words that a descriptor holds, separated by NUL.
fn words_of(number: &OsStr) -> Result<Vec<OsString>, Refusal> {
    let fd = descriptor(number).ok_or_else(|| {
        Refusal(format!("`--args {}` is no open descriptor", number.to_string_lossy()))
    })?;
    let mut bytes = Vec::new();
    std::fs::File::from(fd)
        .take(LARGEST)
        .read_to_end(&mut bytes)
        .map_err(|error| Refusal(format!("can't read what `--args` names: {error}")))?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    } else if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Takes over a descriptor that the caller has opened for us.
pub(super) fn descriptor(number: &OsStr) -> Option<std::os::fd::OwnedFd> {
    let number = std::str::from_utf8(number.as_bytes()).ok()?.parse().ok()?;
    sys::inherited(number).ok()
}

/// Returns what `--help` shows.
#[must_use]
pub fn help() -> String {
    let mut text = String::from(
        "usage: stockade bwrap-compat [OPTIONS...] [--] COMMAND [ARGS...]\n\n\
         The arguments are bubblewrap's, and so is what they do (see bwrap(1)); writable binds are served by\n\
         Stockade's file system. STOCKADE_SESSION, STOCKADE_RESULT, STOCKADE_PROFILE and STOCKADE_CONFIG in\n\
         the environment, and the configuration, say the rest.\n\n",
    );
    let rows =
        [(&PLAIN[..16], ""), (&ONE[..], " ARG"), (&PLACES[..], " DEST"), (&TWO[..], " ARG ARG")];
    for (names, behind) in rows {
        for name in names {
            text.push_str(&format!("    {name}{behind}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::IntoRawFd;

    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, Refusal> {
        Arguments::parse(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn options_end_where_bubblewrap_ends_them() {
        let rows: [(&[&str], &[&str]); 4] = [
            (&["--ro-bind", "/", "/", "--", "ls", "-l"], &["ls", "-l"]),
            (&["--dev", "/dev", "ls", "--", "-l"], &["ls", "--", "-l"]),
            (&["--setenv", "A", "--", "--", "ls"], &["ls"]),
            (&["--unshare-pid"], &[]),
        ];
        for (words, command) in rows {
            assert_eq!(parse(words).unwrap().command, command, "{words:?}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (words, named) in [
            (vec!["--overlay-src", "/x"], "--overlay-src"),
            (vec!["--frob"], "--frob"),
            (vec!["--bind", "/a"], "--bind"),
            (vec!["--args", "4000"], "--args 4000"),
            (vec!["--args", "1"], "--args 1"),
        ] {
            let Refusal(why) = parse(&words).unwrap_err();
            assert!(why.contains(named), "{words:?}: {why}");
        }
        for name in REFUSED {
            assert!(parse(&[name, "1", "2"]).is_err(), "{name}");
        }
    }

    #[test]
    fn arguments_come_from_a_descriptor_as_bytes() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"--bind\0/a\xff\0/b\0--tmpfs\0/tmp\0").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let number = file.into_raw_fd().to_string();
        let arguments = parse(&["--args", &number, "--", "true"]).unwrap();
        let bind = &arguments.operations[0];
        assert_eq!(bind.source().unwrap().as_os_str().as_bytes(), b"/a\xff");
        assert_eq!(bind.target().unwrap(), PathBuf::from("/b"));
        assert_eq!(bind.kind, Kind::Bind { writable: true, devices: false });
        assert_eq!(arguments.operations[1].kind, Kind::Cover);
        assert_eq!(arguments.command, ["true"]);
    }
}
