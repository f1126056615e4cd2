//! The processes of a run as a tree, with what each of them touched.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::json;
use stockade_observe::{Event, Filter, Outcome, ProcessNode, ProcessTree, RunRow};

use super::output::{Look, Output};
use super::{Log, Stop, path};

/// How many paths a process are named.
const NAMED: usize = 8;

/// What one process changed and was refused, path by path, in order.
#[derive(Default)]
struct Touched {
    lines: Vec<(Mark, String, String)>,
    more: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Change,
    Denied,
}

/// Shows the tree.
pub(super) fn show(log: &Log, run: &RunRow, as_json: bool, out: &mut Output) -> Result<(), Stop> {
    let tree = log.store.process_tree(&run.info.id)?;
    if as_json {
        for (at, node) in tree.nodes.iter().enumerate() {
            writeln!(out, "{}", node_json(&tree, at, node))?;
        }
        return Ok(());
    }
    let mut touched: BTreeMap<(u32, u64), Touched> = BTreeMap::new();
    for (denied, changed) in [(false, true), (true, false)] {
        let filter =
            Filter { run: Some(run.info.id.clone()), denied, changed, ..Filter::default() };
        log.store.for_each(&filter, |stored| {
            let process = &stored.event.process;
            touched.entry((process.pid, process.start_time)).or_default().add(&stored.event);
            ControlFlow::Continue(())
        })?;
    }
    let mut result = Ok(());
    tree.walk(|at, more| {
        if result.is_ok() {
            result = node(out, &tree.nodes[at], more, &touched);
        }
    });
    Ok(result?)
}

impl Touched {
    fn add(&mut self, event: &Event) {
        let mark = if matches!(event.outcome, Outcome::Denied { .. }) {
            Mark::Denied
        } else {
            Mark::Change
        };
        let mut text = path(&event.path);
        if let Some(second) = &event.path2 {
            text.push_str(" -> ");
            text.push_str(&path(second));
        }
        let line = (mark, event.op.to_string(), text);
        if self.lines.contains(&line) {
            return;
        }
        if self.lines.len() < NAMED {
            self.lines.push(line);
        } else {
            self.more += 1;
        }
    }
}

fn node(
    out: &mut Output,
    node: &ProcessNode,
    more: &[bool],
    touched: &BTreeMap<(u32, u64), Touched>,
) -> io::Result<()> {
    let Some((last, above)) = more.split_last() else { return Ok(()) };
    let mut indent: String =
        above.iter().skip(1).map(|more| if *more { "│  " } else { "   " }).collect();
    let branch = match (above.is_empty(), last) {
        (true, _) => "",
        (false, true) => "├─ ",
        (false, false) => "└─ ",
    };
    let Some(process) = node.process() else { return Ok(()) };
    let programs: Vec<_> = node
        .images
        .iter()
        .map(|image| image.exe.clone())
        .collect::<Vec<PathBuf>>()
        .iter()
        .map(|exe| path(exe))
        .collect();
    let arguments: Vec<&[u8]> = process
        .cmdline
        .strip_suffix(&[0])
        .unwrap_or(&process.cmdline)
        .split(|&byte| byte == 0)
        .collect();
    let line = stockade_policy::text::shorten(
        &stockade_policy::text::show_command(arguments.into_iter().skip(1)),
        80,
    );
    let mut counts = vec![format!("{} read", node.reads), format!("{} written", node.writes)];
    if node.failed > 0 {
        counts.push(format!("{} failed", node.failed));
    }
    let mut counts = out.paint(Look::Faint, counts.join(", "));
    if node.denied > 0 {
        counts.push_str(", ");
        counts.push_str(&out.paint(Look::Bad, format_args!("{} refused", node.denied)));
    }
    writeln!(
        out,
        "{indent}{branch}{} {} {line}  {counts}",
        out.paint(Look::Faint, process.pid),
        out.paint(Look::Name, programs.join(" > ")),
    )?;
    if !above.is_empty() {
        indent.push_str(if *last { "│  " } else { "   " });
    }
    indent.push_str(if node.children.is_empty() { "   " } else { "│  " });
    if let Some(touched) = touched.get(&(process.pid, process.start_time)) {
        for (mark, op, text) in &touched.lines {
            let look = if *mark == Mark::Denied { Look::Bad } else { Look::Change };
            let word = if *mark == Mark::Denied { "refused " } else { "" };
            writeln!(out, "{indent}  {} {text}", out.paint(look, format_args!("{word}{op}")))?;
        }
        if touched.more > 0 {
            let text = out.paint(Look::Faint, format_args!("and {} more", touched.more));
            writeln!(out, "{indent}  {text}")?;
        }
    }
    Ok(())
}

fn node_json(tree: &ProcessTree, at: usize, node: &ProcessNode) -> serde_json::Value {
    let parent = tree
        .nodes
        .iter()
        .find(|other| other.children.contains(&at))
        .and_then(ProcessNode::process)
        .map(|process| process.pid);
    let process = node.process();
    json!({
        "v": 1,
        "pid": process.map(|process| process.pid),
        "start_time": process.map(|process| process.start_time),
        "ppid": node.images.first().map(|process| process.ppid),
        "parent": parent,
        "uid": process.map(|process| process.uid),
        "exe": node.images.iter().map(|image| image.exe.to_string_lossy()).collect::<Vec<_>>(),
        "argv": process.map(|process| {
            let line = process.cmdline.strip_suffix(&[0]).unwrap_or(&process.cmdline);
            line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>()
        }),
        "reads": node.reads,
        "writes": node.writes,
        "denied": node.denied,
        "failed": node.failed,
        "first": node.first,
        "last": node.last,
    })
}
