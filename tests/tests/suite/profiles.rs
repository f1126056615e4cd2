//! The shipped profiles with real tools: what they open, and what they close.

use std::fs;

use stockade_tests::{World, as_root_and_user};

fn home(world: &World, name: &str, text: &str) {
    let path = world.home().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    world.own_tree(&world.home());
}

as_root_and_user! {
    /// Secrets in the environment are withheld where that is asked for, and named without their values; the rest passes.
    fn secrets_in_the_environment_are_withheld(world) {
        let secrets = [("GH_TOKEN", "s3cret"), ("AWS_REGION", "s3cret"), ("MY_API_KEY", "s3cret"), ("db_password", "s3cret"), ("PLAIN", "plain")];
        let run = |options: &[&str]| {
            let file = world.result_file();
            let output = world.stockade().args(["run", "--result"]).arg(&file).args(options).args(["--", "env"]).envs(&secrets).run();
            output.assert_success();
            let text = fs::read_to_string(&file).unwrap();
            (output.clone(), World::read_result(&file, &output), text)
        };
        let (output, result, _) = run(&[]);
        assert_eq!(output.stdout().matches("s3cret").count(), 4, "{}", output.stdout());
        assert_eq!(result["withheld"], serde_json::json!([]));
        let (output, result, text) = run(&["--profile", "secrets"]);
        assert!(output.stdout().contains("PLAIN=plain") && output.stdout().contains("PATH="), "{}", output.stdout());
        assert_eq!(result["withheld"], serde_json::json!(["AWS_REGION", "GH_TOKEN", "MY_API_KEY", "db_password"]));
        assert!(output.stderr().contains("stockade: withheld from the environment: AWS_REGION, GH_TOKEN, MY_API_KEY, db_password\n"), "{}", output.stderr());
        for text in [output.stdout(), output.stderr(), text] {
            assert!(!text.contains("s3cret"), "{text}");
        }
        let (output, result, _) = run(&["--withhold-env", "*_token", "--withhold-env", "PLAIN", "--pass-env", "PLAIN", "-q"]);
        assert_eq!(output.stdout().matches("s3cret").count(), 3, "{}", output.stdout());
        assert!(output.stdout().contains("PLAIN=plain") && output.stderr().is_empty());
        assert_eq!(result["withheld"], serde_json::json!(["GH_TOKEN"]));
        let (output, result, _) = run(&["--profile", "secrets", "--env", "GH_TOKEN=mine", "--pass-env", "aws_*"]);
        assert!(output.stdout().contains("GH_TOKEN=mine") && output.stdout().contains("AWS_REGION=s3cret"), "{}", output.stdout());
        assert_eq!(result["withheld"], serde_json::json!(["MY_API_KEY", "db_password"]));
    }

    /// `secrets`: keys, tokens and `.env` files can't be read, by any tool, and git works as before.
    fn secrets_cannot_be_read(world) {
        if !world.has("git") || !world.has("ssh-keygen") { return }
        fs::create_dir(world.home().join(".ssh")).unwrap();
        world.own_tree(&world.home());
        let key = world.home().join(".ssh/id_ed25519");
        world.native("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).run().assert_success();
        for name in [".netrc", ".npmrc", ".bash_history", ".aws/credentials", ".config/gh/hosts.yml"] {
            home(world, name, "secret\n");
        }
        world.write("api/.env.local", "TOKEN=secret\n");
        world.write("api/.env.example", "TOKEN=\n");
        let script = "cd ~; ssh-keygen -y -f .ssh/id_ed25519; cat .netrc .npmrc .bash_history .aws/credentials .config/gh/hosts.yml; \
                      cat \"$W/api/.env.local\"; git -C \"$W\" init -q; git -C \"$W\" status --short; grep -r secret \"$W/api\"; cat \"$W/api/.env.example\"";
        let workspace = world.workspace();
        let open = world.run(&["-q"]).args(["sh", "-c", script]).env("W", &workspace).run();
        assert!(open.stdout().matches("secret").count() >= 6 && open.stdout().contains("ssh-ed25519"), "without it they can: {}", open.stdout());
        let closed = world.run(&["-q", "--profile", "secrets"]).args(["sh", "-c", script]).env("W", &workspace).run();
        let text = closed.stdout();
        assert!(!text.contains("secret") && !text.contains("ssh-ed25519"), "{text}");
        assert!(text.contains("?? api/") && text.ends_with("TOKEN=\n"), "{text} {}", closed.stderr());
        // Also what comes later, and under another name.
        let script = "ln -s ~/.aws a; cat a/credentials; echo made > .env; cat .env; ls";
        let later = world.run(&["-q", "--profile", "secrets"]).args(["sh", "-c", script]).run();
        assert!(!later.stdout().contains("made") && !later.stdout().contains("secret"), "{}", later.stdout());
    }

    /// `caches`: what a package manager keeps in the home can be written, what runs by itself there can't.
    fn caches_can_be_written(world) {
        home(world, ".cargo/config.toml", "");
        home(world, ".cargo/bin/tool", "");
        home(world, ".npm/x", "");
        let script = "cd ~; mkdir -p .cargo/registry/cache && echo x > .cargo/registry/cache/c && echo x > .npm/y && echo written; \
                      echo evil > .cargo/config.toml; echo evil > .cargo/bin/tool; echo evil > .bashrc; mkdir .cache";
        let output = world.run(&["-q", "--profile", "caches"]).args(["sh", "-c", script]).run();
        assert_eq!(output.stdout(), "written\n", "{}", output.stderr());
        for name in [".cargo/config.toml", ".cargo/bin/tool"] {
            assert_eq!(fs::read_to_string(world.home().join(name)).unwrap(), "", "{name}");
        }
        assert!(!world.home().join(".bashrc").exists() && !world.home().join(".cache").exists());
        let without = world.run(&["-q"]).args(["sh", "-c", script]).run();
        assert_eq!(without.stdout(), "");
        // The tools themselves, where they are for everybody.
        if std::path::Path::new("/usr/bin/npm").exists() {
            world.write("package.json", "{\"name\": \"p\", \"version\": \"1.0.0\"}\n");
            world.run(&["-q", "--profile", "caches"]).args(["/usr/bin/npm", "pack", "--offline"]).run().assert_success();
            assert!(world.workspace().join("p-1.0.0.tgz").exists());
            assert!(fs::read_dir(world.home().join(".npm/_logs")).unwrap().count() > 0, "npm keeps its logs there");
        }
        if std::path::Path::new("/usr/bin/cargo").exists() {
            world.write("Cargo.toml", "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
            world.write("src/lib.rs", "");
            world.run(&["-q", "--profile", "caches"]).args(["/usr/bin/cargo", "build", "--offline"]).run().assert_success();
        }
    }

    /// A profile for each agent: its state can be written, its settings that run code can't; they combine.
    fn an_agents_state_is_its_own(world) {
        for (profile, state, settings) in [
            ("claude", ".claude/projects/p.jsonl", ".claude/settings.json"),
            ("codex", ".codex/sessions/s", ".codex/config.toml"),
            ("gemini", ".gemini/tmp/t", ".gemini/settings.json"),
            ("opencode", ".local/share/opencode/x", ".config/opencode/config.json"),
        ] {
            home(world, state, "old\n");
            home(world, settings, "old\n");
            let script = format!("cd ~; echo new > {state} && echo x > {state}.2 && echo written; echo evil > {settings}; mv {settings} x; rm -f {settings}; cat ~/.netrc");
            home(world, ".netrc", "secret\n");
            let output = world.run(&["-q", "--profile", profile, "--profile", "secrets"]).args(["sh", "-c", &script]).run();
            assert_eq!(output.stdout(), "written\n", "{profile}: {}", output.stderr());
            assert_eq!(fs::read_to_string(world.home().join(settings)).unwrap(), "old\n", "{profile}");
            assert_eq!(fs::read_to_string(world.home().join(state)).unwrap(), "new\n", "{profile}");
        }
        // A single file, beside everything else in the home.
        home(world, ".claude.json", "{}\n");
        let script = "echo '{\"a\":1}' > ~/.claude.json && echo written; echo x > ~/.claude.json2; echo x > ~/other";
        let output = world.run(&["-q", "--profile", "claude"]).args(["sh", "-c", script]).run();
        assert_eq!(output.stdout(), "written\n", "{}", output.stderr());
        assert!(!world.home().join("other").exists());
    }
}
