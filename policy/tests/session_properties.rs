//! Random histories of a session (contract P4, P7, P8, P9).
//!
//! A history is driven through the public types as a launcher does it: events are stored one by one, permits come from
//! answers. After each step the live state must be what a replay of the log gives, and each run's mode must be one
//! that the log itself accounts for, told by a second, simpler reading of the log.
#![expect(clippy::unwrap_used, reason = "a test")]

use proptest::prelude::*;
use stockade_policy::{
    ApprovalAnswer, ApprovalOutcome, ApprovalPolicy, ApprovalRequest, Deployment, Escalation, Mode,
    ModeSource, Permit, Preset, Resolution, SessionEvent, SessionState, Verdict,
};

#[derive(Clone, Debug)]
enum Step {
    Mode(Mode),
    Approval(ApprovalPolicy),
    /// A preset of which only this many events reach the log.
    Preset(usize, usize),
    /// A question and its answer; `None` is an approver that died.
    Ask(Mode, Option<Verdict>),
    /// A run with the oldest unused permit, or without.
    Run(bool),
    Finish,
    /// A forged event: a run that claims an approval it may not have.
    Forge(Mode, usize),
}

fn mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(Mode::ALL.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    let verdict = prop::option::weighted(
        0.9,
        prop::sample::select(vec![Verdict::AllowedOnce, Verdict::Rejected, Verdict::Cancelled]),
    );
    prop_oneof![
        mode().prop_map(Step::Mode),
        prop::sample::select(vec![ApprovalPolicy::Ask, ApprovalPolicy::Never])
            .prop_map(Step::Approval),
        (0..2usize, 0..4usize).prop_map(|(index, count)| Step::Preset(index, count)),
        (mode(), verdict).prop_map(|(to, verdict)| Step::Ask(to, verdict)),
        any::<bool>().prop_map(Step::Run),
        Just(Step::Finish),
        (mode(), 0..20usize).prop_map(|(mode, request)| Step::Forge(mode, request)),
    ]
}

/// The session's mode by a plain reading of the log: the last mode event that stands alone, or whose preset is whole.
fn mode_by_reading(log: &[SessionEvent]) -> Option<Mode> {
    let whole = |index: usize| {
        let [a, b, c] = [index.checked_sub(1)?, index, index + 1].map(|index| log.get(index));
        let (Some(SessionEvent::Preset { preset }), Some(b), Some(c)) = (a, b, c) else {
            return None;
        };
        let named = matches!(b, SessionEvent::Mode { preset: Some(name), .. } if name == preset)
            && matches!(c, SessionEvent::Approval { preset: Some(name), .. } if name == preset);
        named.then_some(())
    };
    log.iter().enumerate().rev().find_map(|(index, event)| {
        let SessionEvent::Mode { mode, preset } = event else { return None };
        (preset.is_none() || whole(index).is_some()).then_some(*mode)
    })
}

struct Session {
    default: Mode,
    log: Vec<SessionEvent>,
    state: SessionState,
    permits: Vec<Permit>,
    requests: usize,
    runs: Vec<String>,
    started: usize,
}

impl Session {
    fn store(&mut self, event: SessionEvent) -> bool {
        let stored = self.state.apply(&event).is_ok();
        if stored {
            self.log.push(event);
        }
        stored
    }

    fn ask(&mut self, to: Mode, verdict: Option<Verdict>) {
        let from = self.state.resolve(self.default, None).mode;
        let Ok(escalation) = Escalation::new(from, to, "because") else {
            assert!(to <= from);
            return;
        };
        self.requests += 1;
        let id = format!("e{}", self.requests);
        let argv = vec!["make".into()];
        let request = ApprovalRequest {
            v: 1,
            id: id.clone(),
            session: Some("s".into()),
            escalation: escalation.clone(),
            argv: argv.clone(),
            cwd: "/w".into(),
            refused: Vec::new(),
        };
        assert!(self.store(SessionEvent::Requested { request: id.clone(), escalation, argv }));
        let answer = verdict
            .map(|decision| ApprovalAnswer { decision, id: None, reason: None })
            .ok_or_else(|| "the approver died".to_owned());
        let outcome = request.settle(answer);
        let decided = SessionEvent::Decided { request: id, outcome: outcome.kind(), reason: None };
        assert!(self.store(decided));
        assert_eq!(outcome.code().is_none(), verdict == Some(Verdict::AllowedOnce));
        if let ApprovalOutcome::AllowedOnce(permit) = outcome {
            self.permits.push(permit);
        }
    }

    fn run(&mut self, with_permit: bool) {
        let permit = (with_permit && !self.permits.is_empty()).then(|| self.permits.remove(0));
        let (request, allowed) =
            permit.as_ref().map(|permit| (permit.request().to_owned(), permit.mode())).unzip();
        let session = mode_by_reading(&self.log);
        let Resolution { mode, source } = self.state.resolve(self.default, permit);
        let base = session.unwrap_or(self.default);
        match source {
            ModeSource::Approved => {
                assert!(mode > base, "an approved mode is wider");
                assert_eq!(Some(mode), allowed);
            }
            ModeSource::Session => assert_eq!(Some(mode), session),
            ModeSource::Default => assert_eq!((mode, session), (self.default, None)),
        }
        self.started += 1;
        let run = format!("r{}", self.started);
        let request = request.filter(|_| source == ModeSource::Approved);
        let argv = Vec::new();
        let event = SessionEvent::Started {
            run: run.clone(),
            mode,
            source,
            request,
            argv,
            terminal: false,
        };
        assert!(self.store(event));
        self.runs.push(run);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Mode(mode) => assert!(self.store(SessionEvent::mode(mode))),
            Step::Approval(policy) => assert!(self.store(SessionEvent::approval(policy))),
            Step::Preset(index, count) => {
                let deployment = Deployment { confines: true, approves: true };
                let events = Preset::SHIPPED[index].events(deployment).unwrap();
                for event in events.into_iter().take(count) {
                    assert!(self.store(event));
                }
            }
            Step::Ask(to, verdict) => self.ask(to, verdict),
            Step::Run(with_permit) => self.run(with_permit),
            Step::Finish => {
                if let Some(run) = self.runs.pop() {
                    let outcome = "exited".to_owned();
                    let (exit_code, signal) = (Some(0), None);
                    assert!(self.store(SessionEvent::Finished { run, outcome, exit_code, signal }));
                }
            }
            Step::Forge(mode, request) => {
                let request = format!("e{request}");
                let held = self.permits.iter().find(|permit| permit.request() == request);
                let allowed = held.is_some_and(|permit| permit.mode() == mode);
                let event = SessionEvent::Started {
                    run: "forged".into(),
                    mode,
                    source: ModeSource::Approved,
                    request: Some(request),
                    argv: Vec::new(),
                    terminal: false,
                };
                if !allowed {
                    let used = self.log.iter().any(|stored| {
                        matches!((stored, &event), (
                            SessionEvent::Started { request: Some(a), .. },
                            SessionEvent::Started { request: Some(b), .. },
                        ) if a == b)
                    });
                    let mut state = self.state.clone();
                    let stored = state.apply(&event).is_ok();
                    assert!(!(stored && used), "an approval was used twice");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn replay_is_the_live_state_and_no_mode_is_wider_than_the_log_accounts_for(
        default in mode(),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut session = Session {
            default,
            log: Vec::new(),
            state: SessionState::default(),
            permits: Vec::new(),
            requests: 0,
            runs: Vec::new(),
            started: 0,
        };
        let created = SessionEvent::Created { id: "s".into(), name: None, root: "/w".into() };
        prop_assert!(session.store(created));
        for step in steps {
            session.take(step);
            let replayed = SessionState::replay(&session.log).unwrap();
            prop_assert_eq!(&replayed, &session.state);
            prop_assert_eq!(session.state.mode(), mode_by_reading(&session.log));
        }
        // What was stored as text is the same session.
        let stored: Vec<String> =
            session.log.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let read: Vec<SessionEvent> =
            stored.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        prop_assert_eq!(&read, &session.log);
        // The state at each earlier event is the replay of that many.
        for count in 1..=session.log.len() {
            let state = SessionState::replay(session.log.iter().take(count)).unwrap();
            prop_assert_eq!(state.mode(), mode_by_reading(&session.log[..count]));
            prop_assert_eq!(state.events(), u64::try_from(count).unwrap());
        }
    }
}
