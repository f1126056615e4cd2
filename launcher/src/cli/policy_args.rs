//! Options that `run`, `shell` and `mount` share.

use std::path::PathBuf;
use std::time::Duration;

use stockade_policy::{Guard, Hardlinks, Mode, ModeSource, Network, ObserveLevel, Publish};

use crate::error::{Code, Failure};
use crate::resolve::Request;
use crate::session::Session;

/// What the command may do.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Policy")]
pub struct PolicyArgs {
    /// What the command may do to files: read-only, workspace-write or danger-full-access.
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// The directory to work in. [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// One more directory that may be written.
    #[arg(long, value_name = "PATH")]
    writable: Vec<PathBuf>,
    /// A path or glob that can't be read.
    #[arg(long, value_name = "PATH|GLOB")]
    deny_read: Vec<String>,
    /// A path or glob that can't be written.
    #[arg(long, value_name = "PATH|GLOB")]
    deny_write: Vec<String>,
    /// A path or glob whose protection is lifted.
    #[arg(long, value_name = "PATH|GLOB")]
    allow_write: Vec<String>,
    /// What to do when a write meets content that the session hasn't seen.
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    guard: GuardArg,
    /// How rewritten content reaches its name.
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    publish: PublishArg,
    /// Whether the command sees the host's network.
    #[arg(long, value_enum, value_name = "NET", default_value_t)]
    network: NetworkArg,
    /// What a write to a file with another name outside does.
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    hardlinks: HardlinksArg,
    /// How much of the reading and writing is recorded.
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t)]
    observe: ObserveArg,
}

/// The enumerations of the policy crate as arguments: that crate knows nothing of command lines.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum GuardArg {
    /// Nothing
    Off,
    /// Record it
    #[default]
    Audit,
    /// Refuse it
    Enforce,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum PublishArg {
    /// Whole, in one step
    #[default]
    Atomic,
    /// As it is written
    Direct,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum NetworkArg {
    /// It does
    #[default]
    Host,
    /// It has none
    None,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum HardlinksArg {
    /// Goes to a file of its own
    #[default]
    Break,
    /// Is refused
    Deny,
    /// Goes through
    Follow,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum ObserveArg {
    /// One event from open to close
    #[default]
    Open,
    /// Each operation
    Full,
}

impl PolicyArgs {
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

    /// Returns the deployment's mode.
    pub fn default_mode(&self) -> Mode {
        // The shipped command line's default; the library's is read-only (contract P3).
        self.mode.unwrap_or(Mode::COMMAND_LINE_DEFAULT)
    }

    /// Turns the options into a request for a workspace.
    pub fn request(&self, workspace: PathBuf) -> Request {
        let mut request = Request::new(self.default_mode(), workspace);
        request.mode.1 = ModeSource::Default;
        request.writable.clone_from(&self.writable);
        request.deny_read.clone_from(&self.deny_read);
        request.deny_write.clone_from(&self.deny_write);
        request.allow_write.clone_from(&self.allow_write);
        request.guard = match self.guard {
            GuardArg::Off => Guard::Off,
            GuardArg::Audit => Guard::Audit,
            GuardArg::Enforce => Guard::Enforce,
        };
        request.publish = match self.publish {
            PublishArg::Atomic => Publish::Atomic,
            PublishArg::Direct => Publish::Direct,
        };
        request.network = match self.network {
            NetworkArg::Host => Network::Host,
            NetworkArg::None => Network::None,
        };
        request.hardlinks = match self.hardlinks {
            HardlinksArg::Break => Hardlinks::Break,
            HardlinksArg::Deny => Hardlinks::Deny,
            HardlinksArg::Follow => Hardlinks::Follow,
        };
        request.observe = match self.observe {
            ObserveArg::Open => ObserveLevel::Open,
            ObserveArg::Full => ObserveLevel::Full,
        };
        request
    }
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
