//! The `stockade` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    stockade_launcher::cli::main()
}
