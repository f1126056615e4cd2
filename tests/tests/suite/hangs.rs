//! A file system that doesn't answer: a start that depends on it is refused with its name in a few seconds, whatever named it,
//! and signals end it meanwhile (L1, L6, L10).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stockade_tests::{Invocation, World, as_root_and_user, skip};

/// A mount whose server doesn't answer, for as long as this lives.
struct Hung {
    server: Child,
    path: PathBuf,
}

impl Hung {
    fn mount(world: &World, how: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(world.name(), "only root can mount a file system for another");
            return None;
        }
        let path = world.directory().join(format!("hung-{how}"));
        fs::create_dir(&path).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hang.py");
        let mut server = Command::new("python3")
            .arg(program)
            .arg(&path)
            .args([&world.ids().0.to_string(), how])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self { server, path })
    }

    fn join(&self, name: &str) -> String {
        self.path.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        drop(self.server.wait());
    }
}

/// Every way to name the mount.
fn starts(world: &World, hung: &Hung) -> Vec<(&'static str, Invocation)> {
    let top = hung.join("");
    let top = top.trim_end_matches('/');
    let run = |options: &[&str]| world.run(options).args(["touch", "ran"]);
    let config = format!("deny_read = [\"{top}/secret\"]\n");
    let config = world.write(format!("../out/config-{}", top.len()), config);
    vec![
        ("workspace", run(&["--workspace", top])),
        ("writable", run(&["--writable", &hung.join("x")])),
        ("observe", run(&["--observe-root", top])),
        ("deny-read", run(&["--deny-read", &hung.join("*.pem")])),
        ("deny-write", run(&["--deny-write", &hung.join("x")])),
        ("socket", run(&["--socket", &hung.join("s")])),
        ("result", run(&["--result", &hung.join("r.json")])),
        ("config", run(&["--config", &hung.join("c.toml")])),
        ("configured", run(&["--config", config.to_str().unwrap()])),
        ("TMPDIR", run(&[]).env("TMPDIR", top)),
        ("PATH", run(&[]).env("PATH", format!("/bin:{top}:/usr/bin"))),
        ("HOME", run(&[]).env("HOME", top)),
        ("STOCKADE_STATE", run(&[]).env("STOCKADE_STATE", hung.join("state"))),
        ("mount", world.stockade().args(["mount", top, "elsewhere"])),
        ("session", world.stockade().args(["session", "new", "--workspace", top])),
        (
            "compat",
            world.stockade().args(["bwrap-compat", "--bind", top, top, "--", "touch", "ran"]),
        ),
    ]
}

as_root_and_user! {
    /// L10: nothing hangs, the error names the path and says what to do, and nothing runs.
    fn a_start_does_not_hang_with_a_file_system(world) {
        for how in ["read", "leave"] {
            let Some(hung) = Hung::mount(world, how) else { return };
            // Who doesn't depend on it isn't concerned.
            world.run(&["-q", "--require-full"]).arg("true").run().assert_success();
            let begun = Instant::now();
            let running: Vec<_> = starts(world, &hung)
                .into_iter()
                .map(|(name, start)| (name, start.deadline(Duration::from_secs(30)).spawn()))
                .collect();
            let interrupted = world.run(&["--workspace", hung.path.to_str().unwrap()]).arg("true").spawn();
            std::thread::sleep(Duration::from_millis(500));
            interrupted.signal(Signal::TERM);
            let sent = Instant::now();
            assert_eq!(interrupted.wait().signal, Some(Signal::TERM.as_raw()));
            assert!(sent.elapsed() < Duration::from_secs(2), "{:?}", sent.elapsed());
            for (name, running) in running {
                let output = running.wait();
                let status = if name == "compat" { 1 } else { 125 };
                assert_eq!(output.code, status, "{how} {name}: {}", output.stderr());
                for part in ["error[RUNNER_FAILED]", "doesn't answer", hung.path.to_str().unwrap(), "help: "] {
                    assert!(output.stderr().contains(part), "{how} {name}: {}", output.stderr());
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
            assert!(!world.workspace().join("ran").exists());
        }
    }
}
