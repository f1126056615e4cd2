//! `--sandbox-permissions`: a wider mode for one run, after somebody said yes (contract P8).

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use stockade_observe::Store;
use stockade_policy::text::Bytes;
use stockade_policy::{
    ApprovalPolicy, ApprovalRequest, Escalation, EscalationError, Mode, Permit, RefusedBefore,
};

use super::Call;
use crate::approve::{self, Approver, Asking, Wait};
use crate::cli::complain;
use crate::config::Effective;
use crate::error::{Code, Failure};
use crate::session::{Session, arguments};
use crate::sys::{SignalFd, SignalSet};

/// A wider mode for one run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Asking for more")]
pub(super) struct ApprovalArgs {
    /// Ask for this wider mode, for this run alone.
    #[arg(long, value_name = "MODE")]
    sandbox_permissions: Option<Mode>,
    /// Why: whoever approves reads it.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    justification: Option<String>,
    /// Who approves: a shell command that reads the request as JSON and answers {"decision": "allowed-once"}, "rejected"
    /// or "cancelled". [default: the configuration's, else the terminal is asked]
    #[arg(long, value_name = "COMMAND")]
    approver: Option<OsString>,
    /// Wait for an answer from elsewhere: `stockade top` or `stockade session approve` on another terminal.
    #[arg(long, conflicts_with = "approver")]
    ask_elsewhere: bool,
}

/// Signals that call the asking off.
fn ending() -> SignalSet {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
        .into_iter()
        .fold(SignalSet::default(), SignalSet::with)
}

/// How many earlier refusals an approver is told.
const REFUSALS: usize = 50;

impl ApprovalArgs {
    /// Returns the escalation that the options ask for, from the mode in force.
    pub(super) fn escalation(&self, from: Mode) -> Result<Option<Escalation>, Failure> {
        let justification = self.justification.as_deref();
        Escalation::from_options(from, self.sandbox_permissions, justification).map_err(|error| {
            let (code, help) = match error {
                EscalationError::NotWider { .. } => (
                    Code::EscalationNotWider,
                    "leave out `--sandbox-permissions`: the mode in force allows as much",
                ),
                EscalationError::NoJustification | EscalationError::NoMode => {
                    (Code::EscalationUnpaired, "give both or neither")
                }
            };
            Failure::new(code, error.to_string()).help(help)
        })
    }

    /// Asks, and returns the permit for one run.
    pub(super) fn ask(
        &self,
        escalation: Escalation,
        session: &Session,
        effective: &Effective,
        call: &Call,
        state: &Path,
        quiet: bool,
    ) -> Result<Permit, Failure> {
        let system = |error: std::io::Error| {
            Failure::new(Code::RunnerFailed, "can't prepare to ask").because(error)
        };
        let settings = &effective.settings;
        let request = ApprovalRequest {
            v: 1,
            id: super::new_id()?,
            session: Some(session.id().to_owned()),
            escalation,
            argv: arguments(&call.argv),
            cwd: Bytes::new(call.cwd.as_os_str().as_bytes()),
            refused: refused_before(session.store(), &call.argv),
        };
        let configured = settings.ask_elsewhere.as_ref().is_some_and(|set| set.value);
        let elsewhere = self.ask_elsewhere || configured;
        let mut approver: Box<dyn Approver> = match (&self.approver, &settings.approver) {
            (Some(command), _) => Box::new(approve::Command::shell(command)),
            (None, _) if elsewhere => Box::new(approve::Queue::new(state)?),
            (None, Some(words)) => {
                Box::new(approve::Command::new(words.value.iter().map(OsString::from).collect()))
            }
            (None, None) => Box::new(approve::Terminal),
        };
        if self.approver.is_none() && elsewhere && !quiet {
            complain(&format!(
                "stockade: waiting for an answer: `stockade top`, or `stockade session approve {}`",
                request.id
            ));
        }
        let limit = settings
            .approver_timeout
            .as_ref()
            .map_or(Duration::from_secs(300), |limit| limit.value);
        let signals = SignalFd::new(ending()).map_err(system)?;
        let asking = Asking {
            policy: approval_policy(session, effective)?,
            approver: &mut *approver,
            wait: Wait::new(limit, Some(signals.as_fd())),
            default: effective.mode(),
        };
        approve::escalate(session, request, asking)
    }
}

/// Returns the approval policy in force: the session's, else the configuration's.
pub(super) fn approval_policy(
    session: &Session,
    effective: &Effective,
) -> Result<ApprovalPolicy, Failure> {
    let configured = effective.settings.approval_policy.as_ref();
    Ok(session
        .state()?
        .approval_event()
        .or(configured.map(|policy| policy.value))
        .unwrap_or_default())
}

/// Returns what was refused to the same command before, when it last ran in this session.
fn refused_before(store: &Store, argv: &[OsString]) -> Vec<RefusedBefore> {
    let runs = store.runs().unwrap_or_default();
    let last = runs.into_iter().rfind(|run| run.info.argv == argv);
    let summary = last.and_then(|run| run.end?.summary);
    let denials = summary.map(|summary| summary.denials).unwrap_or_default();
    denials
        .iter()
        .take(REFUSALS)
        .map(|denial| RefusedBefore {
            op: denial.op.as_str().to_owned(),
            path: Bytes::new(denial.path.as_os_str().as_bytes()),
            rule: denial.rule.as_str().to_owned(),
        })
        .collect()
}
