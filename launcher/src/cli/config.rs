//! `stockade config`: what is in force, and where each value came from.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};
use stockade_policy::Config;
use stockade_policy::config::Origin;
use stockade_policy::text::sanitise;

use crate::cli::policy_args::PolicyArgs;
use crate::cli::show;
use crate::config;
use crate::error::Failure;

/// Show the configuration.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Show(Box<Show>),
    /// Print a configuration that shows and explains every key, all of it commented out.
    Example,
    Profiles(Profiles),
}

/// Print the values that are in force, with these options and profiles.
#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    policy: PolicyArgs,
    /// Say where each value came from.
    #[arg(long)]
    origin: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// List the profiles.
#[derive(Debug, clap::Args)]
struct Profiles {
    /// Read this configuration instead of the one in the configuration directory.
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
}

/// Prints what is asked for.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Show(args) => values(args)?,
        Command::Example => show(Config::example()),
        Command::Profiles(args) => profiles(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn values(args: &Show) -> Result<(), Failure> {
    let effective = args.policy.effective()?;
    let rows = effective.settings.rows();
    if args.json {
        let settings: Vec<Value> = rows
            .iter()
            .map(|(key, value, origin)| {
                // Each is written as JSON writes it.
                let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
                json!({ "key": key, "value": value, "origin": origin.to_string() })
            })
            .collect();
        let file = effective.file.as_ref().map(|file| file.to_string_lossy());
        show(&format!("{}\n", json!({ "v": 1, "file": file, "settings": settings })));
        return Ok(());
    }
    show(&if args.origin { with_origins(&rows) } else { as_toml(&rows) });
    Ok(())
}

fn with_origins(rows: &[(&'static str, String, &Origin)]) -> String {
    let width = |row: &(&str, String, &Origin)| row.0.len() + row.1.chars().count() + 3;
    let column = rows.iter().map(width).max().unwrap_or(0).min(60);
    let mut text = String::new();
    for (key, value, origin) in rows {
        let setting = format!("{key} = {value}");
        // Writing to a String can't fail.
        let _infallible = writeln!(text, "{setting:column$}  # {}", sanitise(&origin.to_string()));
    }
    text
}

/// Writes the values as a configuration that says the same.
pub(in crate::cli) fn as_toml(rows: &[(&'static str, String, &Origin)]) -> String {
    const LISTS: [&str; 9] = [
        "writable_roots",
        "observe_roots",
        "deny_read",
        "deny_write",
        "allow_write",
        "publish_direct",
        "sockets",
        "withhold_env",
        "pass_env",
    ];
    let mut text = String::new();
    let mut open: Option<&str> = None;
    for (key, value, _) in rows {
        let list = LISTS.contains(key);
        if open.is_some_and(|open| open != *key) {
            text.push_str("]\n");
            open = None;
        }
        // Writing to a String can't fail.
        let _infallible = match (list, open) {
            (false, _) => writeln!(text, "{key} = {value}"),
            (true, None) => writeln!(text, "{key} = [\n    {value},"),
            (true, Some(_)) => writeln!(text, "    {value},"),
        };
        open = list.then_some(key);
    }
    if open.is_some() {
        text.push_str("]\n");
    }
    text
}

fn profiles(args: &Profiles) -> Result<(), Failure> {
    let (config, _) = config::load(args.config.as_deref())?;
    let mut all = Config::shipped();
    all.extend(config.profiles);
    let mut text = String::new();
    for (name, profile) in &all {
        // Writing to a String can't fail.
        let _infallible =
            writeln!(text, "{:10}  {}", sanitise(name), sanitise(&profile.description));
    }
    show(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_policy::Mode;
    use stockade_policy::config::Settings;

    #[test]
    fn what_is_shown_can_be_read_again() {
        let text = "mode = \"read-only\"\ndeny_read = [\"a\", \"b c\"]\nsockets = [\"/s\"]\ntimeout = \"5m\"\n";
        let resolve = |text: &str| {
            Config::parse(text, "x")
                .unwrap()
                .resolve(Mode::WorkspaceWrite, &[], Settings::default(), &|_| None)
                .unwrap()
        };
        let first = resolve(text);
        let shown = as_toml(&first.rows());
        let again = resolve(&shown);
        let values = |settings: &Settings| -> Vec<_> {
            settings.rows().into_iter().map(|(key, value, _)| (key, value)).collect()
        };
        assert_eq!(values(&again), values(&first), "{shown}");
        assert_eq!(as_toml(&again.rows()), shown);
    }
}
