//! Pictures of `stockade top`, small and large, and its keys.

use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use stockade_observe::{
    Event, Op, Outcome, Process, RunId, RunInfo, RunRow, SessionId, Stored, Time,
};
use stockade_policy::text::Bytes;
use stockade_policy::{ApprovalRequest, Denial, Escalation, Mode, ModeSource, Rule};

use super::feed::News;
use super::*;

fn event(seq: i64, op: Op, path: &str, outcome: Outcome) -> Stored {
    let process = Process {
        pid: 4711,
        exe: "/usr/bin/make".into(),
        cmdline: b"make\0all\0".to_vec(),
        ..Process::default()
    };
    let event = Event {
        time: Time(1_700_000_000_000_000_000 + seq),
        process: Arc::new(process),
        op,
        path: path.into(),
        path2: None,
        key: None,
        outcome,
        bytes_read: Some(10),
        bytes_written: None,
        version_before: None,
        version_after: None,
        publication: None,
        noted: None,
        count: 1,
    };
    Stored { seq, run: RunId("r1".into()), event }
}

fn model() -> Model {
    let denial = Denial::new(Rule::ProtectedPath, "protection");
    let denied = Outcome::Denied { denial: Arc::new(denial), errno: libc::EROFS };
    let info = RunInfo {
        id: RunId("r1".into()),
        argv: vec!["make".into(), "all".into()],
        cwd: "/w".into(),
        mode: Mode::WorkspaceWrite,
        source: ModeSource::Default,
        root: "/w".into(),
        writable_roots: vec!["/w".into()],
        backend: "bwrap".to_owned(),
        started: Time::now(),
    };
    let mut model = Model::new();
    model.take(News {
        session: SessionId("s1".into()),
        runs: vec![RunRow { info, end: None, live: true }],
        events: vec![
            event(1, Op::Read, "/w/Makefile", Outcome::Ok),
            event(2, Op::Create, "/w/\u{1b}[2Jodd", Outcome::Ok),
            event(3, Op::Write, "/w/.git/hooks/pre-commit", denied),
            event(4, Op::Read, "/w/missing", Outcome::Error { errno: libc::ENOENT }),
        ],
    });
    model.tick();
    model
}

fn picture(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, model, Theme { colour: true })).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn key(model: &mut Model, code: KeyCode) -> bool {
    press(model, KeyEvent::new(code, KeyModifiers::NONE), 10)
}

#[test]
fn what_matters_is_seen_at_every_size() {
    let model = model();
    for (width, height) in [(80, 24), (200, 60)] {
        let seen = picture(&model, width, height);
        for wanted in
            ["1 live", "4 seen", "1 refused", "make all", "/w/Makefile", "make[4711]", "q quit"]
        {
            assert!(seen.contains(wanted), "{wanted} at {width}×{height}:\n{seen}");
        }
        assert!(seen.contains("/w/.git/hooks/pre-commit"), "{seen}");
        assert!(!seen.contains('\u{1b}') && seen.contains("\\x1b[2Jodd"), "{seen}");
    }
    // However small it is, it draws.
    for (width, height) in [(1, 1), (10, 3), (40, 6), (300, 1)] {
        picture(&model, width, height);
        let mut open = self::model();
        (open.detail, open.help, open.view) = (true, true, View::Files);
        picture(&open, width, height);
    }
}

#[test]
fn a_runs_columns_are_whole_or_not_there() {
    let mut model = model();
    model.runs[0].row.info.id = RunId("1m8r2p3xqzhab".into());
    for width in [80, 99, 100, 160] {
        let seen = picture(&model, width, 24);
        assert!(seen.contains("1m8r2p3xqzhab  live "), "{width}:\n{seen}");
        assert!(seen.contains("REFUSED  COMMAND") && seen.contains("make all"), "{width}:\n{seen}");
        assert_eq!(seen.contains("workspace-write"), width >= 100, "{width}:\n{seen}");
    }
}

#[test]
fn keys_choose_what_is_seen() {
    let mut model = model();
    key(&mut model, KeyCode::Char('d'));
    let seen = picture(&model, 140, 20);
    assert!(
        seen.contains("refused: protected-path, EROFS") && !seen.contains("/w/Makefile"),
        "{seen}"
    );
    key(&mut model, KeyCode::Char('d'));
    key(&mut model, KeyCode::Char('/'));
    for letter in "makef".chars() {
        assert!(!key(&mut model, KeyCode::Char(letter)));
    }
    key(&mut model, KeyCode::Enter);
    let seen = picture(&model, 140, 20);
    assert!(seen.contains("filter: makef") && !seen.contains("/w/missing"), "{seen}");
    key(&mut model, KeyCode::Enter);
    let seen = picture(&model, 100, 30);
    for wanted in ["Event", "bytes read  10", "command  make all", "session, run  s1, r1"] {
        assert!(seen.contains(wanted), "{wanted}:\n{seen}");
    }
    key(&mut model, KeyCode::Esc);
    key(&mut model, KeyCode::Esc);
    key(&mut model, KeyCode::Char('2'));
    let seen = picture(&model, 140, 20);
    assert!(seen.contains("/usr/bin/make") && seen.contains("      4"), "{seen}");
    key(&mut model, KeyCode::Tab);
    assert_eq!(model.view, View::Files);
    key(&mut model, KeyCode::Char('?'));
    assert!(picture(&model, 100, 20).contains("this help"));
    assert!(key(&mut model, KeyCode::Char('q')));
}

fn asks(id: &str, justification: &str) -> ApprovalRequest {
    ApprovalRequest {
        v: 1,
        id: id.to_owned(),
        session: Some("s1".to_owned()),
        escalation: Escalation::new(Mode::ReadOnly, Mode::WorkspaceWrite, justification).unwrap(),
        argv: vec![Bytes::from("make"), Bytes::from("all\u{1b}[2J")],
        cwd: Bytes::from("/w"),
        refused: Vec::new(),
    }
}

#[test]
fn a_waiting_request_is_seen_and_only_y_allows_it() {
    for (width, height) in [(80, 24), (200, 60)] {
        let mut model = model();
        model.ask(vec![asks("e1", "to build\u{202e}"), asks("e2", "again")]);
        assert!(picture(&model, width, height).contains("2 waiting for approval: press a"));
        // Nothing is answered without a look at it.
        key(&mut model, KeyCode::Char('y'));
        assert_eq!(model.verdict, None);
        key(&mut model, KeyCode::Char('a'));
        let seen = picture(&model, width, height);
        for wanted in [
            "y allow once",
            "make 'all\\x1b[2J'",
            "workspace-write (this run alone",
            "to build\\u{202e}",
        ] {
            assert!(seen.contains(wanted), "{wanted} at {width}×{height}:\n{seen}");
        }
        for code in [KeyCode::Enter, KeyCode::Char(' '), KeyCode::Down] {
            key(&mut model, code);
            assert_eq!(model.verdict, None, "{code:?}");
        }
        assert!(!key(&mut model, KeyCode::Char('q')), "it closes the question");
        key(&mut model, KeyCode::Char('a'));
        key(&mut model, KeyCode::Char('a'));
        // The one that is looked at stays, whatever comes and goes beside it.
        model.ask(vec![asks("e0", "new"), asks("e2", "again")]);
        key(&mut model, KeyCode::Char('y'));
        assert_eq!(model.verdict.take(), Some(("e2".to_owned(), Verdict::AllowedOnce)));
        key(&mut model, KeyCode::Char('a'));
        key(&mut model, KeyCode::Char('n'));
        assert_eq!(model.verdict.take(), Some(("e0".to_owned(), Verdict::Rejected)));
        key(&mut model, KeyCode::Char('a'));
        model.ask(Vec::new());
        key(&mut model, KeyCode::Char('y'));
        assert_eq!((&model.verdict, &model.question), (&None, &None), "it is over");
        assert!(picture(&model, width, height).contains("is over"));
    }
}
