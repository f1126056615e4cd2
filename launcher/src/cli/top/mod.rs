//! `stockade top`: what is going on now.

mod feed;
mod model;
mod view;

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;
use stockade_policy::text::sanitise;
use stockade_policy::{ApprovalAnswer, Verdict};

use crate::approve::queue;
use crate::error::{Code, Failure};
use crate::state;

use feed::Feed;
use model::{Input, Model, View};
use view::Theme;

/// Watch what runs do: live runs, events as they happen, refusals, the busiest programs and files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session, by id or name. [default: all that have a run going on]
    #[arg(value_name = "SESSION")]
    session: Option<String>,
    /// Print the runs and counts as one JSON object a second instead.
    #[arg(long)]
    json: bool,
    /// With --json: stop after so many.
    #[arg(short = 'n', long, value_name = "N", requires = "json")]
    count: Option<u64>,
}

/// The picture is drawn anew so often at most, and news are looked for.
const FRAME: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// Shows it until it's left.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let feed = Feed::new(&state::directory()?, args.session.clone());
    if args.json {
        return print(args, feed);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::new(Code::ConfigInvalid, "`stockade top` needs a terminal")
            .help("`stockade top --json` and `stockade log --follow` don't"));
    }
    let fail = |error: io::Error| {
        Failure::new(Code::RunnerFailed, "can't use the terminal").because(error)
    };
    let mut terminal = ratatui::try_init().map_err(fail)?;
    let done = watch(&mut terminal, feed, &state::directory()?);
    ratatui::try_restore().map_err(fail)?;
    done.map(|()| ExitCode::SUCCESS)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    mut feed: Feed,
    state: &Path,
) -> Result<(), Failure> {
    let fail = |error: io::Error| {
        Failure::new(Code::RunnerFailed, "can't use the terminal").because(error)
    };
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let theme = Theme { colour: !set("NO_COLOR") };
    let mut model = Model::new();
    let mut second = Instant::now();
    loop {
        for news in feed.poll()? {
            model.take(news);
        }
        // One that can't be read now can be the next time.
        if let Ok(asking) = queue::waiting(state) {
            model.ask(asking);
        }
        if second.elapsed() >= SECOND {
            second = Instant::now();
            model.tick();
        }
        terminal.draw(|frame| view::draw(frame, &model, theme)).map_err(fail)?;
        let page = usize::from(terminal.size().map_err(fail)?.height / 2);
        let until = Instant::now() + FRAME;
        // Keys that are held come faster than pictures.
        while event::poll(until.saturating_duration_since(Instant::now())).map_err(fail)? {
            if let Event::Key(key) = event::read().map_err(fail)?
                && key.kind != KeyEventKind::Release
                && press(&mut model, key, page)
            {
                return Ok(());
            }
            if let Some((id, decision)) = model.verdict.take() {
                model.said = Some(pass_on(state, &id, decision));
            }
        }
    }
}

/// Passes an answer on, and says what came of it.
fn pass_on(state: &Path, id: &str, decision: Verdict) -> String {
    let given = ApprovalAnswer { decision, id: None, reason: None };
    match queue::answer(state, id, given) {
        Ok(()) if decision == Verdict::AllowedOnce => format!("request {id} is allowed, once"),
        Ok(()) => format!("request {id} is rejected"),
        Err(error) => sanitise(&error.to_string()),
    }
}

/// Does what a key says; tells whether it says to leave.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other keys of a keyboard say nothing")]
fn press(model: &mut Model, key: KeyEvent, page: usize) -> bool {
    let page = isize::try_from(page.max(1)).unwrap_or(1);
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if control {
        return key.code == KeyCode::Char('c');
    }
    if model.input == Input::Filter {
        match key.code {
            KeyCode::Enter => model.input = Input::None,
            KeyCode::Esc => {
                model.filter.clear();
                model.input = Input::None;
            }
            KeyCode::Backspace => drop(model.filter.pop()),
            KeyCode::Char(letter) => model.filter.push(letter),
            _ => {}
        }
        return false;
    }
    if model.question.is_some() {
        match key.code {
            KeyCode::Char('y') => model.decide(Verdict::AllowedOnce),
            KeyCode::Char('n') => model.decide(Verdict::Rejected),
            KeyCode::Char('a') | KeyCode::Tab => model.next_question(),
            KeyCode::Esc | KeyCode::Char('q') => model.question = None,
            _ => {}
        }
        return false;
    }
    match key.code {
        KeyCode::Char('q') => return true,
        KeyCode::Char('a') => model.next_question(),
        KeyCode::Esc if model.help || model.detail => {
            model.help = false;
            model.detail = false;
        }
        KeyCode::Esc => model.filter.clear(),
        KeyCode::Char(' ') => model.pause(),
        KeyCode::Char('/') => model.input = Input::Filter,
        KeyCode::Char('d') => model.denied_only = !model.denied_only,
        KeyCode::Char('?') => model.help = !model.help,
        KeyCode::Char('1') => model.show(View::Events),
        KeyCode::Char('2') => model.show(View::Programs),
        KeyCode::Char('3') => model.show(View::Files),
        KeyCode::Char('4') => model.show(View::Processes),
        KeyCode::Tab | KeyCode::BackTab => {
            let at = View::ALL.iter().position(|view| *view == model.view).unwrap_or(0);
            let step = if key.code == KeyCode::Tab { 1 } else { View::ALL.len() - 1 };
            model.show(View::ALL[(at + step) % View::ALL.len()]);
        }
        KeyCode::Enter => model.detail = !model.detail && model.view == View::Events,
        KeyCode::Up | KeyCode::Char('k') => model.go(-1),
        KeyCode::Down | KeyCode::Char('j') => model.go(1),
        KeyCode::PageUp => model.go(-page),
        KeyCode::PageDown => model.go(page),
        KeyCode::Home | KeyCode::Char('g') => model.go(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => model.go(isize::MAX),
        _ => {}
    }
    false
}

/// Prints what there is each second.
fn print(args: &Args, mut feed: Feed) -> Result<ExitCode, Failure> {
    let state = state::directory()?;
    let mut model = Model::new();
    let mut printed = 0;
    loop {
        for news in feed.poll()? {
            model.take(news);
        }
        model.tick();
        let runs: Vec<_> = model.runs.iter().map(run_json).collect();
        let line = json!({
            "v": 1,
            "time": stockade_observe::Time::now().to_rfc3339(),
            "events_per_second": model.rate.back(),
            "events": model.total.events,
            "denied": model.total.denied,
            "conflicts": model.conflicts,
            "runs": runs,
            "asking": queue::waiting(&state).unwrap_or_default(),
        });
        // A reader that has seen enough goes away.
        if writeln!(io::stdout(), "{line}").is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        printed += 1;
        if args.count.is_some_and(|count| printed >= count) {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(SECOND);
    }
}

fn run_json(line: &model::RunLine) -> serde_json::Value {
    let info = &line.row.info;
    json!({
        "session": line.session.0,
        "run": info.id.0,
        "argv": info.argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>(),
        "mode": info.mode.as_str(),
        "live": line.row.live,
        "outcome": line.row.end.as_ref().map(|end| end.outcome.ending.as_str()),
        "started": info.started.to_rfc3339(),
        "events": line.count.events,
        "changes": line.count.changes,
        "denied": line.count.denied,
    })
}

#[cfg(test)]
mod tests;
