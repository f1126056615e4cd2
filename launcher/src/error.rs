//! What can go wrong before or instead of the command: a stable code, what happened, why, and what to do about it.
//!
//! A [`Failure`] means that Stockade didn't do what was asked. It is neither a refusal by policy (those are in the
//! log) nor the command's own failure (that is its exit status).

use std::error::Error;
use std::fmt;

use stockade_observe::{Ending, RunOutcome};

/// The stable codes of the contract's section 5 that the launcher can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the contract's word")]
pub enum Code {
    SandboxUnavailable,
    RunnerFailed,
    MountFailed,
    PolicyInvalid,
    ConfigInvalid,
    EscalationNotWider,
    EscalationUnpaired,
    ApprovalRejected,
    ApprovalCanceled,
    ApprovalUnavailable,
    SessionNotFound,
    SessionBusy,
    FsNotFound,
    FsStaleVersion,
    FsIoError,
}

impl Code {
    /// Returns the code as it is printed and stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SandboxUnavailable => "SANDBOX_UNAVAILABLE",
            Self::RunnerFailed => "RUNNER_FAILED",
            Self::MountFailed => "MOUNT_FAILED",
            Self::PolicyInvalid => "POLICY_INVALID",
            Self::ConfigInvalid => "CONFIG_INVALID",
            Self::EscalationNotWider => "ESCALATION_NOT_WIDER",
            Self::EscalationUnpaired => "ESCALATION_UNPAIRED",
            Self::ApprovalRejected => "APPROVAL_REJECTED",
            Self::ApprovalCanceled => "APPROVAL_CANCELED",
            Self::ApprovalUnavailable => "APPROVAL_UNAVAILABLE",
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::SessionBusy => "SESSION_BUSY",
            Self::FsNotFound => "FS_NOT_FOUND",
            Self::FsStaleVersion => "FS_STALE_VERSION",
            Self::FsIoError => "FS_IO_ERROR",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Stockade refused or failed; the command did not run unless the result says otherwise.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    message: String,
    help: Vec<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// Makes a failure; `message` is a lower-case fragment that names the object in backticks.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: Vec::new(), source: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds a sentence that says what a person can do.
    #[must_use]
    pub fn help(mut self, line: impl Into<String>) -> Self {
        self.help.push(line.into());
        self
    }

    /// Adds another reason for the same: its message, its causes and its help.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let mut reason = other.message.clone();
        let mut cause = other.source();
        while let Some(error) = cause {
            reason.push_str(&format!(": {error}"));
            cause = error.source();
        }
        if let Some(source) = self.source.take() {
            self.message.push_str(&format!(": {source}"));
        }
        self.message.push_str("; ");
        self.message.push_str(&reason);
        for help in &other.help {
            if !self.help.contains(help) {
                self.help.push(help.clone());
            }
        }
        self
    }

    /// Returns the stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Returns the sentences that say what to do.
    #[must_use]
    pub fn help_lines(&self) -> &[String] {
        &self.help
    }

    /// Returns the outcome of a run that this kept from running.
    #[must_use]
    pub const fn outcome(&self) -> RunOutcome {
        let ending = match self.code {
            Code::SandboxUnavailable => Ending::Unavailable,
            Code::PolicyInvalid
            | Code::ConfigInvalid
            | Code::EscalationNotWider
            | Code::EscalationUnpaired
            | Code::ApprovalRejected
            | Code::ApprovalUnavailable
            | Code::SessionNotFound
            | Code::SessionBusy
            | Code::FsNotFound
            | Code::FsStaleVersion => Ending::Refused,
            Code::ApprovalCanceled => Ending::Canceled,
            Code::RunnerFailed | Code::MountFailed | Code::FsIoError => Ending::RunnerFailed,
        };
        RunOutcome { ending, exit_code: None, signal: None }
    }

    /// Returns the lines that the command line prints: the error with its causes, then the help.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut first = format!("stockade: error[{}]: {}", self.code, self.message);
        let mut cause = self.source();
        while let Some(error) = cause {
            first.push_str(&format!(": {error}"));
            cause = error.source();
        }
        let mut lines = vec![first.replace('\n', " ")];
        lines.extend(self.help.iter().map(|line| format!("help: {line}")));
        lines
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_code_and_causes_and_help_follows() {
        let failure = Failure::new(Code::MountFailed, "can't mount at `/w`")
            .because(std::io::Error::from_raw_os_error(2))
            .help("do this");
        assert_eq!(
            failure.lines(),
            [
                "stockade: error[MOUNT_FAILED]: can't mount at `/w`: No such file or directory (os error 2)",
                "help: do this"
            ]
        );
    }
}
