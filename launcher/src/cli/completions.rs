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
    /// The command; without it the page for `stockade` itself.
    command: Option<String>,
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
    let command = match &args.command {
        None => whole,
        Some(name) => whole.find_subcommand(name).cloned().ok_or_else(|| {
            Failure::new(Code::ConfigInvalid, format!("no command `{name}`"))
                .help("`stockade help` lists the commands")
        })?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(|error: io::Error| {
        Failure::new(Code::RunnerFailed, "can't write the manual page").because(error)
    })?;
    show(&String::from_utf8_lossy(&page));
    Ok(ExitCode::SUCCESS)
}
