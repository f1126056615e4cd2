//! `stockade run`, as a person and as a harness see it (contract L5, L6, L11, section 5).

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{callers, eventually, finish, is_running, text};
use rustix::process::{Pid, Signal};

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// Contract section 5: exit status and outcome of every way to end.
#[test]
fn the_table_of_endings() {
    let rows: [(&[&str], &[&str], i32, &str); 9] = [
        (&[], &["sh", "-c", "exit 0"], 0, "exited"),
        (&[], &["sh", "-c", "exit 7"], 7, "exited"),
        (&[], &["sh", "-c", "exit 125"], 125, "exited"),
        (
            &[],
            &["sh", "-c", "echo 'stockade: error[RUNNER_FAILED]: x' >&2; exit 125"],
            125,
            "exited",
        ),
        (&[], &["sh", "-c", "kill -KILL $$"], 137, "signaled"),
        (&[], &["no-such-command"], 127, "runner_failed"),
        (&[], &["/etc/passwd"], 126, "runner_failed"),
        (&["--timeout", "300ms"], &["sleep", "60"], 124, "timed_out"),
        (&["--workspace", "/"], &["true"], 125, "refused"),
    ];
    for caller in callers() {
        for (options, command, status, outcome) in rows {
            let (output, result) = caller.run(options, command);
            let row = format!("{} {options:?} {command:?} {output:?}", caller.name);
            assert_eq!(output.status.code(), Some(status), "{row}");
            assert_eq!(result["outcome"], outcome, "{row}");
        }
    }
}

#[test]
fn without_bubblewrap_nothing_runs_and_the_cure_is_named() {
    for caller in callers() {
        let marker = caller.path("w/ran");
        let file = caller.path("state/result.json");
        let mut command = caller.stockade([
            "run",
            "--result",
            file.to_str().unwrap(),
            "--backend",
            "bwrap",
            "--",
            "/usr/bin/touch",
            "ran",
        ]);
        command.env("PATH", "/nonexistent").stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = finish(&mut command);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(errors.starts_with("stockade: error[SANDBOX_UNAVAILABLE]: "), "{errors}");
        assert!(errors.contains("\nhelp: install bubblewrap"), "{errors}");
        assert!(!marker.exists());
        let result: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(result["outcome"], "unavailable");
    }
}

#[test]
fn writes_land_only_where_the_mode_allows_and_refusals_are_counted() {
    for caller in callers() {
        let outside = caller.path("home/x");
        let script = format!("echo in > in; echo out > {}; true", outside.display());
        let (output, result) = caller.run(&[], &["sh", "-c", &script]);
        assert!(caller.path("w/in").exists(), "{output:?}");
        assert!(!outside.exists());
        assert!(text(&output.stderr).contains("Read-only file system"), "{output:?}");
        assert_eq!(result["enforcement"]["gaps"], serde_json::json!([]));
        assert_eq!(result["changes"]["created"][0], caller.path("w/in").to_str().unwrap());
        let (output, result) = caller.run(&["--mode", "read-only"], &["sh", "-c", "rm in; cat in"]);
        assert_eq!(text(&output.stdout), "in\n", "{output:?}");
        assert_eq!(result["denial_count"], 1);
        assert_eq!(result["denials"][0]["op"], "unlink");
        assert!(text(&output.stderr).contains("--mode workspace-write"), "{output:?}");
        let script = format!("echo out > {}", outside.display());
        let (output, result) =
            caller.run(&["--mode", "danger-full-access"], &["sh", "-c", &script]);
        assert!(outside.exists(), "{output:?}");
        assert_eq!(result["enforcement"]["level"], "none");
        assert!(text(&output.stderr).contains("unprotected"), "{output:?}");
    }
}

/// Contract P10: also outside of the writable roots, also for what doesn't exist yet.
#[test]
fn what_may_not_be_read_can_not_be_read_and_every_attempt_is_recorded() {
    for caller in callers() {
        std::fs::create_dir(caller.path("home/keys")).unwrap();
        std::fs::write(caller.path("home/keys/id"), "secret").unwrap();
        std::fs::write(caller.path("home/other"), "open").unwrap();
        let keys = caller.path("home/keys");
        let other = caller.path("home/other");
        let later = caller.path("home/*.later");
        let script = "cat $0/id; ls $0; cat $1; echo x > .env; cat .env";
        let (output, result) = caller.run(
            &[
                "--deny-read",
                keys.to_str().unwrap(),
                "--deny-read",
                later.to_str().unwrap(),
                "--deny-read",
                ".env",
            ],
            &["sh", "-c", script, keys.to_str().unwrap(), other.to_str().unwrap()],
        );
        assert_eq!(text(&output.stdout), "open", "{output:?}");
        assert_eq!(text(&output.stderr).matches("Permission denied").count(), 3, "{output:?}");
        assert!(result["denial_count"].as_u64().unwrap() >= 3, "{result}");
    }
}

/// Contract L10: a run can neither read nor write what Stockade keeps.
#[test]
fn stockades_own_state_is_out_of_reach() {
    for caller in callers() {
        let state = caller.path("state");
        for options in [&[][..], &["--writable", state.parent().unwrap().to_str().unwrap()]] {
            let script = "ls $0/sessions; cat $0/sessions/*/log.db; touch $0/x; mv $0 $0.2";
            let (output, _) = caller.run(options, &["sh", "-c", script, state.to_str().unwrap()]);
            assert_eq!(text(&output.stdout), "", "{options:?} {output:?}");
            assert!(!state.join("x").exists() && state.join("sessions").is_dir(), "{options:?}");
        }
    }
}

const CATCHER: &str = "
import signal, sys, time
got = []
for number in (1, 2, 10, 15): signal.signal(number, lambda number, frame: got.append(number))
print('ready', flush=True)
end = time.time() + 1
while time.time() < end: time.sleep(0.02)
print(got, flush=True)
sys.exit(3)
";

/// Contract L6: a signal to the launcher and one to the whole group both arrive exactly once.
#[test]
fn signals_reach_the_command_once() {
    for caller in callers() {
        for group in [false, true] {
            for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1] {
                let mut child = caller
                    .stockade(["run", "--", "python3", "-c", CATCHER])
                    .stdout(Stdio::piped())
                    .process_group(0)
                    .spawn()
                    .unwrap();
                let mut reader = BufReader::new(child.stdout.take().unwrap());
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                assert_eq!(line, "ready\n");
                if group {
                    rustix::process::kill_process_group(pid_of(&child), signal).unwrap();
                } else {
                    rustix::process::kill_process(pid_of(&child), signal).unwrap();
                }
                let mut rest = String::new();
                reader.read_to_string(&mut rest).unwrap();
                let row = format!("{} group {group} {signal:?}", caller.name);
                assert_eq!(rest, format!("[{}]\n", signal.as_raw()), "{row}");
                assert_eq!(child.wait().unwrap().code(), Some(3), "{row}");
            }
        }
    }
}

/// Contract L6: a shell sees the job as stopped, and can continue it.
#[test]
fn a_command_that_stops_itself_stops_the_launcher_and_both_go_on() {
    for caller in callers() {
        let mut child = caller
            .stockade(["run", "--", "sh", "-c", "kill -STOP $$; echo on"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        eventually("the launcher stops", || {
            std::fs::read_to_string(&stat).unwrap().contains(") T ")
        });
        rustix::process::kill_process(pid_of(&child), Signal::CONT).unwrap();
        let mut rest = String::new();
        child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "on\n", "{}", caller.name);
        assert!(child.wait().unwrap().success());
    }
}

/// Contract L6: nobody but the command holds its output.
#[test]
fn a_reader_sees_the_end_when_the_command_closes_its_output() {
    for caller in callers() {
        let mut child = caller
            .stockade(["run", "--", "sh", "-c", "echo a; exec >&-; sleep 3"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(out, "a\n");
        assert!(child.try_wait().unwrap().is_none(), "{}: the command still runs", caller.name);
        assert!(child.wait().unwrap().success());
    }
}

/// Contract L6: however it is killed, no process stays, not even one that left its session.
#[test]
fn nothing_outlives_the_run() {
    for caller in callers() {
        for signal in [Signal::TERM, Signal::KILL] {
            let marker = format!("{}{}", 80_000 + caller.name.len(), signal.as_raw());
            let script =
                format!("setsid sleep {marker} & sleep {marker} & echo up; exec sleep {marker}");
            let mut child = caller
                .stockade(["run", "--", "sh", "-c", &script])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(is_running(&marker));
            rustix::process::kill_process(pid_of(&child), signal).unwrap();
            let status = child.wait().unwrap();
            match signal {
                Signal::KILL => assert_eq!(status.signal(), Some(9)),
                _ => assert_eq!(status.code(), Some(143)),
            }
            eventually("every process ends", || !is_running(&marker));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("/stk"), "{mounts}");
}

/// Contract L6: a command that ignores SIGTERM is killed after the grace period.
#[test]
fn time_runs_out_for_a_command_that_ignores_it() {
    let caller = &callers()[0];
    let clock = Instant::now();
    let (output, result) = caller
        .run(&["--timeout", "200ms"], &["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]);
    assert_eq!(output.status.code(), Some(124));
    assert_eq!(result["outcome"], "timed_out");
    assert!(clock.elapsed() > Duration::from_secs(5), "there was a grace period");
}

const CONNECTOR: &str = "
import socket, sys
for name in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(name.replace('@', chr(0)))
        print('connected', name)
    except OSError as error:
        print(error.errno)
";

/// Contract L11: no socket of the host's can be reached, wherever its name is.
#[test]
fn sockets_of_the_host_are_out_of_reach() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    for caller in callers() {
        let tmp = tempfile::tempdir_in("/tmp").unwrap();
        let places = [caller.path("w/s"), caller.path("home/s"), tmp.path().join("s")];
        let _listeners: Vec<_> =
            places.iter().map(|place| UnixListener::bind(place).unwrap()).collect();
        let name = format!("stk-{}-{}", std::process::id(), caller.name.len());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _abstract = UnixListener::bind_addr(&address).unwrap();
        for place in &places {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(tmp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = vec!["python3", "-c", CONNECTOR];
        command.extend(places.iter().map(|place| place.to_str().unwrap()));
        let name = format!("@{name}");
        command.push(&name);
        for mode in ["read-only", "workspace-write"] {
            let (output, _) = caller.run(&["--mode", mode], &command);
            // Nobody listens there (ECONNREFUSED) where the mount shows a socket of its own or what was found at the start
            // is covered; elsewhere the connection itself is refused (EACCES).
            let answers = text(&output.stdout);
            let answers: Vec<&str> = answers.lines().collect();
            let refused = |answer: &&str| ["111", "13"].contains(answer);
            assert!(
                answers.len() == 4 && answers[..3].iter().all(refused) && answers[3] == "1",
                "{} {mode} {output:?}",
                caller.name
            );
        }
        // The same from outside: the test would see a connection.
        let (output, _) = caller.run(&["--mode", "danger-full-access"], &command);
        assert!(text(&output.stdout).contains("connected @"), "{output:?}");
    }
}

/// Contract L11 and L12: what the command's own process has given up.
#[test]
fn the_command_can_not_reach_the_helper_or_gain_privileges() {
    for caller in callers() {
        let script = "cat /proc/1/environ; ls -l /proc/1/fd/ 2>&1 | grep -c socket; cat /proc/1/maps; \
                      mount -t tmpfs x /mnt; mknod /tmp/stk-node c 1 3; \
                      grep -E 'NoNewPrivs' /proc/self/status";
        let (output, _) = caller.run(&[], &["sh", "-c", script]);
        assert_eq!(text(&output.stdout), "0\nNoNewPrivs:\t1\n", "{output:?}");
        assert!(!std::path::Path::new("/tmp/stk-node").exists());
    }
}

#[test]
fn descriptors_are_closed_but_for_those_that_are_kept() {
    for caller in callers() {
        let file = caller.path("w/kept");
        let inner = "echo kept >&9; ls /proc/self/fd | wc -l";
        // A shell opens the descriptors that the launcher inherits.
        let script = format!(
            "exec {} run --keep-fd 9 -- sh -c '{inner}' 9>kept 10</etc/passwd",
            caller.path("stockade").display()
        );
        let mut command = caller.program("sh");
        command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = finish(&mut command);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept\n", "{output:?}");
        // 0, 1, 2, 9 and the directory that ls reads.
        assert_eq!(text(&output.stdout).trim(), "5", "{output:?}");
    }
}

/// Contract L5: what happens, as it happens, out of band.
#[test]
fn the_status_descriptor_tells_what_happens() {
    let caller = &callers()[0];
    let script = format!(
        "exec {} run --status-fd 3 --mode read-only -- sh -c 'echo x > f' 3>../state/status",
        caller.path("stockade").display()
    );
    let mut command = caller.program("sh");
    command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(&mut command);
    let status = std::fs::read_to_string(caller.path("state/status")).unwrap();
    let lines: Vec<serde_json::Value> =
        status.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "denied", "exited"], "{output:?}");
    assert_eq!(lines[1]["denial"]["reason"], "read-only-mode");
}
