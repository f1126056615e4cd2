//! The Landlock runner: a small program that restricts itself and then becomes its command (contract L3).
//!
//! `LANDLOCK.md` is its contract: arguments, exit codes, report lines. It either enforces everything that the kernel's
//! ABI can and says what is missing, or ends with 125 and a fatal line without running the command.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::enforcement::Gap;
use crate::sys;

/// The runner's name, and as the first argument of `stockade` what makes it the runner.
pub const NAME: &str = "stockade-landlock";

/// The first argument of `stockade` that makes it the runner.
pub const FLAG: &str = "--stockade-landlock";

/// The status of a command that doesn't run.
const FAILED: u8 = 125;

/// The newest ABI that is asked for.
const NEWEST: i64 = 7;

/// What is asked of the runner.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    writable: Vec<PathBuf>,
    no_network: bool,
    abi: Option<i64>,
    report: Option<i32>,
    probe: bool,
    command: Vec<OsString>,
}

impl Request {
    /// Reads the arguments; anything that isn't known is an error.
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut args = args.into_iter();
        let mut request = Self::default();
        while let Some(option) = args.next() {
            let name = option.to_str().unwrap_or_default().to_owned();
            let mut value = || args.next().ok_or_else(|| format!("`{name}` needs a value"));
            let number = |value: OsString| {
                let number = value.to_str().and_then(|text| text.parse::<i32>().ok());
                number
                    .filter(|&number| number >= 0)
                    .ok_or_else(|| format!("`{}` isn't a number", value.to_string_lossy()))
            };
            match name.as_str() {
                "--writable" => request.writable.push(value()?.into()),
                "--network" => {
                    request.no_network = match value()?.to_str() {
                        Some("none") => true,
                        Some("host") => false,
                        _ => return Err("`--network` is `host` or `none`".to_owned()),
                    }
                }
                "--abi" => request.abi = Some(i64::from(number(value()?)?)),
                "--report-fd" => request.report = Some(number(value()?)?),
                "--probe" => request.probe = true,
                "--" => {
                    request.command = args.collect();
                    break;
                }
                _ => return Err(format!("unknown argument `{}`", option.to_string_lossy())),
            }
        }
        match (request.probe, request.command.is_empty()) {
            (true, false) => Err("`--probe` runs no command".to_owned()),
            (false, true) => Err("no command after `--`".to_owned()),
            (true, true) | (false, false) => Ok(request),
        }
    }
}

/// Runs the runner if the command line asks `stockade` for it.
#[must_use]
pub fn main_if_asked() -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == FLAG).then(|| run(std::env::args_os().skip(2)))
}

/// The whole program `stockade-landlock`.
#[must_use]
pub fn main() -> ExitCode {
    run(std::env::args_os().skip(1))
}

#[expect(clippy::print_stderr, reason = "the fatal line is part of the runner's contract")]
fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Request::parse(args).and_then(carry_out) {
        Ok(status) => status,
        Err(why) => {
            eprintln!("{NAME}: fatal: {}", why.replace('\n', " "));
            ExitCode::from(FAILED)
        }
    }
}

fn carry_out(request: Request) -> Result<ExitCode, String> {
    let abi = usable_abi(request.abi)?;
    let mut report = match request.report {
        Some(number) => {
            let fd = sys::inherited(number).map_err(|error| format!("--report-fd: {error}"))?;
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
                .map_err(|error| format!("--report-fd: {error}"))?;
            Some(File::from(fd))
        }
        None => None,
    };
    let mut lines = format!("abi {abi}\n");
    for gap in gaps(abi, request.no_network) {
        lines.push_str(&format!("gap {gap}\n"));
    }
    if request.probe {
        probe(abi)?;
        lines.push_str("probe ok\n");
        // Without a descriptor the answer goes to whoever asked.
        let told = match &mut report {
            Some(report) => report.write_all(lines.as_bytes()),
            None => io::stdout().lock().write_all(lines.as_bytes()),
        };
        return told.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string());
    }
    restrict(abi, &request.writable, request.no_network)?;
    if let Some(report) = &mut report {
        lines.push_str("enforced\n");
        report.write_all(lines.as_bytes()).map_err(|error| format!("--report-fd: {error}"))?;
    }
    drop(report);
    // The language's runtime ignores it.
    sys::set_ignored(libc::SIGPIPE, sys::inherited_ignored().contains(libc::SIGPIPE));
    let command = request.command.first().map(|word| word.to_string_lossy().into_owned());
    let error = exec(&request.command).unwrap_or_else(|error| error);
    let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    complain(&format!("can't run `{}`: {error}", command.unwrap_or_default()));
    Ok(ExitCode::from(status))
}

/// Becomes the command, with signals as they are; returns why it couldn't.
fn exec(words: &[OsString]) -> io::Result<io::Error> {
    use std::os::unix::ffi::OsStrExt;
    let argv: Vec<CString> =
        words.iter().map(|word| crate::spec::c_string(word)).collect::<io::Result<_>>()?;
    let environment: Vec<CString> = std::env::vars_os()
        .map(|(name, value)| Ok(CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())?))
        .collect::<io::Result<_>>()?;
    let candidates =
        crate::init::candidates(&argv.first().cloned().unwrap_or_default(), &environment);
    let (argv, environment) = (sys::CStringArray::new(argv), sys::CStringArray::new(environment));
    let mut failure = rustix::io::Errno::NOENT;
    for path in &candidates {
        match sys::exec(path, &argv, &environment) {
            rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => {}
            errno => failure = errno,
        }
    }
    Ok(failure.into())
}

#[expect(clippy::print_stderr, reason = "the runner's own voice")]
fn complain(what: &str) {
    eprintln!("{NAME}: {what}");
}

/// Returns the ABI to use: the kernel's, unless an older one is asked for.
fn usable_abi(asked: Option<i64>) -> Result<i64, String> {
    let kernel = sys::landlock_abi()
        .map_err(|error| format!("this kernel can't enforce with Landlock: {error}"))?;
    match asked {
        Some(asked) if asked < 1 || asked > kernel => {
            Err(format!("this kernel can't enforce ABI {asked} (it has {kernel})"))
        }
        Some(asked) => Ok(asked.min(NEWEST)),
        None => Ok(kernel.min(NEWEST)),
    }
}

fn level(abi: i64) -> ABI {
    match abi {
        ..=0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        6 => ABI::V6,
        7.. => ABI::V7,
    }
}

/// Returns what an ABI leaves open of what the runner is for: changes outside, and messengers.
#[must_use]
pub fn gaps(abi: i64, no_network: bool) -> Vec<Gap> {
    // No ABI knows these.
    let mut gaps = vec![Gap::Metadata, Gap::HostSockets];
    if abi < 3 {
        gaps.push(Gap::Truncate);
    }
    if abi < 5 {
        gaps.push(Gap::DeviceIoctl);
    }
    if abi < 6 {
        gaps.extend([Gap::AbstractSockets, Gap::Signals]);
    }
    if no_network {
        gaps.push(Gap::NetworkOtherThanTcp);
        if abi < 4 {
            gaps.push(Gap::NetworkTcp);
        }
    }
    gaps
}

/// Lets this process and its descendants write below these paths and nowhere else, for good.
///
/// # Errors
/// Says which part of it the kernel refused. Then nothing may be run.
pub fn restrict(abi: i64, writable: &[PathBuf], no_network: bool) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| format!("can't restrict this process: {error}");
    let level = level(abi);
    let write = AccessFs::from_write(level);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(write)
        .map_err(|error| said(&error))?;
    if no_network && abi >= 4 {
        ruleset = ruleset.handle_access(AccessNet::from_all(level)).map_err(|e| said(&e))?;
    }
    if abi >= 6 {
        ruleset = ruleset.scope(Scope::from_all(level)).map_err(|error| said(&error))?;
    }
    let mut ruleset = ruleset.create().map_err(|error| said(&error))?;
    for path in writable {
        let fd = PathFd::new(path).map_err(|error| said(&error))?;
        let directory =
            std::fs::metadata(path).map_err(|error| format!("`{}`: {error}", path.display()))?;
        let access = if directory.is_dir() { write } else { write & AccessFs::from_file(level) };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, access)).map_err(|error| said(&error))?;
    }
    let status = ruleset.restrict_self().map_err(|error| said(&error))?;
    if status.ruleset == RulesetStatus::FullyEnforced && status.no_new_privs {
        Ok(())
    } else {
        Err("the kernel doesn't enforce all of it".to_owned())
    }
}

/// Really confines a child and sees a forbidden write fail, and an allowed one succeed.
///
/// # Errors
/// Says what went otherwise.
pub fn probe(abi: i64) -> Result<(), String> {
    let base = tempfile::Builder::new()
        .prefix("stockade-probe-")
        .tempdir()
        .map_err(|error| format!("can't make a directory for the probe: {error}"))?;
    let path = |name: &str| base.path().join(name);
    for name in ["allowed", "forbidden"] {
        std::fs::create_dir(path(name)).map_err(|error| format!("the probe: {error}"))?;
    }
    let forbidden = path("forbidden/witness");
    let c_string = |path: &Path| -> Result<CString, String> {
        crate::spec::c_string(path.as_os_str()).map_err(|error| error.to_string())
    };
    let (in_allowed, in_forbidden) = (c_string(&path("allowed/x"))?, c_string(&forbidden)?);
    let allowed = vec![path("allowed")];
    let tried = sys::fork(|| {
        // This program has one thread, so the child may allocate.
        if restrict(abi, &allowed, false).is_err() {
            return 3;
        }
        let make = |path: &CString| -> rustix::io::Result<OwnedFd> {
            let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
            rustix::fs::open(&**path, flags, rustix::fs::Mode::RUSR)
        };
        match (make(&in_allowed), make(&in_forbidden)) {
            (Ok(_), Err(rustix::io::Errno::ACCESS)) => 0,
            (Err(_), _) => 4,
            (_, Ok(_)) => 5,
            (_, Err(_)) => 6,
        }
    });
    let status = tried.and_then(|mut child| child.wait()).map_err(|error| error.to_string())?;
    match (status, forbidden.exists()) {
        (0, false) => Ok(()),
        (_, true) => Err("the probe: a forbidden write went through".to_owned()),
        (status, false) => Err(format!("the probe failed (status {})", status >> 8)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Request, String> {
        Request::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn the_grammar_is_what_the_contract_says() {
        let request = parse(&[
            "--writable",
            "/a",
            "--network",
            "none",
            "--abi",
            "3",
            "--report-fd",
            "5",
            "--writable",
            "/b",
            "--",
            "x",
            "--probe",
        ])
        .unwrap();
        assert_eq!(request.writable, [PathBuf::from("/a"), "/b".into()]);
        assert!(request.no_network && !request.probe);
        assert_eq!((request.abi, request.report), (Some(3), Some(5)));
        assert_eq!(request.command, ["x", "--probe"]);
        for wrong in [
            &["--writable"][..],
            &["--what", "--", "x"],
            &["x"],
            &["--"],
            &[],
            &["--network", "some", "--", "x"],
            &["--abi", "-1", "--", "x"],
            &["--probe", "--", "x"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_abi_names_what_it_lacks() {
        let lacks = |abi: i64, gap: Gap| gaps(abi, true).contains(&gap);
        let rows = [
            (Gap::Truncate, 3),
            (Gap::NetworkTcp, 4),
            (Gap::DeviceIoctl, 5),
            (Gap::AbstractSockets, 6),
            (Gap::Signals, 6),
        ];
        for abi in 1..=7 {
            for (gap, since) in rows {
                assert_eq!(lacks(abi, gap), abi < since, "{abi} {gap}");
            }
            assert!(lacks(abi, Gap::Metadata) && lacks(abi, Gap::NetworkOtherThanTcp));
        }
        assert!(!gaps(1, false).contains(&Gap::NetworkTcp));
    }
}
