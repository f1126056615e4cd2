//! Carries cases out and writes their accounts: one JSON array of lines for each.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::observe::{everything, hash};
use super::operation::{Case, PROCESSES};
use super::worker::{self, Order};

/// A process that takes part, as seen from outside.
struct Participant {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Participant {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().expect("an own path"))
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker starts");
        let orders = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, orders, answers }
    }

    fn ask(&mut self, order: &Order) -> String {
        let mut line = serde_json::to_string(order).expect("orders can be written");
        line.push('\n');
        self.orders.write_all(line.as_bytes()).expect("the worker listens");
        line.clear();
        let length = self.answers.read_line(&mut line).expect("the worker answers");
        assert!(length > 0, "a worker died");
        line.trim_end().to_owned()
    }
}

/// The program: `worker`, or reads cases from its input, one JSON object a line, and carries each out in a fresh
/// directory below the current one.
pub fn main() {
    // So that what is created has the mode that was asked for, in most cases.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker::serve();
    }
    let top = std::env::current_dir().expect("a current directory");
    let mut participants: Vec<Participant> = (0..PROCESSES).map(|_| Participant::start()).collect();
    let mut out = std::io::stdout().lock();
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let case: Case = serde_json::from_str(&line.expect("cases can be read")).expect("a case");
        let account = carry_out(&case, &top.join(format!("case-{number}")), &mut participants);
        writeln!(out, "{}", serde_json::to_string(&account).expect("text")).expect("output");
    }
    for mut participant in participants {
        drop(participant.orders);
        participant.child.wait().expect("the worker ends");
    }
}

fn carry_out(case: &Case, directory: &Path, participants: &mut [Participant]) -> Vec<String> {
    std::fs::create_dir(directory).expect("the directory of the case");
    for participant in &mut *participants {
        participant.ask(&Order::Begin(directory.to_owned()));
    }
    let mut account = Vec::new();
    for (number, step) in case.steps.iter().enumerate() {
        let answer = participants[step.who].ask(&Order::Do(step.what.clone()));
        let mut line = if case.verbose { format!("{step:?}\n  {answer}") } else { answer };
        if (number + 1) % case.every.max(1) == 0 || number + 1 == case.steps.len() {
            let state = everything(directory);
            if case.verbose {
                line.push('\n');
                line.push_str(&state);
            } else {
                line.push_str(&format!(" {:x}", hash(state.as_bytes())));
            }
        }
        account.push(line);
    }
    for participant in participants {
        participant.ask(&Order::Begin(PathBuf::from("/")));
    }
    account
}
