//! What stays protected inside a writable root, and what an operator denies, under every alias (P10, P11).
//!
//! Each comment names the check that its test is about: taking that out must make the test fail.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use stockade_tests::{Digest, Facets, World, as_root_and_user};

use crate::attempts;

/// Makes a repository with one commit in the workspace, and in it one beside `nested`, without Stockade.
fn repository(world: &World) {
    let script = "set -e
        git init -q -b main .
        git config user.name t; git config user.email t@example.org; git config alias.kept status
        mkdir src; echo 1 > src/a; git add src; git commit -qm one
        echo 2 >> src/a; git commit -qam two
        git init -q -b main nested
        (cd nested; git config user.name t; git config user.email t@example.org; echo n > n; git add n; git commit -qm n)
        git -c protocol.file.allow=always submodule add -q ./nested sub; git commit -qm sub";
    world.native("sh").args(["-c", script]).run().assert_success();
}

/// Returns the names of the hooks below a repository that git would run.
fn hooks(git: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(git.join("hooks")) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.ends_with(".sample"))
        .collect();
    names.sort();
    names
}

as_root_and_user! {
    /// P11: no hook comes into being in `.git/hooks`, by whatever way a name can come to hold content.
    /// (The check: `Class::Refused` of hooks in `policy`'s `protection/git_dir.rs`.)
    fn hooks_are_never_planted(world) {
        repository(world);
        let git = world.workspace().join(".git");
        let before = Digest::of(&git.join("hooks"));
        attempts::make(world, &[], &[
            ("create", "echo x > .git/hooks/pre-commit"),
            ("create-other-case", "echo x > .git/HOOKS/pre-commit; test ! -e .git/hooks/pre-commit; exit 1"),
            ("open-exclusive", "py 'import os; os.open(\".git/hooks/pre-push\", os.O_CREAT|os.O_EXCL|os.O_WRONLY, 0o777)'"),
            ("mknod", "py 'import os; os.mknod(\".git/hooks/pre-push\", 0o100755)'"),
            ("rename-into", "echo x > h1; mv -f h1 .git/hooks/post-commit"),
            ("rename-noreplace", "echo x > h2; mv -n h2 .git/hooks/update; test -e .git/hooks/update"),
            ("link-into", "echo x > h3; ln h3 .git/hooks/post-commit"),
            ("symlink-into", "ln -s ../../src/a .git/hooks/post-commit"),
            ("over-a-sample", "cp .git/hooks/pre-commit.sample s; mv .git/hooks/pre-commit.sample .git/hooks/pre-commit"),
            ("exchange-with-sample", "echo x > h4; exchange h4 .git/hooks/pre-commit"),
            ("directory-as-hook", "mkdir .git/hooks/pre-commit"),
            ("fifo", "mkfifo .git/hooks/pre-commit"),
            ("by-dot-dot", "echo x > src/../.git/hooks/pre-commit"),
            ("by-symlink-to-git", "ln -s .git g; echo x > g/hooks/pre-commit"),
            ("by-symlink-to-hooks", "ln -s .git/hooks g2; echo x > g2/pre-commit"),
            ("by-descriptor-of-hooks", "exec 7<.git/hooks; echo x > /proc/self/fd/7/pre-commit"),
            ("by-root-link", "echo x > /proc/self/root$PWD/.git/hooks/pre-commit"),
            ("by-cwd-link", "cd .git/hooks; echo x > /proc/self/cwd/pre-commit"),
            ("from-inside", "cd .git/hooks; echo x > pre-commit"),
            ("rename-from-inside", "cd .git/hooks; echo x > ../tmp; mv ../tmp pre-commit"),
            ("move-hooks-away", "mv .git/hooks .git/hooks2"),
            ("move-git-away", "mv .git .git2"),
            ("move-git-below", "mv .git src/.git"),
            ("exchange-hooks", "mkdir evil; echo x > evil/pre-commit; exchange evil .git/hooks"),
            ("exchange-git", "mkdir -p e2/hooks; echo x > e2/hooks/pre-commit; exchange e2 .git"),
            ("replace-hooks", "rm -r .git/hooks; mkdir hk; echo x > hk/pre-commit; mv hk .git/hooks"),
            ("symlink-as-hooks", "rm -rf .git/hooks; ln -s ../src .git/hooks"),
            ("write-after-remove", "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"),
            ("nested", "echo x > nested/.git/hooks/pre-commit"),
            ("copy-tree", "cp -r nested n2; echo x > n2/.git/hooks/pre-commit"),
            ("name-not-utf8", r"echo x > .git/hooks/$'\xff\xfe'"),
        ]).all_refused();
        assert_eq!(hooks(&git), [""; 0]);
        assert_eq!(hooks(&world.workspace().join("nested/.git")), [""; 0]);
        assert_eq!(hooks(&world.workspace().join("n2/.git")), [""; 0]);
        // Removing the samples is everybody's right; nothing but that happened.
        assert!(Digest::of(&git.join("hooks")).len() <= before.len());
        assert!(git.join("HEAD").is_file() && !world.workspace().join(".git2").exists());
    }

    /// P11: the same in a repository that is made during the run, also when its parts are made apart.
    /// (The check: `Class::GitDir` in `rename_refused` and `rename_dir_refused` of `policy`'s `zone.rs`.)
    fn repositories_made_during_the_run_are_protected(world) {
        attempts::make(world, &[], &[
            ("plant", "git init -q a; echo x > a/.git/hooks/pre-commit"),
            ("configure", "git init -q b; git -C b config core.hooksPath /tmp"),
            ("template", "mkdir -p t/hooks; echo x > t/hooks/pre-commit; chmod +x t/hooks/pre-commit; git init -q --template=t c; test -e c/.git/hooks/pre-commit"),
            ("assemble", "mkdir -p fake/hooks z1; echo x > fake/hooks/pre-commit; mv fake z1/.git"),
            ("assemble-other-case", "mkdir -p fake2/hooks z2; echo x > fake2/hooks/pre-commit; mv fake2 z2/.GIT"),
            ("assemble-by-exchange", "mkdir -p fake3/hooks z3/.git; echo x > fake3/hooks/pre-commit; exchange fake3 z3/.git"),
            ("parent-of-hooks", "mkdir -p z4/.git hk; echo x > hk/pre-commit; mv hk z4/.git/hooks"),
            ("bare", "git init -q --bare e.git; echo x > e.git/hooks/post-receive"),
            ("bare-by-rename", "mkdir -p f/hooks; echo x > f/hooks/post-receive; mv f f.git"),
            ("symlink-as-git", "mkdir -p g/hooks z5; echo x > g/hooks/pre-commit; ln -s ../g z5/.git"),
            ("then-move-the-parent", "git init -q p; mv p q; echo x > q/.git/hooks/pre-commit"),
            ("config-made-in-place", "mkdir -p z6/.git; printf '[core]\\n\\tfsmonitor = evil\\n' > z6/.git/config"),
            ("config-in-pieces", "mkdir -p z7/.git; printf '[core]\\n\\tfsmo' > z7/.git/config; printf 'nitor = evil\\n' >> z7/.git/config"),
            ("config-one-descriptor", "mkdir -p z8/.git; exec 7>z8/.git/config; printf '[core]\\n\\tfsmo' >&7; printf 'nitor = evil\\n' >&7"),
        ]).all_refused();
        let workspace = world.workspace();
        for name in ["a", "c", "q"] {
            assert_eq!(hooks(&workspace.join(name).join(".git")), [""; 0], "{name}");
        }
        for name in ["z1", "z2", "z5"] {
            assert_eq!(fs::read_dir(workspace.join(name)).unwrap().count(), 0, "{name}");
        }
        for name in ["z3", "z4"] {
            assert_eq!(hooks(&workspace.join(name).join(".git")), [""; 0], "{name}");
        }
        for name in ["z6", "z7", "z8"] {
            let config = fs::read(workspace.join(name).join(".git/config")).unwrap_or_default();
            assert!(!config.windows(8).any(|part| part == b"fsmonito"), "{name}");
        }
    }

    /// P11: git's configuration is judged by what it would say; a descriptor, a second name, a mapping or a second
    /// thread doesn't change it after it was judged.
    /// (The checks: `judge_move` in `fusefs`'s `ops/rename.rs`; its `freshen`; `judge_write` in `ops/io.rs`.)
    fn configuration_is_judged_by_its_content(world) {
        repository(world);
        let config = world.workspace().join(".git/config");
        let before = fs::read(&config).unwrap();
        let evil = r"printf '[core]\n\tfsmonitor = evil\n'";
        let rows = [
            ("direct", "printf '[core]\\n' >> .git/config".to_owned()),
            ("truncate", "truncate -s 0 .git/config".to_owned()),
            ("by-symlink", "ln -s .git/config l; printf 'x' >> l".to_owned()),
            ("second-name", "ln .git/config second".to_owned()),
            ("git-hooks-path", "git config core.hooksPath /tmp".to_owned()),
            ("git-ssh-command", "git config core.sshCommand evil".to_owned()),
            ("git-include", "git config include.path /tmp/x".to_owned()),
            ("git-filter", "git config filter.x.smudge evil".to_owned()),
            ("git-alias", "git config alias.st '!evil'".to_owned()),
            ("git-worktree-config", "git config extensions.worktreeConfig true; git config --worktree core.fsmonitor evil".to_owned()),
            ("rename", format!("{evil} > c1; mv -f c1 .git/config")),
            ("rename-lock", format!("{evil} > .git/config.lock; mv -f .git/config.lock .git/config")),
            ("worktree-config", format!("{evil} > .git/config.worktree")),
            ("worktree-config-rename", format!("{evil} > c2; mv c2 .git/config.worktree")),
            ("exchange", format!("{evil} > c3; exchange c3 .git/config")),
            ("exchange-back", format!("{evil} > c4; exchange .git/config c4")),
            ("symlink", format!("{evil} > c5; rm -f .git/config; ln -s ../c5 .git/config; grep evil .git/config")),
        ];
        let rows: Vec<(&str, &str)> = rows.iter().map(|(name, body)| (*name, body.as_str())).collect();
        attempts::make(world, &[], &rows).all_refused();
        assert!(!fs::read_to_string(&config).unwrap_or_default().contains("evil"));
        fs::write(&config, &before).unwrap();
        world.own(&config);

        // What was harmless when it was judged must stay it. Each of these renames is allowed.
        let after = [
            ("held", "cp .git/config c6; exec 5>>c6; mv -f c6 .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' >&5; exec 5>&-; grep evil .git/config"),
            ("held-read-write", "cp .git/config c7; exec 5<>c7; mv -f c7 .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' >&5; exec 5>&-; grep evil .git/config"),
            ("second-name", "cp .git/config .git/config.lock; ln .git/config.lock c8; mv -f .git/config.lock .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' >> c8; grep evil .git/config"),
            ("mapping", "cp .git/config c9; truncate -s 4096 c9; printf '#' | dd of=c9 bs=1 seek=4095 conv=notrunc 2>/dev/null
                py 'import mmap,os
f=os.open(\"c9\",os.O_RDWR); d=os.read(f,4096); d=d.rstrip(b\"#\\0\"); d=d+b\"#\"*(4096-len(d)); os.pwrite(f,d,0)
m=mmap.mmap(f,4096); os.close(f); os.rename(\"c9\",\".git/config\")
e=b\"\\n[core]\\n\\tfsmonitor = evil\\n#\"; m[4000:4000+len(e)]=e; m.flush()'
                grep evil .git/config"),
            ("held-by-child", "cp .git/config d1; (sleep 0.3; printf '[core]\\n\\tfsmonitor = evil\\n' >&5) 5>>d1 & mv -f d1 .git/config; wait; grep evil .git/config"),
            ("two-writers", "mkdir -p r; py 'import os,threading
base=b\"[user]\\n\\tfsmonitox = y\\n\"
hits=0
for i in range(300):
    os.makedirs(f\"r/{i}/.git\")
    f=os.open(f\"r/{i}/.git/config\",os.O_CREAT|os.O_RDWR)
    os.write(f,base)
    g=threading.Barrier(2)
    def put(data,at):
        g.wait()
        try: os.pwrite(f,data,at)
        except OSError: pass
    t=[threading.Thread(target=put,args=a) for a in ((b\"[core]\",0),(b\"fsmonitor\",base.index(b\"fsmo\")))]
    [x.start() for x in t]; [x.join() for x in t]
    os.close(f)
    hits+=open(f\"r/{i}/.git/config\",\"rb\").read()==b\"[core]\\n\\tfsmonitor = y\\n\"
raise SystemExit(0 if hits else \"never\")'"),
        ];
        attempts::make(world, &[], &after).all_refused();
        assert!(!fs::read_to_string(&config).unwrap().contains("evil"));
        assert!(fs::read_to_string(&config).unwrap().contains("kept"), "what was there may stay");
    }

    /// P11: `.git` files and `commondir` lead only to where hooks and configuration are protected.
    /// (The check: `repository_is_guarded` in `policy`'s `zone.rs`.)
    fn git_files_lead_only_to_protected_directories(world) {
        repository(world);
        attempts::make(world, &[], &[
            ("direct", "mkdir s1 e; echo \"gitdir: $PWD/e\" > s1/.git"),
            ("relative", "mkdir s2; echo 'gitdir: ../e' > s2/.git"),
            ("to-tmp", "mkdir s3; echo 'gitdir: /tmp/evil' > s3/.git"),
            ("rename", "mkdir s4; echo 'gitdir: ../e' > g; mv g s4/.git"),
            ("link", "mkdir s5; echo 'gitdir: ../e' > g2; ln g2 s5/.git"),
            ("symlink", "mkdir s6; echo 'gitdir: ../e' > g3; ln -s ../g3 s6/.git"),
            ("held", "mkdir s7; printf 'gitdir: ../.git/worktrees/x\\n' > g4; exec 5<>g4; mv g4 s7/.git; printf 'gitdir: ../e\\n' >&5; grep '[.]/e' s7/.git"),
            ("in-pieces", "mkdir s8; exec 5>s8/.git; printf 'gitdir: ../' >&5; printf 'e' >&5; exec 5>&-; grep e$ s8/.git"),
            ("commondir", "mkdir -p .git/worktrees/w; echo ../../../e > .git/worktrees/w/commondir"),
            ("commondir-top", "echo ../e > .git/commondir"),
            ("gitmodules-command", "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = ./x\\n\\tupdate = !evil\\n' > .gitmodules; grep evil .gitmodules"),
            ("gitmodules-command-rename", "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = ./x\\n\\tupdate = !evil\\n' > g9; mv g9 .gitmodules; grep evil .gitmodules"),
            ("gitmodules-transport", "rm .gitmodules; printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = ext::evil\\n' > .gitmodules; grep evil .gitmodules"),
            ("dot-dot-through-link", "mkdir s9; ln -s /tmp up; echo \"gitdir: $PWD/up/../tmp/.git/worktrees/x\" > s9/.git; grep up s9/.git"),
        ]).all_refused();
    }

    /// P11: git goes on working, and so does what is protected only by its name.
    fn git_goes_on_working(world) {
        repository(world);
        let elsewhere = world.workspace().join("wt");
        attempts::make(world, &[], &[
            ("status", "git status --porcelain"),
            ("commit", "echo 3 > b; git add b; git commit -qm three"),
            ("config-read", "test \"$(git config --local user.name)\" = t"),
            ("config-write", "git config user.name u; test \"$(git config user.name)\" = u; git config user.name t"),
            ("config-kept", "git config --get alias.kept"),
            ("config-section", "git config branch.x.note a; git config --rename-section branch.x branch.y; git config --remove-section branch.y"),
            ("branch", "git branch topic; git checkout -q -b track --track topic; git checkout -q main"),
            ("stash", "echo 4 >> b; git stash -q; git stash pop -q; git commit -qam four"),
            ("rebase", "git checkout -q -b side HEAD~1; echo q > q; git add q; git commit -qm q; git rebase -q main; git checkout -q main"),
            ("merge", "git merge -q --no-edit side"),
            ("tag", "git tag v1; git tag -d v1"),
            ("init", "git init -q fresh; cd fresh; git config user.email a@b; git config user.name c; echo 1 > a; git add a; git commit -qm x"),
            ("init-bare", "git init -q --bare bare.git"),
            ("remote", "git remote add o ./bare.git; git push -q o main; git fetch -q o; git remote remove o"),
            ("worktree", &format!("git worktree add -q {0} -b wt; cd {0}; echo 1 > n; git add n; git commit -qm n; git status --porcelain", elsewhere.display())),
            ("worktree-config", "git config extensions.worktreeConfig true; git config --worktree core.sparseCheckout false; git config --unset extensions.worktreeConfig"),
            ("worktree-remove", &format!("git worktree remove {}", elsewhere.display())),
            ("submodule-add", "git -c protocol.file.allow=always submodule add -q ./nested sm; git commit -qm sm; git -c protocol.file.allow=always submodule update -q --init"),
            ("submodule-commands", "git submodule status; git submodule foreach -q true; git submodule sync -q; git submodule deinit -q -f sub; git -c protocol.file.allow=always submodule update -q --init"),
            ("clone-recursive", "git -c protocol.file.allow=always clone -q --recurse-submodules . cl2; test -f cl2/sub/n"),
            ("submodule-update", "git -c protocol.file.allow=always clone -q . cl3; cd cl3; git -c protocol.file.allow=always submodule update -q --init; test -f sub/n"),
            ("submodule-commit", "cd sub; git config user.name s; git config user.email s@s; echo 1 > m; git add m; git commit -qm m; cd ..; git commit -qam sub"),
            ("clone-local", "git clone -q --local . cl; cd cl; git config user.name x; git log --oneline >/dev/null"),
            ("clone-no-hardlinks", "git clone -q --no-hardlinks . cl4; git -C cl4 fsck"),
            ("gc", "git gc -q --prune=now; git fsck"),
            ("reset", "echo 9 >> b; git reset -q --hard"),
            ("bisect", "git bisect start; git bisect bad; git bisect good HEAD~2; git bisect reset"),
            ("remove-a-clone", "rm -rf cl cl2 cl3 cl4 fresh bare.git; test ! -e cl"),
        ]).all_succeeded();
    }

    /// P11: editor, agent and shell configuration is protected by name, in any directory and of any kind.
    /// (The check: `names::protected` in `policy`.)
    fn configuration_that_runs_code_is_protected(world) {
        world.write(".vscode/settings.json", "{}");
        world.write(".claude/settings.json", "{}");
        let before = Digest::of(&world.workspace());
        attempts::make(world, &[], &[
            ("vscode", "echo x > .vscode/tasks.json"),
            ("vscode-existing", "echo x >> .vscode/settings.json"),
            ("vscode-remove", "rm .vscode/settings.json"),
            ("vscode-away", "mv .vscode v"),
            ("vscode-chmod", "chmod 777 .vscode/settings.json"),
            ("vscode-utimes", "touch .vscode/settings.json"),
            ("vscode-xattr", "py 'import os; os.setxattr(\".vscode/settings.json\",\"user.x\",b\"1\")'"),
            ("vscode-link", "ln .vscode/settings.json alias"),
            ("new-idea", "mkdir .idea"),
            ("new-below", "mkdir .cursor"),
            ("bashrc", "echo x > .bashrc"),
            ("bashrc-symlink", "ln -s /tmp/x .bashrc"),
            ("zshenv-other-case", "echo x > .ZshEnv"),
            ("mcp", "echo x > .mcp.json"),
            ("fish", "mkdir -p .config/fish"),
            ("authorized-keys", "mkdir .ssh; echo x > .ssh/authorized_keys"),
        ]).all_refused();
        // Directories that lead to protected names may be made.
        for made in [".config", ".ssh"] {
            drop(fs::remove_dir(world.workspace().join(made)));
        }
        Digest::of(&world.workspace()).assert_same(&before, Facets::Content, "changed");
    }

    /// P10: what may not be read can't be read by any other name.
    /// (The checks: `may_read` and `may_read_shared` in `fusefs`'s `ops/open.rs`; `may_link`; `may_go` in `ops/rename.rs`.)
    fn a_denied_read_holds_under_every_alias(world) {
        world.write(".env", "secret");
        world.write("sec/inner/x", "secret");
        world.write("keys/a.pem", "secret");
        world.write("keys/deep/b.pem", "secret");
        world.write("other", "open");
        let workspace = world.workspace();
        fs::hard_link(workspace.join(".env"), workspace.join("before")).unwrap();
        fs::hard_link(workspace.join("sec/inner/x"), workspace.join("before2")).unwrap();
        let far = world.outside().join("far");
        fs::write(&far, "secret").unwrap();
        world.own(&far);
        fs::hard_link(&far, workspace.join("before3")).unwrap();
        let options = ["--deny-read", "**/.env", "--deny-read", "sec/", "--deny-read", "keys/**/*.pem", "--deny-read", far.to_str().unwrap()];
        let result = attempts::make(world, &options, &[
            ("direct", "cat .env"),
            ("outside", &format!("cat {}", far.display())),
            ("directory-list", "ls sec"),
            ("below-a-directory", "cat sec/inner/x"),
            ("glob", "cat keys/a.pem"),
            ("glob-deep", "cat keys/deep/b.pem"),
            ("symlink", "ln -s .env l1; cat l1"),
            ("symlink-to-directory", "ln -s sec l2; cat l2/inner/x"),
            ("dot-dot", "mkdir -p d; cat d/../.env"),
            ("root-link", "cat /proc/self/root$PWD/.env"),
            ("cwd-link", "cat /proc/self/cwd/.env"),
            ("path-descriptor", "py 'import os; d=os.open(\".env\",os.O_PATH); print(open(f\"/proc/self/fd/{d}\").read())'"),
            ("directory-descriptor", "py 'import os; d=os.open(\".\",os.O_PATH); os.open(\".env\",os.O_RDONLY,dir_fd=d)'"),
            ("link-made-before", "cat before"),
            ("link-made-before-below", "cat before2"),
            ("link-made-before-outside", "cat before3"),
            ("link", "ln .env after; cat after"),
            ("link-by-descriptor", "py 'import os; d=os.open(\".env\",os.O_PATH); os.link(f\"/proc/self/fd/{d}\",\"after2\",follow_symlinks=True); print(open(\"after2\").read())'"),
            ("rename", "mv .env seen; cat seen"),
            ("rename-directory", "mv sec seen2; cat seen2/inner/x"),
            ("rename-parent-of-glob", "mv keys keys2; cat keys2/a.pem"),
            ("rename-middle-of-glob", "mv keys/deep deep2; cat deep2/b.pem"),
            ("exchange", "exchange .env other; cat other"),
            ("exchange-directory", "mkdir -p plain; exchange sec plain; cat plain/inner/x"),
            ("read-write", "py 'open(\".env\",\"r+\").read()'"),
            ("write-only", "echo x >> .env"),
            ("copy", "cp .env copied; cat copied"),
            ("mapping", "py 'import mmap,os; f=os.open(\".env\",os.O_RDONLY); mmap.mmap(f,0,prot=mmap.PROT_READ)'"),
            ("exec", "py 'import os; os.execv(\".env\",[\"x\"])'"),
            ("remove", "rm -f .env"),
            ("truncate", "truncate -s 0 .env"),
            ("xattr", "py 'import os; os.setxattr(\".env\",\"user.a\",b\"1\")'"),
            ("late", "echo s > late.env; mkdir -p z; mv late.env z/.env; cat z/.env"),
            ("late-created", "mkdir -p y; echo s > y/.env; cat y/.env"),
            ("io-uring-free-copy", "cat < .env"),
        ]);
        result.all_refused();
        assert!(!result.output.stdout().contains("secret"), "{}", result.output.stdout());
        assert_eq!(fs::read(workspace.join(".env")).unwrap(), b"secret");
    }

    /// P10: a further name that the host gives a denied file during the run is denied too.
    /// (The check: the second search in `may_read_shared` of `fusefs`'s `ops/fresh.rs`.)
    fn a_denied_read_holds_for_a_link_that_the_host_makes(world) {
        world.write("one/.env", "secret");
        world.write("two/.env", "secret");
        fs::hard_link(world.workspace().join("one/.env"), world.workspace().join("first")).unwrap();
        let mut running = world
            .run(&["-q", "--deny-read", "**/.env"])
            .args(["sh", "-c", "cat first; echo ready > ready; while ! test -e go; do sleep 0.02; done; cat second; echo end"])
            .spawn();
        running.wait_until("the first attempt", || world.workspace().join("ready").exists());
        fs::hard_link(world.workspace().join("two/.env"), world.workspace().join("second")).unwrap();
        fs::write(world.workspace().join("go"), "").unwrap();
        let output = running.wait();
        assert_eq!(output.stdout(), "end\n", "{}", output.stderr());
    }

    /// P10: what may not be written stays as it is under every name.
    /// (The checks: `may_write` in `fusefs`'s `ops/open.rs` and `ops/attr.rs`; `rename_dir_refused` in `policy`.)
    fn a_denied_write_holds_under_every_alias(world) {
        world.write("lock/a", "kept");
        world.write("lock/in/b", "kept");
        world.write("one.lock", "kept");
        world.write("up/exact/c", "kept");
        world.write("free", "free");
        let before = Digest::of(&world.workspace());
        let options = ["--deny-write", "lock/", "--deny-write", "*.lock", "--deny-write", "up/exact/c"];
        let rows = [
            ("write", "echo x > lock/a"),
            ("append", "echo x >> lock/in/b"),
            ("truncate", "truncate -s 0 one.lock"),
            ("create", "echo x > lock/new"),
            ("create-late", "echo x > deep.lock"),
            ("create-later", "mkdir dd; echo x > dd/later.lock"),
            ("mkdir", "mkdir lock/d"),
            ("symlink", "ln -s /tmp lock/l"),
            ("unlink", "rm -f lock/a"),
            ("rename-out", "mv lock/a free2"),
            ("rename-in", "mv free lock/free"),
            ("rename-over", "mv free one.lock"),
            ("rename-directory", "mv lock unlock"),
            ("rename-parent", "mv up down; echo x > down/exact/c"),
            ("exchange", "exchange one.lock free"),
            ("exchange-directory", "mkdir ee; exchange ee lock"),
            ("link-out", "ln one.lock alias; echo x > alias"),
            ("link-in", "ln free lock/free"),
            ("symlink-alias", "ln -s one.lock s1; echo x > s1"),
            ("dot-dot", "echo x > lock/in/../a"),
            ("root-link", "echo x > /proc/self/root$PWD/lock/a"),
            ("path-descriptor", "py 'import os; d=os.open(\"one.lock\",os.O_PATH); open(f\"/proc/self/fd/{d}\",\"w\")'"),
            ("read-descriptor", "py 'import os; d=os.open(\"one.lock\",os.O_RDONLY); open(f\"/proc/self/fd/{d}\",\"w\")'"),
            ("chmod", "chmod 777 one.lock"),
            ("chmod-descriptor", "py 'import os; d=os.open(\"one.lock\",os.O_RDONLY); os.fchmod(d,0o777)'"),
            ("utimes", "touch -d 2001-01-01 one.lock"),
            ("xattr", "py 'import os; os.setxattr(\"one.lock\",\"user.a\",b\"1\")'"),
            ("mapping", "py 'import mmap,os; f=os.open(\"one.lock\",os.O_RDWR); mmap.mmap(f,0)'"),
            ("mapping-read-only-descriptor", "py 'import mmap,os; f=os.open(\"one.lock\",os.O_RDONLY); mmap.mmap(f,0)[0]=1'"),
            ("copy-range", "py 'import os; a=os.open(\"free\",os.O_RDONLY); b=os.open(\"one.lock\",os.O_WRONLY); os.copy_file_range(a,b,4)'"),
            ("name-not-utf8", r"echo x > lock/$'\xff'"),
        ];
        attempts::make(world, &options, &rows).all_refused();
        for made in ["dd", "ee"] {
            drop(fs::remove_dir(world.workspace().join(made)));
        }
        drop(fs::remove_file(world.workspace().join("s1")));
        Digest::of(&world.workspace()).assert_same(&before, Facets::Content, "changed");
    }

    /// P10: a rule about thousands of files costs what one about a single file costs, at the start and after.
    fn four_thousand_matches_cost_nothing(world) {
        for number in 0..4000 {
            let directory = world.workspace().join(format!("d{}", number % 40));
            drop(fs::create_dir(&directory));
            fs::write(directory.join(format!("{number}.secret")), "s").unwrap();
        }
        world.own_tree(&world.workspace());
        let time = |options: &[&str]| {
            let mut best = Duration::MAX;
            for _ in 0..5 {
                let begun = Instant::now();
                world.run(&[&["-q"], options].concat()).arg("true").run().assert_success();
                best = best.min(begun.elapsed());
            }
            best
        };
        let (without, with) = (time(&[]), time(&["--deny-read", "*.secret", "--deny-write", "**/*.secret"]));
        assert!(with < without + Duration::from_millis(60), "{with:?} with, {without:?} without");
        let output = world.run(&["-q", "--deny-read", "*.secret"]).args(["sh", "-c", "cat d*/*.secret 2>/dev/null | wc -c; ls d*/*.secret | wc -l"]).run();
        assert_eq!(output.stdout(), "0\n4000\n");
    }

    /// P10: rules about what doesn't exist leave nothing behind, neither while the command runs nor after.
    fn rules_leave_no_ghosts(world) {
        repository(world);
        world.write("kept", "kept");
        let before = Digest::of(&world.workspace());
        let inode = fs::metadata(world.workspace()).unwrap().ino();
        let options = ["-q", "--deny-read", ".env", "--deny-read", "a/b/c", "--deny-write", "none/", "--deny-read", "**/*.pem", "--deny-write", "x/y/z"];
        let mut running = world.run(&options).args(["sh", "-c", "git status >/dev/null; ls -A; touch /tmp/up; sleep 1"]).spawn();
        running.wait_until("a moment", { let since = Instant::now(); move || since.elapsed() > Duration::from_millis(500) });
        // `git status` may write its index anew, with the same content.
        Digest::of(&world.workspace()).assert_same(&before, Facets::Content, "during the run");
        let output = running.wait();
        output.assert_success();
        assert_eq!(output.stdout(), ".git\n.gitmodules\nkept\nnested\nsrc\nsub\n");
        Digest::of(&world.workspace()).assert_same(&before, Facets::Content, "after the run");
        assert_eq!(fs::metadata(world.workspace()).unwrap().ino(), inode);
        drop(fs::remove_file("/tmp/up"));
    }
}
