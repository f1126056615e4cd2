//! A harness that spawns for itself: `harness STOCKADE WORKSPACE MODE RESULT -- COMMAND [ARG…]` runs the command confined, and
//! prints what it knew before, and what came of it.

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use stockade_launcher::config::own_directories;
use stockade_launcher::confine::{self, Judgement, confine};
use stockade_launcher::resolve::{Places, Request, resolve};
use stockade_launcher::state;
use stockade_policy::config::Backend;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let mut word = || words.next().ok_or("too few arguments");
    let (stockade, workspace) = (PathBuf::from(word()?), PathBuf::from(word()?));
    let mode = word()?.to_str().ok_or("the mode isn't text")?.parse()?;
    let result = PathBuf::from(word()?);
    let argv: Vec<OsString> = words.skip(1).collect();

    let own = own_directories(&state::directory()?);
    let policy = resolve(&Request::new(mode, workspace.clone()), &Places::of_this_machine(own))?;
    let confined = confine(&confine::Command {
        stockade: &stockade,
        policy: &policy,
        backend: Backend::Auto,
        argv: &argv,
        cwd: &workspace,
        result: &result,
    })?;
    println!("before: {} by {}", confined.enforcement.level(), confined.backend);
    let (program, arguments) = confined.argv.split_first().ok_or("nothing to spawn")?;
    let status = Command::new(program).args(arguments).current_dir(&workspace).status()?;
    match confined.judge() {
        Ok(Judgement::Ran { exit_code, denials, .. }) => {
            println!("after: it ran: {exit_code:?}, refusals: {denials}, {status}");
        }
        Ok(Judgement::Failed { code, .. }) => println!("after: it did not run: {code}, {status}"),
        Err(error) => println!("after: nothing is known: {error}, {status}"),
    }
    Ok(())
}
