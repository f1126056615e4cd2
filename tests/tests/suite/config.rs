//! The operator's configuration: what it says is what holds, and only the operator's is read (CONTRACT 5).

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use stockade_tests::{World, as_root_and_user};

use crate::program::PYTHON;

/// Writes the file in the configuration directory.
pub fn configure(world: &World, text: &str) -> PathBuf {
    let file = world.home().join(".config/stockade/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    world.own_tree(&world.home());
    file
}

fn denials(result: &Value) -> Vec<(&str, &str)> {
    let rows = result["denials"].as_array().unwrap();
    rows.iter()
        .map(|row| (row["reason"].as_str().unwrap(), row["source"].as_str().unwrap()))
        .collect()
}

as_root_and_user! {
    /// What isn't understood is refused with the file, the line and the nearest name, and nothing runs.
    fn what_is_not_understood_is_refused(world) {
        let file = configure(world, "mode = \"read-only\"\n\n[profile.x]\nwritable = []\n");
        let output = world.run(&[]).args(["touch", "ran"]).run();
        output.assert_code(125);
        let expected = format!("stockade: error[CONFIG_INVALID]: {}:4: unknown key `writable`\nhelp: did you mean `writable_roots`?\n", file.display());
        assert_eq!(output.stderr(), expected);
        let show = world.stockade().args(["config", "show"]).run();
        show.assert_code(125);
        assert_eq!(show.stderr(), expected);
        configure(world, "");
        for (options, part) in [
            (["--profile", "secret"].as_slice(), "did you mean `secrets`?"),
            (&["--config", "/nonexistent.toml"], "`/nonexistent.toml`"),
        ] {
            let output = world.run(options).args(["touch", "ran"]).run();
            output.assert_code(125);
            assert!(output.stderr().contains("error[CONFIG_INVALID]") && output.stderr().contains(part), "{}", output.stderr());
        }
        assert!(!world.workspace().join("ran").exists());
    }

    /// The command line goes before profiles, profiles before the file, the file before the defaults.
    fn each_value_says_where_it_came_from(world) {
        let file = configure(world, "mode = \"read-only\"\nguard = \"off\"\ndeny_read = [\"a\"]\n[profile.ci]\nextends = [\"secrets\"]\nguard = \"enforce\"\ndeny_read = [\"b\"]\n");
        let show = |options: &[&str]| {
            let output = world.stockade().args(["config", "show", "--json"]).args(options).run();
            output.assert_success();
            let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(shown["file"], file.to_str().unwrap());
            shown["settings"].as_array().unwrap().clone()
        };
        let rows = show(&["--profile", "ci", "--network", "none"]);
        let origin = |key: &str, value: &str| {
            let row = rows.iter().find(|row| row["key"] == key && row["value"] == value);
            row.unwrap_or_else(|| panic!("no {key} {value} in {rows:#?}"))["origin"].as_str().unwrap().to_owned()
        };
        assert_eq!(origin("mode", "read-only"), format!("{}:1", file.display()));
        assert_eq!(origin("guard", "enforce"), format!("{}:6", file.display()));
        assert_eq!(origin("network", "none"), "--network");
        assert_eq!(origin("publish", "atomic"), "default");
        assert_eq!(origin("deny_read", "b"), format!("{}:7", file.display()));
        assert_eq!(origin("deny_read", ".env"), "profile secrets (shipped)");
        assert_eq!(origin("deny_read", &format!("{}/.ssh", world.home().display())), "profile secrets (shipped)");
        // What is shown is a configuration that says the same.
        let text = world.stockade().args(["config", "show", "--profile", "ci"]).run();
        let copy = world.outside().join("copy.toml");
        fs::write(&copy, &text.stdout).unwrap();
        let again = world.stockade().args(["config", "show", "--config"]).arg(&copy).run();
        assert_eq!(again.stdout(), text.stdout());
        let lines = world.stockade().args(["config", "show", "--origin"]).run();
        assert!(lines.stdout().lines().any(|line| line.starts_with("guard = \"off\"") && line.ends_with(":2")), "{}", lines.stdout());
        let example = world.stockade().args(["config", "example"]).run();
        fs::write(&copy, &example.stdout).unwrap();
        world.run(&["--config", copy.to_str().unwrap()]).arg("true").run().assert_success();
    }

    /// Each key holds for what then runs.
    fn every_key_reaches_the_run(world) {
        let extra = world.outside().join("extra");
        fs::create_dir(&extra).unwrap();
        world.own(&extra);
        world.write("linked", "x");
        fs::hard_link(world.workspace().join("linked"), world.outside().join("linked")).unwrap();
        world.write("secret", "x");
        world.write("locked", "x");
        configure(world, &format!(
            "writable_roots = [\"{}\", \"/nonexistent/at/all\"]\ndeny_read = [\"secret\"]\ndeny_write = [\"locked\"]\nallow_write = [\".vscode\"]\nhardlinks = \"deny\"\nnetwork = \"none\"\nobserve = \"full\"\n",
            extra.display()
        ));
        let script = format!(
            "cat secret; echo x > locked; echo x > linked; mkdir .idea; mkdir .vscode && echo x > {}/f && grep -c : /proc/net/dev; for i in 1 2 3 4 5; do echo $i; done > many",
            extra.display()
        );
        let (output, result) = world.run_with_result(&["-q"], &["sh", "-c", &script]);
        assert_eq!(output.stdout(), "1\n", "{}", output.stderr());
        let denials = denials(&result);
        for expected in [("read-denied", "deny-read secret"), ("write-denied", "deny-write locked"), ("protected-path", "protection .idea")] {
            assert!(denials.contains(&expected), "{expected:?} in {denials:?}");
        }
        assert!(denials.iter().any(|(rule, _)| *rule == "hard-link"), "{denials:?}");
        assert!(world.workspace().join(".vscode").is_dir() && extra.join("f").exists());
        let log = world.stockade().args(["log", "--json", "--op", "write", "--path", "**/many"]).run();
        assert!(log.stdout().lines().count() >= 5, "each write is recorded: {}", log.stdout());

        configure(world, "timeout = \"200ms\"\n");
        world.run(&["-q"]).args(["sleep", "60"]).run().assert_code(124);
        world.run(&["-q", "--timeout", "60s"]).args(["sleep", "0.5"]).run().assert_success();
        configure(world, "require_full = true\nhardlinks = \"follow\"\n");
        let output = world.run(&[]).arg("true").run();
        output.assert_code(125);
        assert!(output.stderr().contains("hard-links"), "{}", output.stderr());
        // A runner that doesn't confine is never taken for one that does.
        configure(world, "runner_command = [\"env\"]\nbackend = \"custom\"\n");
        let output = world.run(&[]).args(["sh", "-c", "echo ran; echo x > ../out/f"]).run();
        assert!(output.code != 0 && !world.outside().join("f").exists(), "{}", output.stderr());
    }

    /// F5: `--publish` says whether the host sees a part of what is written.
    fn publication_can_be_turned_off(world) {
        for (how, part) in [("direct", "part\n"), ("atomic", "")] {
            configure(world, &format!("publish = \"{how}\"\n"));
            // One process that closes nothing meanwhile: each close after a write publishes.
            let script = "import os, time\nf = os.open('f', os.O_WRONLY | os.O_CREAT)\nos.write(f, b'part\\n')\nos.mkdir('ready')\nwhile not os.path.exists('go'): time.sleep(0.05)";
            let mut running = world.run(&["-q"]).args(PYTHON).args(["-c", script]).spawn();
            let ready = world.workspace().join("ready");
            running.wait_until("it wrote", || ready.exists());
            let seen = fs::read_to_string(world.workspace().join("f")).unwrap_or_default();
            world.write("go", "");
            running.wait().assert_success();
            assert_eq!(seen, part, "{how}");
            assert_eq!(fs::read(world.workspace().join("f")).unwrap(), b"part\n");
            for name in ["f", "go"] {
                fs::remove_file(world.workspace().join(name)).unwrap();
            }
            fs::remove_dir(ready).unwrap();
        }
    }

    /// A workspace's own files are never configuration, and the operator's can't be written from inside.
    fn only_the_operators_file_is_read(world) {
        for name in ["config.toml", "stockade.toml", ".stockade.toml", ".stockade/config.toml", ".config/stockade/config.toml"] {
            world.write(name, "mode = \"danger-full-access\"\nnonsense = 1\n");
        }
        let (output, result) = world.run_with_result(&["-q"], &["true"]);
        output.assert_success();
        assert_eq!(result["policy"]["mode"], "workspace-write");
        let mine = world.write("mine.toml", "deny_read = [\"x\"]\n");
        let script = "echo 'mode = \"danger-full-access\"' > mine.toml; rm -f mine.toml; mv mine.toml other";
        let output = world.run(&["-q", "--config", mine.to_str().unwrap()]).args(["sh", "-c", script]).run();
        assert_ne!(output.code, 0);
        assert_eq!(fs::read_to_string(mine).unwrap(), "deny_read = [\"x\"]\n");
        configure(world, "mode = \"read-only\"\n");
        let home = world.home();
        let script = "cat .config/stockade/config.toml; echo > .config/stockade/config.toml; ls .config/stockade";
        let output = world.run(&["-q", "--mode", "workspace-write", "--workspace", home.to_str().unwrap()]).args(["sh", "-c", script]).directory(&home).run();
        assert_eq!(output.stdout(), "", "{}", output.stderr());
        assert_eq!(fs::read_to_string(home.join(".config/stockade/config.toml")).unwrap(), "mode = \"read-only\"\n");
    }

    /// P6: what is named must be there, and may be a single file; nothing beside it can be written then.
    fn a_root_can_be_one_file(world) {
        let file = world.home().join("notes");
        fs::write(&file, "old\n").unwrap();
        world.own(&file);
        let script = format!("cat {0} && echo new > {0} && echo more >> {0}; echo x > {0}.other; mv {0} {0}2; ls -A {1}", file.display(), world.home().display());
        let (output, result) = world.run_with_result(&["-q", "--writable", file.to_str().unwrap()], &["sh", "-c", &script]);
        assert_eq!(output.stdout(), "old\nnotes\n", "{}", output.stderr());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new\nmore\n");
        assert!(result["policy"]["writable_roots"].as_array().unwrap().contains(&file.to_str().unwrap().into()));
        let missing = world.run(&["--writable", "/nonexistent/x"]).arg("true").run();
        missing.assert_code(125);
        assert!(missing.stderr().contains("error[POLICY_INVALID]"), "{}", missing.stderr());
    }

    /// P6: names that aren't there yet may be writable, so that a single file can be saved by renaming; nothing else is.
    fn writable_names_may_be_a_glob(world) {
        let home = world.home();
        let file = home.join("[s] state.json");
        fs::write(&file, "old\n").unwrap();
        fs::create_dir_all(home.join(".ssh")).unwrap();
        fs::write(home.join(".ssh/key"), "key\n").unwrap();
        world.own_tree(&home);
        let script = "cd ~; mkdir '[s] state.json.lock' && echo new > '[s] state.json.tmp.1' && mv '[s] state.json.tmp.1' '[s] state.json' && rmdir *.lock && echo saved; \
                      echo x > other; echo x > '[s] state.json2'; echo x > s.json.tmp; mv '[s] state.json' away; ln .ssh/key '[s] state.json.key'; mv .ssh/key '[s] state.json.key'; echo evil > '[s] state.json.key'; rm '[s] state.json.key'; \
                      mkdir '[s] state.json.d'; mkdir -p '[s] state.json.d/.git/hooks' && echo x > '[s] state.json.d/.git/hooks/pre-commit'; rm -r '[s] state.json.d'; ls -A";
        let names = format!("{}/\\[s\\] state.json.*", home.display());
        let literal = [file.to_str().unwrap(), names.as_str()];
        let output = world.run(&["-q", "--writable", literal[0], "--writable", literal[1]]).args(["sh", "-c", script]).run();
        assert_eq!(output.stdout(), ".ssh\n[s] state.json\n".replace(".ssh", "saved\n.ssh"), "{}", output.stderr());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
        assert_eq!(fs::read_to_string(home.join(".ssh/key")).unwrap(), "key\n");
        // From the configuration, in a directory that's missing too; `why` says what made it so.
        configure(world, "writable_roots = [\"~/a.*\", \"~/missing/a.*\"]\n");
        let (output, result) = world.run_with_result(&["-q"], &["sh", "-c", "echo x > ~/a.1; mkdir ~/a.d && echo y > ~/a.d/b; echo x > ~/b; cat ~/a.1 ~/a.d/b"]);
        assert_eq!(output.stdout(), "x\ny\n", "{}", output.stderr());
        assert!(result["policy"]["writable_roots"].as_array().unwrap().contains(&home.join("a.*").to_str().unwrap().into()), "{result}");
        let why = world.stockade().args(["why", "--op", "create", "--path"]).arg(home.join("a.new")).run();
        assert!(why.stdout().contains("writable name") && why.stdout().contains("allow"), "{}", why.stdout());
        for bad in ["/*/x", "/etc/**", "/nonexistent/x*"] {
            let refused = world.run(&["--writable", bad]).arg("true").run();
            refused.assert_code(125);
            assert!(refused.stderr().contains("error[POLICY_INVALID]"), "{bad}: {}", refused.stderr());
        }
    }

    /// P11: in a linked working tree that is the workspace alone, git works; what runs code outside stays protected.
    fn git_works_in_a_linked_working_tree(world) {
        if !world.has("git") { return }
        let git = |directory: &PathBuf, words: &[&str]| {
            let output = world.native("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(words).directory(directory).run();
            output.assert_success();
        };
        for (name, bare) in [("main", false), ("store", true)] {
            let main = world.home().join(name);
            fs::create_dir(&main).unwrap();
            world.own(&main);
            git(&main, if bare { &["init", "-q", "--bare", "."] } else { &["init", "-q"] });
            let tree = world.directory().join(format!("{name}-tree"));
            fs::create_dir(&tree).unwrap();
            world.own(&tree);
            git(&main, &["worktree", "add", "-q", "--orphan", "-b", "work", tree.to_str().unwrap()]);
            let repository = if bare { main.clone() } else { main.join(".git") };
            let script = format!(
                "set -e; echo x > f; git add f; git -c user.name=n -c user.email=e@x commit -qm one; git status --short; git log --oneline | wc -l; \
                 set +e; echo x > {0}/hooks/pre-commit; git config core.pager evil; echo x > {1}/outside; true",
                repository.display(),
                world.home().display()
            );
            let output = world.run(&["-q", "--workspace", tree.to_str().unwrap()]).args(["sh", "-c", &script]).directory(&tree).run();
            output.assert_success();
            assert_eq!(output.stdout().trim(), "1", "{}", output.stderr());
            assert!(!repository.join("hooks/pre-commit").exists() && !world.home().join("outside").exists());
            assert!(!fs::read_to_string(repository.join("config")).unwrap().contains("evil"));
            git(&tree, &["fsck", "--strict"]);
        }
        // A `.git` file that no repository answers to opens nothing.
        let victim = world.home().join("victim/.git/worktrees/t");
        fs::create_dir_all(&victim).unwrap();
        for (name, text) in [("commondir", "../..\n"), ("gitdir", "/elsewhere/.git\n")] {
            fs::write(victim.join(name), text).unwrap();
        }
        world.own_tree(&world.home().join("victim"));
        world.write(".git", format!("gitdir: {}\n", victim.display()));
        let output = world.run(&["-q"]).args(["touch", victim.join("x").to_str().unwrap()]).run();
        assert_ne!(output.code, 0);
    }
}
