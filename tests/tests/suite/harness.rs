//! The harness itself: what the other topics rest on.

use std::fs;
use std::time::{Duration, Instant};

use stockade_tests::as_root_and_user;

as_root_and_user! {
    /// The identity is really taken, in the world's own directories.
    fn commands_run_as_the_identity(world) {
        let output = world.native("sh").args(["-c", "id -u; pwd; echo x > made; cat; echo e >&2; exit 7"]).input("in").run();
        output.assert_code(7);
        let (uid, _) = world.ids();
        assert_eq!(output.stdout(), format!("{uid}\n{}\nin", world.workspace().display()));
        assert_eq!(output.stderr(), "e\n");
        assert_eq!(fs::read(world.workspace().join("made")).unwrap(), b"x\n");
    }

    /// A command in a `/tmp` of the world's own leaves the machine's alone, and what it leaves is seen.
    fn a_private_tmp_is_watched(world) {
        if !world.with_private_tmp() {
            return;
        }
        let leaks = world.leaks();
        world.native("sh").args(["-c", "echo x > /tmp/litter; id -u"]).run().assert_success();
        assert!(!std::path::Path::new("/tmp/litter").exists());
        assert_eq!(leaks.found(), [format!("file {}", world.tmp().join("litter").display())]);
    }

    /// A process that was left is found, and killed when the world ends.
    fn a_left_process_is_found(world) {
        let leaks = world.leaks();
        let pid = world.native("sh").args(["-c", "sleep 600 >/dev/null 2>&1 & echo $!"]).run().stdout();
        let found = leaks.found();
        assert_eq!(found, [format!("process {} (sleep)", pid.trim())]);
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert_eq!(leaks.found(), [""; 0]);
    }

    /// What outlives its deadline is killed with its descendants, and the test fails.
    fn the_watchdog_ends_what_hangs(world) {
        let leaks = world.leaks();
        let started = Instant::now();
        let hanging = world.native("sh").args(["-c", "setsid sleep 600 & sleep 600"]).deadline(Duration::from_secs(1)).spawn();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hanging.wait())).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("outlived"));
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(leaks.found(), [""; 0]);
    }
}
