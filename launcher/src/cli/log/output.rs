//! Where the listing goes: the terminal through a pager, or whatever standard output is.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// When colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Strong,
    Faint,
    Good,
    Change,
    Bad,
    Name,
}

/// The listing's way out.
pub struct Output {
    to: To,
    colour: bool,
}

enum To {
    Stdout(BufWriter<io::StdoutLock<'static>>),
    Pager { child: Child, input: BufWriter<ChildStdin> },
}

impl Output {
    /// Opens it; with `page`, a terminal gets a pager.
    pub fn new(colour: Colour, page: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let colour = match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
                let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
                terminal && !set("NO_COLOR") && !dumb
            }
        };
        let pager = if terminal && page { start_pager() } else { None };
        let to = pager.unwrap_or_else(|| To::Stdout(BufWriter::new(io::stdout().lock())));
        Self { to, colour }
    }

    /// Returns text that looks so.
    pub fn paint(&self, look: Look, text: impl fmt::Display) -> String {
        if !self.colour {
            return text.to_string();
        }
        let code = match look {
            Look::Strong => "1",
            Look::Faint => "2",
            Look::Good => "32",
            Look::Change => "33",
            Look::Bad => "1;31",
            Look::Name => "36",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Ends the listing; a pager stays until its reader leaves it.
    pub fn finish(self) {
        match self.to {
            // A reader that went away is no error of ours.
            To::Stdout(mut out) => drop(out.flush()),
            To::Pager { mut child, input } => {
                drop(input.into_inner());
                drop(child.wait());
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Stdout(out) => out.write(bytes),
            To::Pager { input, .. } => input.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Stdout(out) => out.flush(),
            To::Pager { input, .. } => input.flush(),
        }
    }
}

/// Starts what `STOCKADE_PAGER` or `PAGER` says, else `less`; none if that is empty, `cat`, or not there.
fn start_pager() -> Option<To> {
    let wanted = ["STOCKADE_PAGER", "PAGER"].into_iter().find_map(env::var_os);
    let pager = wanted.unwrap_or_else(|| OsString::from("less"));
    if pager.is_empty() || pager == "cat" {
        return None;
    }
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(&pager).stdin(Stdio::piped());
    if env::var_os("LESS").is_none() {
        // As git does: leave at once when it fits, keep colours, keep the screen.
        command.env("LESS", "FRX");
    }
    if pager == "less" && !is_on_path("less") {
        return None;
    }
    let mut child = command.spawn().ok()?;
    let input = child.stdin.take()?;
    Some(To::Pager { child, input: BufWriter::new(input) })
}

fn is_on_path(name: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
