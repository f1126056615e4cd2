//! Limits of memory, processes and processor time (L6): kept by control groups, or a gap that is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use stockade_tests::{Identity, Invocation, World, as_root_and_user, skip};

/// Forks until it may not, and says how often it could.
const FORKS: &str = "import os, time
made = 0
try:
    while made < 50:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError:
    pass
print(made, flush=True)";

/// Control groups in which the world's commands may make others, as a service manager hands them to a user.
struct Delegated(Vec<PathBuf>);

impl Delegated {
    /// Makes them where the suite can; `None` says that there are none to be had on this machine.
    fn make(world: &World) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let name = format!("suite-{}", world.directory().file_name().unwrap().to_string_lossy());
        let mut made = Self(Vec::new());
        for controller in ["memory", "pids", "cpu"] {
            let line = groups.lines().find(|line| {
                line.split(':')
                    .nth(1)
                    .is_some_and(|list| list.split(',').any(|one| one == controller))
            });
            let Some(path) = line.and_then(|line| line.splitn(3, ':').nth(2)) else { continue };
            let own =
                Path::new("/sys/fs/cgroup").join(controller).join(path.trim_start_matches('/'));
            let group = own.join(&name);
            if fs::create_dir(&group).is_err() {
                continue;
            }
            for path in [group.clone(), group.join("cgroup.procs"), group.join("tasks")] {
                world.own(&path);
            }
            made.0.push(group);
        }
        if made.0.len() == 3 {
            return Some(made);
        }
        skip(world.name(), "no control groups of version 1 can be made here");
        None
    }

    /// Starts `stockade` in them.
    fn stockade(&self, world: &World) -> Invocation {
        let script = "while [ \"$1\" != -- ]; do echo $$ > \"$1/cgroup.procs\" || exit 99; shift; done; shift; exec \"$@\"";
        world.native("sh").args(["-c", script, "sh"]).args(&self.0).arg("--").arg(world.binary())
    }

    fn run(
        &self,
        world: &World,
        options: &[&str],
        argv: &[&str],
    ) -> (stockade_tests::Output, serde_json::Value) {
        let file = world.result_file();
        let output = self
            .stockade(world)
            .args(["run", "--result"])
            .arg(&file)
            .args(options)
            .arg("--")
            .args(argv)
            .run();
        let result = World::read_result(&file, &output);
        (output, result)
    }

    /// Lists the groups in them.
    fn left(&self) -> Vec<PathBuf> {
        let inside = |group: &PathBuf| {
            fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(inside).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for group in self.left().iter().chain(&self.0) {
            // A failed test may have left something in it.
            drop(fs::remove_dir(group));
        }
    }
}

as_root_and_user! {
    /// L6: what is asked is kept, counted exactly, said in the result, and nothing of it is left.
    fn limits_hold_for_everything_inside(world) {
        let Some(groups) = Delegated::make(world) else { return };
        for backend in ["bwrap", "landlock"] {
            let options = ["--backend", backend, "--pids", "6", "--memory", "256MiB", "--require-full"];
            let options = if world.identity() == Identity::Root && backend == "landlock" { &options[..6] } else { &options };
            let (output, result) = groups.run(world, options, &["python3", "-c", FORKS]);
            output.assert_success();
            assert_eq!(output.stdout(), "5\n", "{backend}");
            assert_eq!(result["limits"]["pids"]["max"], 6, "{result}");
            assert_eq!(result["limits"]["pids"]["refused"], 1, "{result}");
            assert_eq!(result["limits"]["memory"]["oom_kills"], 0, "{result}");
            assert!(output.stderr().contains("1 process not started"), "{}", output.stderr());
        }
        let (output, result) = groups.run(world, &["--memory", "64MiB"], &["python3", "-c", "x = b'x' * (1 << 28)"]);
        output.assert_code(137);
        assert_eq!(result["outcome"], "signaled");
        assert_eq!(result["limits"]["memory"]["oom_kills"], 1, "{result}");
        assert!(output.stderr().contains("1 process killed"), "{}", output.stderr());
        let spin = "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass\nprint(time.process_time() / 1.5)";
        let (output, result) = groups.run(world, &["--cpus", "0.2"], &["python3", "-c", spin]);
        let share: f64 = output.assert_success().stdout().trim().parse().unwrap();
        assert!(share < 0.4, "{share}");
        assert_eq!(result["limits"]["cpus"]["max"], 0.2, "{result}");
        assert_eq!(groups.left(), Vec::<PathBuf>::new());
    }

    /// L6: the configuration's limits hold for a run, and for one that has bubblewrap's arguments.
    fn limits_of_the_configuration_hold(world) {
        let Some(groups) = Delegated::make(world) else { return };
        let config = world.write("../out/config.toml", "pids = 6\ncpus = 1.5\nmemory = \"256 MiB\"\n");
        let (output, _) = groups.run(world, &["--config", config.to_str().unwrap()], &["python3", "-c", FORKS]);
        assert_eq!(output.assert_success().stdout(), "5\n");
        let compat = ["bwrap-compat", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc", "--", "python3", "-c", FORKS];
        let output = groups.stockade(world).args(compat).env("STOCKADE_CONFIG", &config).run();
        assert_eq!(output.assert_success().stdout(), "5\n");
        let shown = world.stockade().args(["config", "show", "--config"]).arg(&config).run();
        for line in ["memory = \"268435456 B\"", "pids = 6", "cpus = 1.5"] {
            assert!(shown.stdout().contains(line), "{}", shown.stdout());
        }
        assert_eq!(groups.left(), Vec::<PathBuf>::new());
    }

    /// L10: a launcher that is killed leaves groups, and the next start of any run removes them; a living run keeps its own.
    fn groups_of_a_killed_run_are_removed_by_the_next(world) {
        let Some(groups) = Delegated::make(world) else { return };
        let start = |name: &str| {
            let ready = world.workspace().join(name);
            let script = format!("echo > {name}; sleep 60");
            let mut running = groups.stockade(world).args(["run", "-q", "--pids", "9", "--memory", "99MB", "--", "sh", "-c", &script]).spawn();
            running.wait_until("the command runs", || ready.exists());
            running
        };
        let (killed, living) = (start("killed"), start("living"));
        assert_eq!(groups.left().len(), 4);
        killed.signal(Signal::KILL);
        killed.wait().assert_code(137);
        // The kernel takes the processes down by itself.
        std::thread::sleep(Duration::from_millis(300));
        world.run(&["-q"]).arg("true").run().assert_success();
        assert_eq!(groups.left().len(), 2);
        living.signal(Signal::TERM);
        living.wait().assert_code(143);
        assert_eq!(groups.left(), Vec::<PathBuf>::new());
    }

    /// L1: where no group can be made, each limit is a gap by name, `--require-full` refuses, and nothing runs.
    fn a_limit_that_cannot_be_kept_is_said(world) {
        if world.identity() == Identity::Root {
            // Root can make groups, but not in a place where there are none.
            let hide = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
            let base = |options: &[&str]| world.native("unshare").args(["--mount", "sh", "-c", hide, "sh"]).arg(world.binary()).arg("run").args(options);
            said(base);
        } else {
            said(|options| world.stockade().arg("run").args(options));
        }
        assert!(!world.workspace().join("ran").exists());
    }
}

fn said(base: impl Fn(&[&str]) -> Invocation) {
    let limits = ["--memory", "1GB", "--pids", "9", "--cpus", "1"];
    let output = base(&limits).args(["--", "true"]).run();
    output.assert_success();
    let gaps = "not enforced: memory-limit, pids-limit, cpu-limit";
    assert!(output.stderr().contains(gaps), "{}", output.stderr());
    for mode in ["read-only", "danger-full-access"] {
        let output =
            base(&limits).args(["--mode", mode, "--require-full", "--", "touch", "ran"]).run();
        output.assert_code(125);
        assert!(output.stderr().contains("error[SANDBOX_UNAVAILABLE]"), "{}", output.stderr());
    }
    for wrong in [["--pids", "0"], ["--cpus", "0"], ["--memory", "much"]] {
        base(&wrong).args(["--", "touch", "ran"]).run().assert_code(125);
    }
}
