//! The Landlock runner as a program of its own (`LANDLOCK.md`).

use std::process::ExitCode;

fn main() -> ExitCode {
    stockade_launcher::runner::main()
}
