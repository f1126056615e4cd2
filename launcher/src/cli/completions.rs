//! `stockade completions` and `stockade man`.

use std::io;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::cli::{definition, show};
use crate::error::{Code, Failure};

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Print the manual page of Stockade or of one of its commands.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The command, such as `run` or `session new`; without it the page for `stockade` itself.
    command: Vec<String>,
}

/// Prints the script.
#[expect(clippy::unnecessary_wraps, reason = "every subcommand has this shape")]
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "stockade", &mut script);
    show(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// Prints the page in roff.
pub fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut whole = definition();
    whole.build();
    let mut command = whole;
    for name in &args.command {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| {
            Failure::new(Code::ConfigInvalid, format!("no command `{}`", args.command.join(" ")))
                .help("`stockade help` lists the commands")
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(|error: io::Error| {
        Failure::new(Code::RunnerFailed, "can't write the manual page").because(error)
    })?;
    show(&String::from_utf8_lossy(&page));
    Ok(ExitCode::SUCCESS)
}
