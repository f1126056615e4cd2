//! Asking for a wider mode, once (contract P8), and which mode is in force (contract P4).
//!
//! Invariants:
//! - I1: an [`Escalation`] is strictly wider than what it starts from, and has a justification.
//! - I2: a [`Permit`] comes only from an answer `allowed-once` to its own request, can't be copied, and is used up by
//!   the one resolution that it widens.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::{Bytes, sanitise, shorten};
use crate::{Mode, ModeSource, Policy};

/// A wish for a strictly wider mode, with its justification.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawEscalation", into = "RawEscalation")]
pub struct Escalation {
    from: Mode,
    to: Mode,
    justification: String,
}

#[derive(Serialize, Deserialize)]
struct RawEscalation {
    from: Mode,
    to: Mode,
    justification: String,
}

impl TryFrom<RawEscalation> for Escalation {
    type Error = EscalationError;

    fn try_from(raw: RawEscalation) -> Result<Self, Self::Error> {
        Self::new(raw.from, raw.to, raw.justification)
    }
}

impl From<Escalation> for RawEscalation {
    fn from(escalation: Escalation) -> Self {
        let Escalation { from, to, justification } = escalation;
        Self { from, to, justification }
    }
}

/// An escalation that can't be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EscalationError {
    /// The wanted mode isn't wider than the one in force.
    #[error("`{to}` is not wider than `{from}`, which is in force")]
    NotWider {
        /// The mode in force.
        from: Mode,
        /// The wanted mode.
        to: Mode,
    },
    /// A mode is wanted without a justification.
    #[error("`--sandbox-permissions` needs a `--justification`")]
    NoJustification,
    /// A justification is given without a wanted mode.
    #[error("`--justification` needs `--sandbox-permissions`")]
    NoMode,
}

impl EscalationError {
    /// Returns the stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotWider { .. } => "ESCALATION_NOT_WIDER",
            Self::NoJustification | Self::NoMode => "ESCALATION_UNPAIRED",
        }
    }
}

impl Escalation {
    /// Makes the wish to widen `from` to `to`.
    ///
    /// # Errors
    /// `to` isn't strictly wider, or the justification is blank.
    pub fn new(
        from: Mode,
        to: Mode,
        justification: impl Into<String>,
    ) -> Result<Self, EscalationError> {
        let justification = justification.into();
        if justification.trim().is_empty() {
            return Err(EscalationError::NoJustification);
        }
        if to <= from {
            return Err(EscalationError::NotWider { from, to });
        }
        Ok(Self { from, to, justification })
    }

    /// Makes the wish from the two options that come together or not at all.
    ///
    /// # Errors
    /// One option without the other, or a wish that [`Escalation::new`] refuses.
    pub fn from_options(
        from: Mode,
        to: Option<Mode>,
        justification: Option<&str>,
    ) -> Result<Option<Self>, EscalationError> {
        match (to, justification) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(EscalationError::NoJustification),
            (None, Some(_)) => Err(EscalationError::NoMode),
            (Some(to), Some(justification)) => Self::new(from, to, justification).map(Some),
        }
    }

    /// Returns the mode in force.
    #[must_use]
    pub const fn from(&self) -> Mode {
        self.from
    }

    /// Returns the wanted mode.
    #[must_use]
    pub const fn to(&self) -> Mode {
        self.to
    }

    /// Returns the justification as it was given. To show it, sanitise it.
    #[must_use]
    pub fn justification(&self) -> &str {
        &self.justification
    }
}

/// What was refused before, told to whoever approves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedBefore {
    /// The operation's stable name.
    pub op: String,
    /// The target.
    pub path: Bytes,
    /// The rule's stable name.
    pub rule: String,
}

/// What an approver is asked, version 1: the JSON that an approver command reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The format's version.
    pub v: u32,
    /// The request's id, unique within its session.
    pub id: String,
    /// The session, if the call belongs to one.
    pub session: Option<String>,
    /// The mode in force, the wanted one, and why.
    #[serde(flatten)]
    pub escalation: Escalation,
    /// The command that would run.
    pub argv: Vec<Bytes>,
    /// Where it would run.
    pub cwd: Bytes,
    /// What was refused to the same command before.
    #[serde(default)]
    pub refused: Vec<RefusedBefore>,
}

/// The word that an approver answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// This call, once.
    AllowedOnce,
    /// No.
    Rejected,
    /// The asking was called off.
    #[serde(alias = "canceled")]
    Cancelled,
}

/// What an approver answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalAnswer {
    /// The verdict.
    pub decision: Verdict,
    /// The request that is answered, where the approver repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the approver says to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a request ended. Only [`ApprovalOutcome::AllowedOnce`] runs the command.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "nothing may run before its approval is looked at"]
pub enum ApprovalOutcome {
    /// Once, under the wider mode.
    AllowedOnce(Permit),
    /// The approver said no.
    Rejected {
        /// What the approver said to it, made safe to show.
        reason: Option<String>,
    },
    /// The asking was called off, by the approver or by a signal.
    Cancelled,
    /// Nobody answered: no approver, a dead one, a timeout, or an answer that can't be understood.
    Unavailable {
        /// What was wrong.
        reason: String,
    },
}

/// One call under a wider mode. It can't be copied, and resolving a mode uses it up.
#[derive(Debug, PartialEq, Eq)]
pub struct Permit {
    request: String,
    from: Mode,
    to: Mode,
}

impl Permit {
    /// Returns the id of the request that was allowed.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.request
    }

    /// Returns the allowed mode.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.to
    }
}

impl ApprovalRequest {
    /// Ends the request with what came back from the approver. This is the only source of a [`Permit`]; it takes the
    /// request, so one request makes at most one.
    pub fn settle(self, answer: Result<ApprovalAnswer, String>) -> ApprovalOutcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(reason) => return ApprovalOutcome::Unavailable { reason },
        };
        if answer.id.as_ref().is_some_and(|id| *id != self.id) {
            let reason = "the approver answered another request".to_owned();
            return ApprovalOutcome::Unavailable { reason };
        }
        match answer.decision {
            Verdict::AllowedOnce => ApprovalOutcome::AllowedOnce(Permit {
                request: self.id,
                from: self.escalation.from,
                to: self.escalation.to,
            }),
            Verdict::Rejected => ApprovalOutcome::Rejected {
                reason: answer.reason.map(|reason| shorten(&sanitise(&reason), 1000)),
            },
            Verdict::Cancelled => ApprovalOutcome::Cancelled,
        }
    }
}

impl ApprovalOutcome {
    /// Returns the stable code of an outcome that runs nothing.
    #[must_use]
    pub const fn code(&self) -> Option<&'static str> {
        match self {
            Self::AllowedOnce(_) => None,
            Self::Rejected { .. } => Some("APPROVAL_REJECTED"),
            Self::Cancelled => Some("APPROVAL_CANCELED"),
            Self::Unavailable { .. } => Some("APPROVAL_UNAVAILABLE"),
        }
    }

    /// Returns the outcome as a session's event keeps it.
    #[must_use]
    pub const fn kind(&self) -> OutcomeKind {
        match self {
            Self::AllowedOnce(_) => OutcomeKind::AllowedOnce,
            Self::Rejected { .. } => OutcomeKind::Rejected,
            Self::Cancelled => OutcomeKind::Cancelled,
            Self::Unavailable { .. } => OutcomeKind::Unavailable,
        }
    }
}

/// An [`ApprovalOutcome`] without what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeKind {
    /// Once, under the wider mode.
    AllowedOnce,
    /// The approver said no.
    Rejected,
    /// The asking was called off.
    Cancelled,
    /// Nobody answered.
    Unavailable,
}

impl OutcomeKind {
    /// Returns the stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllowedOnce => "allowed-once",
            Self::Rejected => "rejected",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Whether a wider mode may be asked for at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalPolicy {
    /// A person or the operator's command decides.
    #[default]
    Ask,
    /// Never: every request is unavailable.
    Never,
}

impl ApprovalPolicy {
    /// Returns the policy's name as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Never => "never",
        }
    }
}

impl fmt::Display for ApprovalPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The mode of one call, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The mode in force.
    pub mode: Mode,
    /// Which of the three it came from.
    pub source: ModeSource,
}

impl Resolution {
    /// Resolves the mode of one call: an approved mode, else the session's, else the deployment's default (contract
    /// P4). A permit counts only while what was shown to the approver still holds: if the session was narrowed since,
    /// or is as wide by now, the session's mode stays.
    #[must_use]
    pub fn resolve(default: Mode, session: Option<Mode>, permit: Option<Permit>) -> Self {
        let base = session.map_or(Self { mode: default, source: ModeSource::Default }, |mode| {
            Self { mode, source: ModeSource::Session }
        });
        match permit {
            Some(permit) if permit.from <= base.mode && permit.to > base.mode => {
                Self { mode: permit.to, source: ModeSource::Approved }
            }
            _ => base,
        }
    }

    /// Writes the resolution into a policy.
    pub fn apply(self, policy: &mut Policy) {
        policy.mode = self.mode;
        policy.source = self.source;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(from: Mode, to: Mode) -> ApprovalRequest {
        ApprovalRequest {
            v: 1,
            id: "r1".into(),
            session: None,
            escalation: Escalation::new(from, to, "because").unwrap(),
            argv: vec![Bytes::from("make")],
            cwd: Bytes::from("/w"),
            refused: Vec::new(),
        }
    }

    #[test]
    fn the_ladder_is_strict_and_needs_both_options() {
        for from in Mode::ALL {
            for to in Mode::ALL {
                let made = Escalation::new(from, to, "x");
                assert_eq!(made.is_ok(), to > from, "{from} {to}");
                if let Err(error) = made {
                    assert_eq!(error.code(), "ESCALATION_NOT_WIDER");
                }
                let json = format!(r#"{{"from":"{from}","to":"{to}","justification":"x"}}"#);
                assert_eq!(serde_json::from_str::<Escalation>(&json).is_ok(), to > from);
            }
        }
        let ro = Mode::ReadOnly;
        let full = Some(Mode::DangerFullAccess);
        for (to, why) in [(full, None), (None, Some("x")), (full, Some(" \n"))] {
            let error = Escalation::from_options(ro, to, why).unwrap_err();
            assert_eq!(error.code(), "ESCALATION_UNPAIRED", "{to:?} {why:?}");
        }
        assert_eq!(Escalation::from_options(ro, None, None), Ok(None));
    }

    #[test]
    fn only_allowed_once_for_this_request_makes_a_permit() {
        let answer = |text: &str| serde_json::from_str(text).map_err(|_| "malformed".to_owned());
        #[rustfmt::skip]
        let rows = [
            (r#"{"decision":"allowed-once"}"#, OutcomeKind::AllowedOnce),
            (r#"{"decision":"allowed-once","id":"r1","note":1}"#, OutcomeKind::AllowedOnce),
            (r#"{"decision":"allowed-once","id":"r0"}"#, OutcomeKind::Unavailable),
            (r#"{"decision":"rejected","reason":"no"}"#, OutcomeKind::Rejected),
            (r#"{"decision":"cancelled"}"#, OutcomeKind::Cancelled),
            (r#"{"decision":"allowed-always"}"#, OutcomeKind::Unavailable),
            (r#"{"decision":"Allowed-Once"}"#, OutcomeKind::Unavailable),
            (r#"{}"#, OutcomeKind::Unavailable),
            ("allowed-once", OutcomeKind::Unavailable),
            ("", OutcomeKind::Unavailable),
        ];
        for (text, kind) in rows {
            let outcome = request(Mode::ReadOnly, Mode::WorkspaceWrite).settle(answer(text));
            assert_eq!(outcome.kind(), kind, "{text}");
            assert_eq!(outcome.code().is_none(), kind == OutcomeKind::AllowedOnce, "{text}");
        }
    }

    #[test]
    fn approved_goes_before_session_goes_before_default() {
        let permit = || {
            let answer = ApprovalAnswer { decision: Verdict::AllowedOnce, id: None, reason: None };
            let outcome = request(Mode::ReadOnly, Mode::WorkspaceWrite).settle(Ok(answer));
            let ApprovalOutcome::AllowedOnce(permit) = outcome else { panic!("{outcome:?}") };
            permit
        };
        let (ro, ww, full) = (Mode::ReadOnly, Mode::WorkspaceWrite, Mode::DangerFullAccess);
        for (default, session, permit, mode, source) in [
            (ro, None, None, ro, ModeSource::Default),
            (full, Some(ro), None, ro, ModeSource::Session),
            (full, Some(ro), Some(permit()), ww, ModeSource::Approved),
            (ro, None, Some(permit()), ww, ModeSource::Approved),
            (ro, Some(full), Some(permit()), full, ModeSource::Session),
            (ro, Some(ww), Some(permit()), ww, ModeSource::Session),
        ] {
            assert_eq!(Resolution::resolve(default, session, permit), Resolution { mode, source });
        }
    }

    #[test]
    fn a_permit_is_void_once_the_session_was_narrowed() {
        let answer = ApprovalAnswer { decision: Verdict::AllowedOnce, id: None, reason: None };
        let request = request(Mode::WorkspaceWrite, Mode::DangerFullAccess);
        let ApprovalOutcome::AllowedOnce(permit) = request.settle(Ok(answer)) else { panic!() };
        let resolution =
            Resolution::resolve(Mode::WorkspaceWrite, Some(Mode::ReadOnly), Some(permit));
        assert_eq!(resolution.mode, Mode::ReadOnly);
    }

    #[test]
    fn a_request_is_one_flat_object() {
        let json = serde_json::to_value(request(Mode::ReadOnly, Mode::WorkspaceWrite)).unwrap();
        assert_eq!(json["from"], "read-only");
        assert_eq!(json["to"], "workspace-write");
        assert_eq!(json["argv"][0], "make");
        assert_eq!(json["v"], 1);
    }
}
