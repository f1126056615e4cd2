//! A session as the fold of its events (contract P7).
//!
//! Invariants:
//! - I1: the state is a function of the events in order, and of nothing else.
//! - I2: the mode changes by `sandbox/mode` alone. An approval never becomes the session's mode, and is used up by the
//!   one run that starts with it.
//! - I3: a preset's three events count together or not at all: the second and the third name the preset, the old state
//!   holds until the third is there, and any other event in between drops the switch.
//! - I4: an event of a known kind that can't be read is an error, never an unknown event: a fold that skipped a mode
//!   would be wider than asked.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::text::Bytes;
use crate::{
    ApprovalPolicy, Escalation, Mode, ModeSource, OutcomeKind, Permit, Preset, Resolution,
};

/// One event of a session. The store adds the sequence number and the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum SessionEvent {
    /// The first event.
    #[serde(rename = "session/created")]
    Created {
        /// The session's id.
        id: String,
        /// The name it can be resumed by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The canonical root, for good (contract P5).
        root: Bytes,
    },
    /// A preset is chosen; its mode and its approval policy follow.
    #[serde(rename = "permission/preset")]
    Preset {
        /// The preset's name.
        preset: String,
    },
    /// The session's mode.
    #[serde(rename = "sandbox/mode")]
    Mode {
        /// The mode from here on.
        mode: Mode,
        /// The preset whose second event this is (I3).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preset: Option<String>,
    },
    /// The session's approval policy.
    #[serde(rename = "approval/policy")]
    Approval {
        /// The policy from here on.
        policy: ApprovalPolicy,
        /// The preset whose third event this is (I3).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preset: Option<String>,
    },
    /// A wider mode is asked for, for one call.
    #[serde(rename = "escalation/requested")]
    Requested {
        /// The request's id, unique within the session.
        request: String,
        /// The ladder and the justification.
        #[serde(flatten)]
        escalation: Escalation,
        /// The command.
        argv: Vec<Bytes>,
    },
    /// The request is answered.
    #[serde(rename = "escalation/decided")]
    Decided {
        /// The request's id.
        request: String,
        /// How it ended.
        outcome: OutcomeKind,
        /// What was said to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A run starts.
    #[serde(rename = "run/started")]
    Started {
        /// The run's id, unique within the session.
        run: String,
        /// The mode it was resolved to.
        mode: Mode,
        /// Where the mode came from.
        source: ModeSource,
        /// The allowed request that an approved mode comes from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// The command.
        argv: Vec<Bytes>,
        /// A terminal: the mode can't change while it lives (contract L7).
        #[serde(default)]
        terminal: bool,
    },
    /// A run ends.
    #[serde(rename = "run/finished")]
    Finished {
        /// The run's id.
        run: String,
        /// The outcome as the result names it.
        outcome: String,
        /// The exit code of a command that exited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// An event of a kind that this version doesn't know. It is kept and changes nothing.
    #[serde(untagged)]
    Other(OtherEvent),
}

/// An event of a kind that this version doesn't know, as it was stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct OtherEvent {
    fields: Map<String, Value>,
}

/// The text isn't an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtherEventError {
    /// It has no kind.
    #[error("an event needs a `type` that is a string")]
    NoType,
    /// It is of a known kind (I4).
    #[error("event `{0}` can't be read")]
    Known(String),
}

impl TryFrom<Map<String, Value>> for OtherEvent {
    type Error = OtherEventError;

    fn try_from(fields: Map<String, Value>) -> Result<Self, Self::Error> {
        match fields.get("type").and_then(Value::as_str) {
            None => Err(OtherEventError::NoType),
            Some(kind) if SessionEvent::KINDS.contains(&kind) => {
                Err(OtherEventError::Known(kind.to_owned()))
            }
            Some(_) => Ok(Self { fields }),
        }
    }
}

impl From<OtherEvent> for Map<String, Value> {
    fn from(event: OtherEvent) -> Self {
        event.fields
    }
}

impl SessionEvent {
    /// Every kind that this version knows.
    pub const KINDS: [&'static str; 8] = [
        "session/created",
        "permission/preset",
        "sandbox/mode",
        "approval/policy",
        "escalation/requested",
        "escalation/decided",
        "run/started",
        "run/finished",
    ];

    /// Makes the event that changes the session's mode by itself.
    #[must_use]
    pub const fn mode(mode: Mode) -> Self {
        Self::Mode { mode, preset: None }
    }

    /// Makes the event that changes the session's approval policy by itself.
    #[must_use]
    pub const fn approval(policy: ApprovalPolicy) -> Self {
        Self::Approval { policy, preset: None }
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Created { .. } => "session/created",
            Self::Preset { .. } => "permission/preset",
            Self::Mode { .. } => "sandbox/mode",
            Self::Approval { .. } => "approval/policy",
            Self::Requested { .. } => "escalation/requested",
            Self::Decided { .. } => "escalation/decided",
            Self::Started { .. } => "run/started",
            Self::Finished { .. } => "run/finished",
            Self::Other(event) => {
                event.fields.get("type").and_then(Value::as_str).unwrap_or_default()
            }
        }
    }
}

/// An event that can't follow the ones before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The first event is another one.
    #[error("a session begins with `session/created`, not with `{0}`")]
    NotCreated(String),
    /// The root and the id can't be set twice.
    #[error("the session was created already")]
    CreatedTwice,
    /// The request or run exists already.
    #[error("`{0}` exists already")]
    Duplicate(String),
    /// The decision or end belongs to nothing that is open.
    #[error("nothing called `{0}` is open")]
    NotOpen(String),
    /// A run claims an approval that it doesn't have.
    #[error("run `{0}` has no approval for its mode")]
    NotApproved(String),
    /// A terminal is open, so the mode can't change.
    #[error("a terminal of this session is open (run `{0}`), so its mode can't change")]
    Busy(String),
}

impl SessionError {
    /// Returns the stable code, where the contract has one.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Busy(_) => "SESSION_BUSY",
            Self::NotCreated(_)
            | Self::CreatedTwice
            | Self::Duplicate(_)
            | Self::NotOpen(_)
            | Self::NotApproved(_) => "POLICY_INVALID",
        }
    }
}

/// Which event of a replay couldn't be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {at} can't follow the ones before it")]
pub struct ReplayError {
    /// The event's place, from 1.
    pub at: u64,
    /// Why.
    pub source: SessionError,
}

/// A run that has not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveRun {
    /// The mode it was resolved to.
    pub mode: Mode,
    /// Where the mode came from.
    pub source: ModeSource,
    /// Whether it is a terminal.
    pub terminal: bool,
}

/// A preset of which not all events are there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Switch {
    preset: String,
    mode: Option<Mode>,
}

/// What a session's events add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    id: Option<String>,
    name: Option<String>,
    root: Bytes,
    mode: Option<Mode>,
    approval: Option<ApprovalPolicy>,
    chosen: Option<String>,
    switch: Option<Switch>,
    pending: BTreeMap<String, Escalation>,
    allowed: BTreeMap<String, Escalation>,
    decided: BTreeSet<String>,
    active: BTreeMap<String, ActiveRun>,
    finished: BTreeSet<String>,
    events: u64,
}

impl SessionState {
    /// Folds a session's events. Stop the iterator early to get the state at an earlier event.
    ///
    /// # Errors
    /// The first event that can't follow the ones before it: the log was changed.
    pub fn replay<'a>(
        events: impl IntoIterator<Item = &'a SessionEvent>,
    ) -> Result<Self, ReplayError> {
        let mut state = Self::default();
        for event in events {
            state.apply(event).map_err(|source| ReplayError { at: state.events + 1, source })?;
        }
        Ok(state)
    }

    /// Takes one event that was stored. On an error the state is as before.
    ///
    /// # Errors
    /// The event can't follow the ones before it.
    pub fn apply(&mut self, event: &SessionEvent) -> Result<(), SessionError> {
        self.follows(event)?;
        let switch = self.switch.take();
        match event {
            SessionEvent::Created { id, name, root } => {
                self.id = Some(id.clone());
                self.name.clone_from(name);
                self.root = root.clone();
            }
            SessionEvent::Preset { preset } => {
                self.switch = Some(Switch { preset: preset.clone(), mode: None });
            }
            SessionEvent::Mode { mode, preset: None } => self.mode = Some(*mode),
            SessionEvent::Mode { mode, preset: Some(part) } => {
                self.switch = switch
                    .filter(|switch| switch.preset == *part && switch.mode.is_none())
                    .map(|switch| Switch { mode: Some(*mode), ..switch });
            }
            SessionEvent::Approval { policy, preset: None } => self.approval = Some(*policy),
            SessionEvent::Approval { policy, preset: Some(part) } => {
                if let Some(Switch { preset, mode: Some(mode) }) = switch
                    && preset == *part
                {
                    self.mode = Some(mode);
                    self.approval = Some(*policy);
                    self.chosen = Some(preset);
                }
            }
            SessionEvent::Requested { request, escalation, .. } => {
                self.pending.insert(request.clone(), escalation.clone());
            }
            SessionEvent::Decided { request, outcome, .. } => {
                let escalation = self.pending.remove(request);
                if let (OutcomeKind::AllowedOnce, Some(escalation)) = (outcome, escalation) {
                    self.allowed.insert(request.clone(), escalation);
                }
                self.decided.insert(request.clone());
            }
            SessionEvent::Started { run, mode, source, request, terminal, .. } => {
                if let Some(request) = request {
                    self.allowed.remove(request);
                }
                let active = ActiveRun { mode: *mode, source: *source, terminal: *terminal };
                self.active.insert(run.clone(), active);
            }
            SessionEvent::Finished { run, .. } => {
                self.active.remove(run);
                self.finished.insert(run.clone());
            }
            SessionEvent::Other(_) => {}
        }
        self.events += 1;
        Ok(())
    }

    /// Tells whether an event may be appended now: it follows the others, and it doesn't change the mode under an open
    /// terminal. The store asks within the transaction that appends.
    ///
    /// # Errors
    /// Why it may not.
    pub fn accepts(&self, event: &SessionEvent) -> Result<(), SessionError> {
        self.follows(event)?;
        let changes_mode = matches!(event, SessionEvent::Mode { .. } | SessionEvent::Preset { .. });
        match self.active.iter().find(|(_, run)| changes_mode && run.terminal) {
            Some((run, _)) => Err(SessionError::Busy(run.clone())),
            None => Ok(()),
        }
    }

    fn follows(&self, event: &SessionEvent) -> Result<(), SessionError> {
        if self.id.is_none() && !matches!(event, SessionEvent::Created { .. }) {
            return Err(SessionError::NotCreated(event.kind().to_owned()));
        }
        match event {
            SessionEvent::Created { .. } if self.id.is_some() => Err(SessionError::CreatedTwice),
            SessionEvent::Requested { request, .. }
                if self.pending.contains_key(request) || self.decided.contains(request) =>
            {
                Err(SessionError::Duplicate(request.clone()))
            }
            SessionEvent::Decided { request, .. } if !self.pending.contains_key(request) => {
                Err(SessionError::NotOpen(request.clone()))
            }
            SessionEvent::Started { run, .. }
                if self.active.contains_key(run) || self.finished.contains(run) =>
            {
                Err(SessionError::Duplicate(run.clone()))
            }
            SessionEvent::Started { run, mode, source, request, .. } => {
                let approved = request.as_ref().map(|request| self.allowed.get(request));
                let fits = match (source, approved) {
                    (ModeSource::Approved, Some(Some(allowed))) => allowed.to() == *mode,
                    (ModeSource::Approved, _) | (_, Some(None)) => false,
                    // An allowed request that the session's own mode made needless.
                    (ModeSource::Session | ModeSource::Default, _) => true,
                };
                fits.then_some(()).ok_or_else(|| SessionError::NotApproved(run.clone()))
            }
            SessionEvent::Finished { run, .. } if !self.active.contains_key(run) => {
                Err(SessionError::NotOpen(run.clone()))
            }
            SessionEvent::Created { .. }
            | SessionEvent::Preset { .. }
            | SessionEvent::Mode { .. }
            | SessionEvent::Approval { .. }
            | SessionEvent::Requested { .. }
            | SessionEvent::Decided { .. }
            | SessionEvent::Finished { .. }
            | SessionEvent::Other(_) => Ok(()),
        }
    }

    /// Resolves the mode of the next call (contract P4).
    #[must_use]
    pub fn resolve(&self, default: Mode, permit: Option<Permit>) -> Resolution {
        Resolution::resolve(default, self.mode, permit)
    }

    /// Returns the session's id, once it is created.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the name it can be resumed by.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the canonical root.
    #[must_use]
    pub fn root(&self) -> &std::path::Path {
        self.root.as_path()
    }

    /// Returns the mode of the last `sandbox/mode` event, if there was one.
    #[must_use]
    pub const fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Returns the approval policy: that of the last event, else `ask`.
    #[must_use]
    pub fn approval(&self) -> ApprovalPolicy {
        self.approval.unwrap_or_default()
    }

    /// Returns the approval policy of the last event, if there was one.
    #[must_use]
    pub const fn approval_event(&self) -> Option<ApprovalPolicy> {
        self.approval
    }

    /// Returns the name of the preset that the state is, given the deployment's default mode, or `custom`.
    #[must_use]
    pub fn preset(&self, default: Mode) -> &'static str {
        Preset::name_of(self.mode.unwrap_or(default), self.approval())
    }

    /// Returns the preset that was chosen last, which the state may have left since.
    #[must_use]
    pub fn chosen_preset(&self) -> Option<&str> {
        self.chosen.as_deref()
    }

    /// Returns the requests that wait for an answer, by id.
    #[must_use]
    pub const fn pending(&self) -> &BTreeMap<String, Escalation> {
        &self.pending
    }

    /// Returns the runs that have not finished, by id.
    #[must_use]
    pub const fn active(&self) -> &BTreeMap<String, ActiveRun> {
        &self.active
    }

    /// Returns how many events were taken.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created() -> SessionEvent {
        SessionEvent::Created { id: "s".into(), name: None, root: "/w".into() }
    }

    fn started(run: &str, mode: Mode, request: Option<&str>) -> SessionEvent {
        let source = if request.is_some() { ModeSource::Approved } else { ModeSource::Session };
        SessionEvent::Started {
            run: run.into(),
            mode,
            source,
            request: request.map(str::to_owned),
            argv: vec!["make".into()],
            terminal: false,
        }
    }

    fn finished(run: &str) -> SessionEvent {
        SessionEvent::Finished {
            run: run.into(),
            outcome: "exited".into(),
            exit_code: Some(0),
            signal: None,
        }
    }

    fn asked(request: &str, outcome: OutcomeKind) -> [SessionEvent; 2] {
        [
            SessionEvent::Requested {
                request: request.into(),
                escalation: Escalation::new(Mode::ReadOnly, Mode::WorkspaceWrite, "x").unwrap(),
                argv: Vec::new(),
            },
            SessionEvent::Decided { request: request.into(), outcome, reason: None },
        ]
    }

    #[test]
    fn an_approval_is_for_one_run_and_never_the_sessions_mode() {
        let mut state = SessionState::replay(&[created()]).unwrap();
        for event in asked("e", OutcomeKind::AllowedOnce) {
            state.apply(&event).unwrap();
        }
        assert_eq!(state.mode(), None);
        let wide = started("r1", Mode::WorkspaceWrite, Some("e"));
        let wider = started("r1", Mode::DangerFullAccess, Some("e"));
        assert_eq!(state.apply(&wider), Err(SessionError::NotApproved("r1".into())));
        state.apply(&wide).unwrap();
        let again = started("r2", Mode::WorkspaceWrite, Some("e"));
        assert_eq!(state.apply(&again), Err(SessionError::NotApproved("r2".into())));
        state.apply(&finished("r1")).unwrap();
        assert_eq!(state.apply(&again), Err(SessionError::NotApproved("r2".into())));
        assert_eq!(state.mode(), None);
        for event in asked("f", OutcomeKind::Rejected) {
            state.apply(&event).unwrap();
        }
        assert!(state.apply(&started("r3", Mode::WorkspaceWrite, Some("f"))).is_err());
    }

    #[test]
    fn a_part_of_a_preset_never_counts() {
        let preset = Preset::find("danger-full-access").unwrap();
        let events = preset.events(crate::Deployment { confines: true, approves: true }).unwrap();
        let mode = SessionEvent::mode(Mode::ReadOnly);
        for count in 0..=3 {
            let after = [
                None,
                Some(started("r", Mode::ReadOnly, None)),
                Some(SessionEvent::approval(ApprovalPolicy::Ask)),
            ];
            for interrupted in after {
                let whole =
                    count == 3 && !matches!(interrupted, Some(SessionEvent::Approval { .. }));
                let mut log = vec![created(), mode.clone()];
                log.extend_from_slice(&events[..count]);
                log.extend(interrupted.clone());
                let state = SessionState::replay(&log).unwrap();
                let expected = if count == 3 { Mode::DangerFullAccess } else { Mode::ReadOnly };
                assert_eq!(state.mode(), Some(expected), "{count} {interrupted:?}");
                let approval = if whole { ApprovalPolicy::Never } else { ApprovalPolicy::Ask };
                assert_eq!(state.approval(), approval, "{count} {interrupted:?}");
                let name = if whole { "danger-full-access" } else { "custom" };
                assert_eq!(state.preset(Mode::WorkspaceWrite), name);
            }
        }
    }

    #[test]
    fn the_mode_is_locked_while_a_terminal_lives() {
        let mut state = SessionState::replay(&[created()]).unwrap();
        let terminal = SessionEvent::Started {
            run: "t".into(),
            mode: Mode::WorkspaceWrite,
            source: ModeSource::Default,
            request: None,
            argv: Vec::new(),
            terminal: true,
        };
        state.apply(&terminal).unwrap();
        let mode = SessionEvent::mode(Mode::ReadOnly);
        assert_eq!(state.accepts(&mode).unwrap_err().code(), "SESSION_BUSY");
        state.apply(&finished("t")).unwrap();
        assert_eq!(state.accepts(&mode), Ok(()));
    }

    #[test]
    fn events_out_of_order_are_refused_and_change_nothing() {
        let mut state = SessionState::default();
        let mode = SessionEvent::mode(Mode::ReadOnly);
        assert!(matches!(state.apply(&mode), Err(SessionError::NotCreated(_))));
        state.apply(&created()).unwrap();
        let before = state.clone();
        assert_eq!(state.apply(&created()), Err(SessionError::CreatedTwice));
        assert_eq!(state.apply(&finished("r")), Err(SessionError::NotOpen("r".into())));
        assert!(state.apply(&asked("e", OutcomeKind::Rejected)[1]).is_err());
        assert_eq!(state, before);
        let error = SessionState::replay(&[created(), mode, created()]).unwrap_err();
        assert_eq!(error.at, 3);
    }

    #[test]
    fn an_unknown_kind_is_kept_and_a_broken_known_one_is_an_error() {
        let text = r#"{"type":"review/opened","by":"x","n":[1,2]}"#;
        let event: SessionEvent = serde_json::from_str(text).unwrap();
        assert_eq!(event.kind(), "review/opened");
        let again: Value = serde_json::to_value(&event).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
        let mut state = SessionState::replay(&[created()]).unwrap();
        let before = state.mode();
        state.apply(&event).unwrap();
        assert_eq!(state.mode(), before);
        for text in [
            r#"{"type":"sandbox/mode","mode":"bogus"}"#,
            r#"{"type":"sandbox/mode"}"#,
            r#"{"mode":"read-only"}"#,
            r#"{"type":"escalation/requested","request":"e","from":"read-only","to":"read-only","justification":"x","argv":[]}"#,
        ] {
            assert!(serde_json::from_str::<SessionEvent>(text).is_err(), "{text}");
        }
        let newer = r#"{"type":"sandbox/mode","mode":"read-only","why":"new field"}"#;
        assert!(serde_json::from_str::<SessionEvent>(newer).is_ok());
    }

    #[test]
    fn every_kind_round_trips() {
        let mut events = vec![created(), started("r", Mode::ReadOnly, Some("e")), finished("r")];
        events.extend(asked("e", OutcomeKind::Unavailable));
        events.push(SessionEvent::Preset { preset: "p".into() });
        events.push(SessionEvent::mode(Mode::ReadOnly));
        events.push(SessionEvent::approval(ApprovalPolicy::Never));
        events.push(SessionEvent::Created {
            id: "s".into(),
            name: Some("n".into()),
            root: Bytes::new(&b"/w/\xff"[..]),
        });
        let mut kinds = BTreeSet::new();
        for event in events {
            let json = serde_json::to_string(&event).unwrap();
            assert!(json.contains(&format!("\"type\":\"{}\"", event.kind())), "{json}");
            assert_eq!(serde_json::from_str::<SessionEvent>(&json).unwrap(), event, "{json}");
            kinds.insert(event.kind().to_owned());
        }
        assert_eq!(kinds, SessionEvent::KINDS.iter().map(|kind| (*kind).to_owned()).collect());
    }
}
