//! How `stockade top` looks.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Cell, Clear, Paragraph, Row, Scrollbar, ScrollbarOrientation, ScrollbarState, Sparkline,
    Table, TableState, Wrap,
};
use stockade_observe::{Outcome, is_change};
use stockade_policy::text::shorten;

use super::model::{Busy, HISTORY, Input, Item, Model, RunLine, View, age, describe};
use crate::approve::rows;
use crate::cli::log::{clock, command, lasted, path, program};
use crate::errno;

/// Runs that are listed at most, and the fewest lines that the list below keeps.
const RUNS: u16 = 6;
/// From this width on, the rate has a picture.
const WIDE: u16 = 100;

/// The colours; none where the terminal or `NO_COLOR` says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub colour: bool,
}

impl Theme {
    fn fg(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn bad(self) -> Style {
        self.fg(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    const fn strong() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    const fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let runs = u16::try_from(model.runs.len()).unwrap_or(RUNS).clamp(1, RUNS) + 1;
    let runs = runs.min(frame.area().height / 3);
    let [head, runs, tabs, list, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(runs),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, model, theme);
    draw_runs(frame, runs, model, theme);
    draw_tabs(frame, tabs, model, theme);
    if model.view == View::Events {
        draw_events(frame, list, model, theme);
    } else {
        draw_busiest(frame, list, model, theme);
    }
    draw_foot(frame, foot, model, theme);
    if model.detail {
        draw_detail(frame, model, theme);
    }
    if model.help {
        draw_help(frame, theme);
    }
    draw_question(frame, model, theme);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let live = model.live();
    let now = model.rate.back().copied().unwrap_or(0);
    let denied = model.total.denied;
    let mut spans = vec![Span::styled("stockade top", Theme::strong())];
    if !model.asking.is_empty() {
        let text = format!("  {} waiting for approval: press a", model.asking.len());
        spans.push(Span::styled(text, theme.bad()));
    }
    spans.extend([
        Span::raw(format!("  {live} live  {now} events/s  {} seen  ", model.total.events)),
        Span::styled(
            format!("{denied} refused"),
            if denied > 0 { theme.bad() } else { theme.faint() },
        ),
    ]);
    if model.conflicts > 0 {
        spans.push(Span::styled(format!("  {} conflicts", model.conflicts), theme.bad()));
    }
    if model.paused {
        let kept = model.kept_back();
        spans.push(Span::styled(format!("  PAUSED ({kept} kept back)"), Theme::selected()));
    }
    let text = Line::from(spans);
    let width = u16::try_from(text.width()).unwrap_or(area.width);
    frame.render_widget(text, area);
    let left = area.width.saturating_sub(width + 2);
    if area.width >= WIDE && left > 10 {
        let graph = left.min(u16::try_from(HISTORY).unwrap_or(left));
        let area = Rect { x: area.right() - graph, width: graph, ..area };
        let skip = model.rate.len().saturating_sub(graph.into());
        let rate: Vec<u64> = model.rate.iter().skip(skip).copied().collect();
        frame.render_widget(Sparkline::default().data(rate).style(theme.fg(Color::Cyan)), area);
    }
}

fn draw_runs(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    if model.runs.is_empty() {
        let text = "No run is going on. `stockade run -- COMMAND` starts one.";
        frame.render_widget(Paragraph::new(text).style(theme.faint()), area);
        return;
    }
    // Where there is little room, what is left is whole.
    let wide = area.width >= WIDE;
    let columns: Vec<(&str, u16)> = [
        ("RUN", 14),
        ("STATE", 11),
        ("AGE", 9),
        ("MODE", 18),
        ("EVENTS", 8),
        ("CHANGED", 8),
        ("REFUSED", 8),
    ]
    .into_iter()
    .filter(|(name, _)| wide || !NARROW_LACKS.contains(name))
    .collect();
    let header = Row::new(columns.iter().map(|(name, _)| *name).chain(["COMMAND"]));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let widths = widths.chain([Constraint::Min(10)]);
    let rows = model.runs.iter().map(|line| run_row(line, wide, theme));
    frame.render_widget(Table::new(rows, widths).header(header.style(theme.faint())), area);
}

/// The columns of the runs that a narrow terminal has no room for.
const NARROW_LACKS: [&str; 2] = ["MODE", "EVENTS"];

fn run_row(line: &RunLine, wide: bool, theme: Theme) -> Row<'_> {
    let info = &line.row.info;
    let (state, style) = match &line.row.end {
        Some(end) => (end.outcome.ending.as_str(), theme.faint()),
        None if line.row.live => ("live", theme.fg(Color::Green)),
        None => ("interrupted", theme.bad()),
    };
    let from = stockade_observe::Time(0);
    let denied = if line.count.denied > 0 { theme.bad() } else { theme.faint() };
    let mut cells = vec![
        Cell::from(info.id.to_string()),
        Cell::from(state).style(style),
        Cell::from(lasted(from, age(&line.row))),
    ];
    if wide {
        cells.push(Cell::from(info.mode.as_str()));
        cells.push(Cell::from(number(line.count.events)));
    }
    cells.push(Cell::from(number(line.count.changes)));
    cells.push(Cell::from(number(line.count.denied)).style(denied));
    cells.push(Cell::from(command(&info.argv)));
    Row::new(cells)
}

/// A number that stands to the right of its column.
fn number(number: u64) -> String {
    format!("{number:>7}")
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let mut spans = Vec::new();
    for (at, view) in View::ALL.into_iter().enumerate() {
        let style = if view == model.view { Theme::selected() } else { theme.faint() };
        spans.push(Span::styled(format!(" {} {} ", at + 1, view.name()), style));
    }
    if model.denied_only {
        spans.push(Span::styled("  refused only", theme.bad()));
    }
    if !model.filter.is_empty() {
        spans.push(Span::raw(format!("  filter: {}", model.filter)));
    }
    frame.render_widget(Line::from(spans), area);
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let all = model.listed();
    let at = model.at(all.len());
    let height = usize::from(area.height);
    let first = (at + 1).saturating_sub(height).min(all.len().saturating_sub(height));
    let several = model.runs.len() > 1;
    let lines = all.iter().enumerate().skip(first).take(height).map(|(number, item)| {
        let line = event_line(item, several && area.width >= WIDE, theme);
        if number == at && !model.follow { line.style(Theme::selected()) } else { line }
    });
    if all.is_empty() {
        let text = "Nothing yet.";
        frame.render_widget(Paragraph::new(text).style(theme.faint()), area);
        return;
    }
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
    scrollbar(frame, area, all.len(), at);
}

fn event_line<'a>(item: &Item, several: bool, theme: Theme) -> Line<'a> {
    let event = &item.stored.event;
    let (style, note) = match &event.outcome {
        Outcome::Denied { denial, errno } => {
            (theme.bad(), format!("  refused: {}, {}", denial.rule(), errno::name(*errno)))
        }
        Outcome::Error { errno } => (theme.faint(), format!("  {}", errno::name(*errno))),
        Outcome::Ok if is_change(event) => (theme.fg(Color::Yellow), String::new()),
        Outcome::Ok => (Style::new(), String::new()),
    };
    let note = match &event.noted {
        Some(noted) => format!("{note}  noted: {}", noted.rule()),
        None => note,
    };
    let who = format!("{}[{}]", program(&event.process.exe), event.process.pid);
    let mut what = path(&event.path);
    if let Some(second) = &event.path2 {
        what.push_str(" -> ");
        what.push_str(&path(second));
    }
    let run = if several { format!("{} ", item.stored.run) } else { String::new() };
    Line::from(vec![
        Span::styled(format!("{} {run}", clock(event.time)), theme.faint()),
        Span::styled(format!("{:<20} ", shorten(&who, 20)), theme.fg(Color::Cyan)),
        Span::styled(format!("{:<11} ", event.op), style),
        Span::raw(what),
        Span::styled(note, style),
    ])
}

fn draw_busiest(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let all = model.busiest();
    let at = model.at(all.len());
    let header = Row::new(["EVENTS", "READS", "CHANGES", "REFUSED", model.view.name()]);
    let row = |line: &Busy| {
        let denied = if line.count.denied > 0 { theme.bad() } else { theme.faint() };
        Row::new([
            Cell::from(number(line.count.events)),
            Cell::from(number(line.count.reads)),
            Cell::from(number(line.count.changes)),
            Cell::from(number(line.count.denied)).style(denied),
            Cell::from(line.name.clone()),
        ])
    };
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Min(10),
    ];
    let table = Table::new(all.iter().map(row), widths)
        .header(header.style(theme.faint()))
        .row_highlight_style(Theme::selected());
    let mut state = TableState::default().with_selected((!all.is_empty()).then_some(at));
    frame.render_stateful_widget(table, area, &mut state);
    scrollbar(frame, area, all.len(), at);
}

fn scrollbar(frame: &mut Frame<'_>, area: Rect, len: usize, at: usize) {
    if len > usize::from(area.height) {
        let mut state = ScrollbarState::new(len).position(at);
        let bar =
            Scrollbar::new(ScrollbarOrientation::VerticalRight).begin_symbol(None).end_symbol(None);
        frame.render_stateful_widget(bar, area, &mut state);
    }
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let line = match model.input {
        Input::Filter => Line::from(vec![
            Span::styled("filter: ", Theme::strong()),
            Span::raw(model.filter.clone()),
            Span::styled(" ", Theme::selected()),
            Span::styled("  Enter keeps it, Esc clears it", theme.faint()),
        ]),
        Input::None if model.said.is_some() => {
            Line::styled(model.said.clone().unwrap_or_default(), Theme::strong())
        }
        Input::None => Line::styled(
            "q quit  Space pause  / filter  d refused only  1-4 view  Enter detail  ? help",
            theme.faint(),
        ),
    };
    frame.render_widget(line, area);
}

fn window(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>) {
    let area = frame.area().inner(Margin { horizontal: 2, vertical: 1 });
    let width = usize::from(area.width.saturating_sub(2)).max(1);
    let height: usize = lines.iter().map(|line| line.width().div_ceil(width).max(1)).sum();
    let height = u16::try_from(height).unwrap_or(area.height).saturating_add(2);
    let area =
        Rect { height: height.clamp(3, area.height.max(3)), ..area }.intersection(frame.area());
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title.to_owned());
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), area);
}

fn draw_detail(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let all = model.listed();
    let Some(item) = all.get(model.at(all.len())) else { return };
    let line = |(name, value): (&str, String)| {
        Line::from(vec![Span::styled(format!("{name:>13}  "), theme.faint()), Span::raw(value)])
    };
    window(frame, " Event ", describe(item).into_iter().map(line).collect());
}

fn draw_question(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let Some(request) = model.asked() else { return };
    let row = |(name, value): (&str, String)| {
        Line::from(vec![Span::styled(format!("{name:>14}  "), theme.faint()), Span::raw(value)])
    };
    // What is decided about must be seen whole: the keys come first, since a long text runs out of the window.
    let mut lines = vec![Line::styled(
        "y allow once   n reject   a next   Esc decide later",
        Theme::selected(),
    )];
    lines.extend(rows(request).into_iter().map(row));
    window(frame, " A command asks for a wider mode ", lines);
}

const HELP: [(&str, &str); 12] = [
    ("q, Ctrl-C", "quit"),
    ("Space", "pause; what comes is kept and shown afterwards"),
    ("/", "filter by a part of a path, a program or an operation"),
    ("d", "refusals only"),
    ("1 2 3 4, Tab", "events, busiest programs, files, processes"),
    ("Up Down, j k", "select"),
    ("PgUp PgDn", "a page"),
    ("Home End, g G", "first, last; at the end the list follows what comes"),
    ("Enter", "all that is known of the selected event"),
    ("a", "look at a run that asks for a wider mode: y allows it once, n rejects it"),
    ("Esc", "close a window, clear the filter"),
    ("?", "this help"),
];

fn draw_help(frame: &mut Frame<'_>, theme: Theme) {
    let line = |(key, what): (&'static str, &'static str)| {
        Line::from(vec![
            Span::styled(format!("{key:>14}  "), theme.fg(Color::Cyan)),
            Span::raw(what),
        ])
    };
    window(frame, " Keys ", HELP.into_iter().map(line).collect());
}
