//! `stockade learn`: the smallest profile under which a command passes.

use std::fs;
use std::path::Path;

use serde_json::Value;
use stockade_tests::{Output, World, as_root_and_user};

fn home(world: &World, name: &str, text: &str) {
    let path = world.home().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    world.own_tree(&world.home());
}

fn learn(world: &World, options: &[&str], script: &str) -> Output {
    world.stockade().arg("learn").args(options).args(["--", "sh", "-c", script]).run()
}

/// Runs the script under a profile that was printed, in a configuration of its own.
fn under(world: &World, profile: &str, name: &str, script: &str) -> Output {
    let file = world.outside().join("learnt.toml");
    fs::write(&file, profile).unwrap();
    world.own(&file);
    let file = file.to_str().unwrap();
    world.run(&["-q", "--config", file, "--profile", name]).args(["sh", "-c", script]).run()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", output.stdout(), output.stderr()))
}

fn values(list: &Value) -> Vec<String> {
    let rows = list.as_array().unwrap().iter();
    rows.map(|row| row["value"].as_str().unwrap().to_owned()).collect()
}

/// Returns the profile without each of its grants.
fn without_one(profile: &str) -> Vec<String> {
    let lines: Vec<&str> = profile.lines().collect();
    let grants = (0..lines.len()).filter(|&at| lines[at].starts_with("    "));
    let without = |at: usize| {
        let kept = lines.iter().enumerate().filter(|(other, _)| *other != at);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    grants.map(without).collect()
}

as_root_and_user! {
    /// The profile makes the command pass that failed before, and each line of it is needed: names with a dollar, a
    /// bracket, quotes and a line break in them too.
    fn the_profile_makes_the_command_pass_and_no_line_is_too_much(world) {
        home(world, "data/[a] $HOME/kept", "old\n");
        home(world, "data/one 'file'\n\u{202e}", "old\n");
        home(world, "data/beside", "old\n");
        home(world, "fresh/x", "");
        world.write(".git/hooks/x", "");
        let script = "set -e; d=~/data; echo new > \"$d/one 'file'\n\u{202e}\"; cd \"$d/[a] \\$HOME\"; echo new > kept.tmp; mv kept.tmp kept; \
                      mkdir -p ~/fresh/deep/er; echo x > ~/fresh/deep/er/y; cd \"$W\"; echo hook > .git/hooks/pre-commit; echo done";
        let script = format!("W='{}'; {script}", world.workspace().display());
        let before = world.run(&["-q"]).args(["sh", "-c", &script]).run();
        assert_ne!(before.code, 0);
        let learnt = learn(world, &["--check"], &script);
        learnt.assert_success();
        let profile = learnt.stdout();
        assert!(learnt.stderr().contains("done\n"), "the command's output goes there: {}", learnt.stderr());
        assert!(profile.contains("the last run passed under this profile"), "{profile}");
        assert!(!profile.chars().any(|c| c != '\n' && c.is_control()) && !profile.contains('\u{202e}'), "{profile}");
        fs::remove_file(world.workspace().join(".git/hooks/pre-commit")).unwrap();
        fs::remove_dir_all(world.home().join("fresh/deep")).unwrap();
        let after = under(world, &profile, "learnt", &script);
        assert_eq!(after.assert_success().stdout(), "done\n");
        let grants = without_one(&profile);
        assert_eq!(grants.len(), 4, "{profile}");
        for less in grants {
            fs::remove_dir_all(world.home().join("fresh/deep")).unwrap();
            let output = under(world, &less, "learnt", &script);
            assert_ne!(output.code, 0, "passes without a line: {less}");
            fs::create_dir_all(world.home().join("fresh/deep")).unwrap();
            world.own_tree(&world.home());
        }
        assert_eq!(fs::read_to_string(world.home().join("data/beside")).unwrap(), "old\n");
        let narrower = under(world, &profile, "learnt", "echo x > ~/data/beside");
        assert_ne!(narrower.code, 0, "a file is granted, not what lies beside it");
    }

    /// A command that changes nothing needs `read-only`; one that writes in the workspace alone needs no grant. What was read and looks
    /// secret is named.
    fn a_command_that_asks_for_nothing_gets_nothing(world) {
        home(world, ".aws/credentials", "secret\n");
        world.write("seen", "x\n");
        let learnt = json(&learn(world, &["--json", "-q"], "cat seen ~/.aws/credentials"));
        assert_eq!(learnt["mode"], "read-only");
        assert_eq!((&learnt["passed"], &learnt["checked"]), (&true.into(), &true.into()));
        let sensitive = &learnt["sensitive"];
        assert_eq!(sensitive.as_array().unwrap().len(), 1, "{sensitive}");
        assert_eq!(sensitive[0]["path"], world.home().join(".aws/credentials").to_str().unwrap());
        assert!(sensitive[0]["exe"].as_str().unwrap().ends_with("/cat"), "{sensitive}");
        let profile = learnt["toml"].as_str().unwrap();
        assert!(profile.contains(&format!("#     \"{}/.aws/credentials\"", world.home().display())), "{profile}");
        assert_eq!(under(world, profile, "learnt", "cat ~/.aws/credentials").stdout(), "secret\n");
        let learnt = json(&learn(world, &["--json", "--name", "my own", "-q"], "echo x > made; echo y > /tmp/$$; rm /tmp/$$"));
        assert_eq!((&learnt["mode"], &learnt["passed"]), (&"workspace-write".into(), &true.into()));
        assert!(values(&learnt["writable_roots"]).is_empty() && values(&learnt["allow_write"]).is_empty(), "{learnt}");
        under(world, learnt["toml"].as_str().unwrap(), "my own", "echo x > made").assert_success();
    }

    /// What reaches far isn't granted in silence, what a rule of the operator's refuses isn't lifted, and nothing runs unprotected.
    fn what_reaches_far_is_named_and_not_granted(world) {
        home(world, "secret", "s\n");
        let script = "echo x > ~/new; mkdir ~/.cache; cat ~/secret; echo x > /etc/stockade-test; echo mode=$STOCKADE_MODE";
        let denied = format!("{}/secret", world.home().display());
        let output = learn(world, &["--json", "--deny-read", &denied], script);
        assert!(output.stderr().contains("mode=workspace-write\n"), "{}", output.stderr());
        let learnt = json(&output);
        assert_eq!((&learnt["passed"], output.code), (&false.into(), 0));
        assert!(values(&learnt["writable_roots"]).is_empty(), "{learnt}");
        let home = world.home();
        let home = home.to_str().unwrap();
        assert!(values(&learnt["wide"]).contains(&home.to_owned()), "{learnt}");
        assert!(values(&learnt["missing"]).contains(&format!("{home}/.cache")), "{learnt}");
        assert_eq!(values(&learnt["refused"]), [denied]);
        assert_eq!(learnt["rounds"].as_array().unwrap().len(), 1, "nothing new is granted, so it ran once");
        assert!(!world.home().join("new").exists());
        // With the word for it, it is.
        let script = "mkdir -p ~/.cache/x && echo x > ~/.cache/x/y";
        let learnt = json(&learn(world, &["--json", "--mkdir", "-q"], script));
        assert_eq!(values(&learnt["writable_roots"]), [format!("{home}/.cache")], "{learnt}");
        under(world, learnt["toml"].as_str().unwrap(), "learnt", script).assert_success();
        let learnt = json(&learn(world, &["--json", "--wide", "-q"], "echo x > ~/new"));
        assert_eq!(values(&learnt["writable_roots"]), [home], "{learnt}");
        assert_eq!(learnt["passed"], true);
    }

    /// `--rounds 1` runs the command once, and with no more than the workspace.
    fn one_round_widens_nothing(world) {
        home(world, "d/x", "");
        let output = learn(world, &["--rounds", "1", "--json"], "echo run; echo x > ~/d/y; exit 3");
        assert_eq!((output.code, output.stderr().matches("run\n").count()), (3, 1));
        let learnt = json(&output);
        assert_eq!(learnt["passed"], false);
        assert_eq!(values(&learnt["writable_roots"]), [format!("{}/d", world.home().display())]);
        assert!(!world.home().join("d/y").exists());
        // A command that can't be run at all says so.
        let output = world.stockade().args(["learn", "--config", "/nonexistent", "--", "true"]).run();
        assert_eq!(output.code, 125);
        assert!(output.stderr().contains("CONFIG_INVALID") && output.stdout().is_empty(), "{}", output.stderr());
        let leftovers = fs::read_dir(world.state().join("stockade")).unwrap();
        let left = leftovers.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".learn-")).count();
        assert_eq!(left, 0);
    }

    /// A real tool that needs a cache: found in several rounds, since it stops at the first refusal; many files are one directory with `--fold`.
    fn a_program_that_stops_at_the_first_refusal_is_run_again(world) {
        for name in ["a/f", "b/f", "c/f", "many/1", "many/2", "many/3"] {
            home(world, name, "old\n");
        }
        let script = "set -e; for d in a b c; do echo x > ~/$d/new; rm ~/$d/new; done";
        let learnt = json(&learn(world, &["--json", "-q"], script));
        assert_eq!(learnt["rounds"].as_array().unwrap().len(), 4, "{learnt}");
        assert_eq!(values(&learnt["writable_roots"]).len(), 3);
        let script = "for f in 1 2 3; do echo new > ~/many/$f; done; [ \"$(cat ~/many/3)\" = new ]";
        let roots = |options: &[&str]| values(&json(&learn(world, &[&["--json", "-q"], options].concat(), script))["writable_roots"]);
        assert_eq!(roots(&[]).len(), 3);
        let many = world.home().join("many");
        assert_eq!(roots(&["--fold", "2"]), [many.to_str().unwrap()]);
        let file = world.workspace().join("p.toml");
        let output = learn(world, &["-q", "-o", file.to_str().unwrap()], "echo shown; echo x > made");
        assert_eq!(output.stdout(), "shown\n", "{}", output.stderr());
        assert!(fs::read_to_string(Path::new(&file)).unwrap().contains("[profile.learnt]"));
    }
}
