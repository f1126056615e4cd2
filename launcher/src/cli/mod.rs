//! The command line: one file a subcommand. Only this module prints.

mod bwrap_compat;
mod completions;
mod config;
mod diff;
mod doctor;
mod history;
mod learn;
mod log;
mod mount;
mod policy_args;
mod run;
mod session;
mod top;
mod undo;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::Failure;
use crate::{answer, caller, escape, init, runner};

/// Runs programs with their file access confined and recorded.
#[derive(Debug, Parser)]
#[command(name = "stockade", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Shell(Box<run::ShellArgs>),
    Mount(Box<mount::Args>),
    Umount(mount::UmountArgs),
    Session(session::Args),
    Log(Box<log::Args>),
    Diff(diff::Args),
    Undo(undo::Args),
    Learn(Box<learn::Args>),
    Top(top::Args),
    Why(Box<why::Args>),
    Config(config::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(completions::ManArgs),
    BwrapCompat(bwrap_compat::Args),
}

/// The status of a command that Stockade refused or failed to run.
pub const FAILED: u8 = 125;

/// Runs the command line and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(status) = init::main_if_asked()
        .or_else(runner::main_if_asked)
        .or_else(escape::main_if_asked)
        .or_else(bwrap_compat::main_if_asked)
    {
        return status;
    }
    caller::settle();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing more can be done when the terminal is gone.
            let _unwritten = error.print();
            return if error.use_stderr() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS };
        }
    };
    if let Err(failure) = answer::check(answer::of_the_environment()) {
        return report(&failure);
    }
    let done = match cli.command {
        Command::Run(args) => caller::check().and_then(|()| run::run(*args)),
        Command::Shell(args) => caller::check().and_then(|()| run::shell(*args)),
        Command::Mount(args) => caller::check().and_then(|()| mount::run(&args)),
        Command::Umount(args) => mount::umount(&args),
        Command::Session(args) => session::run(&args),
        Command::Log(args) => log::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Undo(args) => undo::run(&args),
        Command::Learn(args) => learn::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => completions::man(&args),
        Command::BwrapCompat(args) => Ok(bwrap_compat::run(args.words)),
    };
    done.unwrap_or_else(|failure| report(&failure))
}

/// Prints a failure as the contract wants it and returns its exit status.
fn report(failure: &Failure) -> ExitCode {
    for line in failure.lines() {
        complain(&line);
    }
    ExitCode::from(FAILED)
}

/// Prints one line on stderr.
#[expect(clippy::print_stderr, reason = "the command line's own voice")]
fn complain(line: &str) {
    eprintln!("{line}");
}

/// Prints on stdout; a reader that went away is no error of ours.
fn show(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _gone = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns the whole command line, for completions and the manual page.
fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        definition().debug_assert();
    }
}
