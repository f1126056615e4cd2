//! Unix sockets: the run's own work, the host's can't be reached, made before or during the run (L11).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use stockade_tests::{World, as_root_and_user};

use crate::program::{self, PYTHON};

/// Makes a socket that everybody may connect to, if the file system's view lets them.
fn listen(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// Runs the program inside; one socket of the host's is there at the start, two are made when it is ready: outside, and in
/// the workspace. Returns what came of each attempt, and the three listeners.
fn attempts(world: &World, prefix: &[&str]) -> (BTreeMap<String, String>, [UnixListener; 3]) {
    let program = program::install(world, "sockets.py", program::SOCKETS);
    let paths: [PathBuf; 3] = [
        world.outside().join("early"),
        world.outside().join("late"),
        world.workspace().join("within"),
    ];
    let early = listen(&paths[0]);
    let mut invocation = match prefix.split_first() {
        Some((_, options)) => world.stockade().arg("run").args(options).arg("--").arg(PYTHON[0]),
        None => world.native(PYTHON[0]),
    };
    invocation = invocation.args(&PYTHON[1..]).arg(&program).args(&paths);
    let mut running = invocation.spawn();
    let ready = world.workspace().join("ready");
    running.wait_until("the program is ready", || ready.exists());
    let others = [listen(&paths[1]), listen(&paths[2])];
    world.write("go", "");
    let output = running.wait();
    output.assert_success();
    let text = output.stdout();
    let outcomes = program::columns(&text)
        .into_iter()
        .map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect();
    let [late, within] = others;
    (outcomes, [early, late, within])
}

as_root_and_user! {
    /// L11: whatever the way, whenever it was made, a socket of the host's isn't reached; the run says `full`, and the
    /// sockets that programs make among themselves work as ever.
    fn only_sockets_of_the_run_are_reached(world) {
        let (outcomes, listeners) = attempts(world, &["run", "-q", "--require-full"]);
        for (index, listener) in listeners.iter().enumerate() {
            assert!(listener.accept().is_err(), "somebody reached {index}: {outcomes:#?}");
        }
        for (what, outcome) in &outcomes {
            let expected: &[&str] = match what.as_str() {
                "closed-to-others" if world.identity().is_root() => &["EACCES"],
                // Nobody but root is stopped by a mode of 0 on their own file natively, and the same holds here.
                "closed-to-others" => &["EACCES", "EPERM"],
                "own-wrong-type" => &["EPROTOTYPE"],
                "missing" => &["ENOENT"],
                "plain-file" => &["ECONNREFUSED"],
                "bad-descriptor" => &["EBADF"],
                "bad-address" => &["EFAULT"],
                "tcp-refused" => &["ECONNREFUSED"],
                "interrupted" => &["EINTR"],
                "datagram" | "raw" | "datagram-pair" => &["EACCES"],
                "io-uring" => &["ENOSYS"],
                // In the workspace the host's sockets are none of ours; elsewhere they are refused, or covered.
                host if host.starts_with("host-") => &["EACCES", "ECONNREFUSED", "ENOTSOCK"],
                _ => &["reached"],
            };
            assert!(expected.contains(&outcome.as_str()), "{what}: {outcome}");
        }
        assert!(outcomes.len() >= 40, "{outcomes:#?}");
    }

    /// The control: without Stockade each of them is reached.
    fn natively_they_are_reached(world) {
        let (outcomes, listeners) = attempts(world, &[]);
        for (what, outcome) in outcomes.iter().filter(|(what, _)| what.starts_with("host-")) {
            // The race is won sooner or later, not surely.
            let sure = !what.ends_with("swapped") && !what.ends_with("descriptor");
            assert!(outcome == "reached" || !sure, "{what}: {outcome}");
        }
        for listener in &listeners {
            assert!(listener.accept().is_ok());
        }
    }

    /// `--socket`: what the operator names is reached, and nothing else.
    fn a_named_socket_is_reached(world) {
        let named = world.outside().join("named");
        let other = world.outside().join("other");
        let listeners = [listen(&named), listen(&other)];
        let script = "import socket, sys\nfor path in sys.argv[1:]:\n try: socket.socket(socket.AF_UNIX).connect(path); print('reached')\n except OSError as e: print('refused')";
        let output = world.run(&["--socket", named.to_str().unwrap()]).args(PYTHON).args(["-c", script]).args([&named, &other]).run();
        output.assert_success();
        assert_eq!(output.stdout(), "reached\nrefused\n");
        assert!(listeners[0].accept().is_ok());
        assert!(listeners[1].accept().is_err());
    }

    /// L12: root's command keeps nine capabilities and can't get one back; an ordinary user's has none.
    fn the_command_keeps_only_what_file_work_needs(world) {
        let output = world.run(&[]).args(["grep", "-h", "^Cap", "/proc/self/status"]).run();
        output.assert_success();
        let nine = [0, 1, 3, 4, 5, 6, 7, 10, 31].iter().fold(0_u64, |set, bit| set | 1 << bit);
        let wanted = if world.identity().is_root() { nine } else { 0 };
        for line in output.stdout().lines() {
            let (name, set) = line.split_once(":\t").unwrap();
            let set = u64::from_str_radix(set, 16).unwrap();
            let ambient = matches!(name, "CapInh" | "CapAmb") && set & !wanted == 0;
            assert!(set == wanted || ambient || name == "CapBnd" && !world.identity().is_root(), "{name} {set:x}");
        }
    }
}
