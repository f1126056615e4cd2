//! Everyday work with unmodified programs: the same output, the same status and the same tree as without Stockade.
//!
//! Each scenario runs twice at the same absolute path, natively and inside, from copies of one prepared workspace.

use std::fs;
use std::path::Path;
use std::time::Duration;

use stockade_tests::{
    Digest, Facets, World, as_root_and_user, copy_tree, crate_source, many_files,
};

/// What makes git's objects the same in both passes.
const GIT: [(&str, &str); 11] = [
    // Which deltas are found depends on the threads.
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "pack.threads"),
    ("GIT_CONFIG_VALUE_0", "1"),
    ("GIT_AUTHOR_NAME", "A"),
    ("GIT_AUTHOR_EMAIL", "a@example.org"),
    ("GIT_AUTHOR_DATE", "1700000000 +0000"),
    ("GIT_COMMITTER_NAME", "C"),
    ("GIT_COMMITTER_EMAIL", "c@example.org"),
    ("GIT_COMMITTER_DATE", "1700000000 +0000"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_EDITOR", "true"),
];

/// A piece of everyday work.
struct Scenario<'a> {
    /// Shell commands, compared one by one.
    steps: &'a [&'a str],
    environment: Vec<(String, String)>,
    /// Which facets of the tree must be the same.
    facets: Facets,
    /// Files whose content says when or where they were made: only their names, modes and owners count.
    loose: fn(&[u8]) -> bool,
    /// Files that are there or not by chance.
    ignored: fn(&[u8]) -> bool,
}

impl Default for Scenario<'_> {
    fn default() -> Self {
        Self {
            steps: &[],
            environment: Vec::new(),
            facets: Facets::Content,
            loose: |_| false,
            ignored: |_| false,
        }
    }
}

impl Scenario<'_> {
    /// Runs it natively and inside, and compares everything.
    fn compare(&self, world: &World) {
        let workspace = world.workspace();
        let prepared = world.directory().join("prepared");
        copy_tree(&workspace, &prepared);
        let native: Vec<_> =
            self.steps.iter().map(|step| self.step(world.native("bash"), step)).collect();
        for (step, output) in self.steps.iter().zip(&native) {
            assert_eq!(output.code, 0, "natively `{step}`: {}{}", output.stdout(), output.stderr());
        }
        let native_tree = self.tree(&workspace);
        fs::remove_dir_all(&workspace).unwrap();
        fs::rename(&prepared, &workspace).unwrap();
        for (step, native) in self.steps.iter().zip(native) {
            let inside = self.step(world.run(&[]).arg("bash"), step);
            assert_eq!(
                (inside.code, inside.stdout(), inside.stderr()),
                (native.code, native.stdout(), native.stderr()),
                "`{step}`: inside and natively"
            );
        }
        native_tree.assert_same(&self.tree(&workspace), self.facets, "natively and inside");
    }

    fn step(&self, shell: stockade_tests::Invocation, step: &str) -> stockade_tests::Output {
        let mut shell =
            shell.args(["-o", "pipefail", "-c", step]).deadline(Duration::from_secs(300));
        for (name, value) in GIT {
            shell = shell.env(name, value);
        }
        for (name, value) in &self.environment {
            shell = shell.env(name, value);
        }
        shell.run()
    }

    fn tree(&self, top: &Path) -> Digest {
        Digest::of(top).without(self.ignored).without_content(self.loose)
    }
}

/// Makes the workspace a clone of a repository of some thousand real files. False where the machine has none.
fn repository(world: &World, files: usize) -> bool {
    let origin = world.directory().join("origin");
    fs::create_dir(&origin).unwrap();
    let found = many_files(&origin, files);
    if found < files {
        stockade_tests::skip(world.name(), "cargo has no unpacked sources to make a repository of");
        return false;
    }
    world.own_tree(&origin);
    let run = |directory: &Path, script: &str| {
        let mut shell = world.native("bash").args(["-ec", script]).directory(directory);
        for (name, value) in GIT {
            shell = shell.env(name, value);
        }
        shell.run().assert_success();
    };
    run(
        &origin,
        "git init -qb main; git add .; git commit -qm one; git tag one; \
         for f in $(git ls-files | grep 'rs$' | head -40); do echo '// changed' >> $f; done; git commit -qam two; \
         git checkout -qb side one; git rm -q $(git ls-files | tail -30); git commit -qm side; git checkout -q main",
    );
    fs::remove_dir(world.workspace()).unwrap();
    let script =
        format!("git clone -q --no-hardlinks {} {}", origin.display(), world.workspace().display());
    // The world's directory is root's: the clone's top is made first.
    fs::create_dir(world.workspace()).unwrap();
    world.own(&world.workspace());
    run(&origin, &script);
    true
}

/// Files below `.git` that hold times and inode numbers.
fn git_state(name: &[u8]) -> bool {
    let text = String::from_utf8_lossy(name);
    text.ends_with("/index")
        || text.ends_with("ORIG_HEAD")
        || text.ends_with(".rev")
        || text.ends_with(".mtimes")
        || text.ends_with("commit-graph")
}

as_root_and_user! {
    fn git(world) {
        if !world.has("git") || !repository(world, 3000) {
            return;
        }
        Scenario {
            steps: &[
                "git status",
                "git log --oneline --all | cat",
                "ls | head -3; for f in $(git ls-files | grep 'rs$' | head -20); do echo '// mine' >> $f; done; git status --porcelain",
                "git diff --stat | tail -1; git diff | sha256sum",
                "echo new > new-file; git add -A; git commit -qm mine; git status; git rev-parse HEAD",
                "for f in $(git ls-files | grep 'rs$' | tail -20); do echo '// stashed' >> $f; done; git stash; git status --porcelain; git stash list",
                "git stash pop | tail -3; git checkout -q .",
                "git checkout -q -b topic; git branch --list | cat; git switch -q -c other HEAD~1; git log -1 --format=%H",
                "git merge -q --no-edit topic && git log -1 --format=%H",
                "git checkout -q --detach origin/side && git status --porcelain && git ls-files | wc -l && git checkout -q topic",
                "git rebase -q origin/side && git log -2 --format=%H",
                "git tag mine; git cherry-pick one >/dev/null 2>&1; git cherry-pick --abort 2>/dev/null; git reset -q --hard mine; git clean -fdq; git status --porcelain",
                "git gc -q; git count-objects -v | grep -E '^(count|in-pack|packs)'; git fsck --no-progress; git status",
                "git grep -c struct | sort | tail -5; git blame -s $(git ls-files | grep rs$ | head -1) | tail -1; git archive HEAD | sha256sum",
            ],
            loose: git_state,
            ignored: |name| name.ends_with(b"/gc.log") || name.starts_with(b".git/objects/info/commit-graphs"),
            ..Scenario::default()
        }
        .compare(world);
    }

    /// P11: what is protected below `.git` doesn't stop git from making repositories and working trees.
    fn git_worktrees_and_new_repositories(world) {
        if !world.has("git") || !repository(world, 300) {
            return;
        }
        Scenario {
            steps: &[
                "git branch -q other; git branch -q third",
                "git worktree add -q ../w/tree other && cd tree && git status && echo x > y && git add y && git commit -qm y && git log -1 --format=%H",
                "git worktree list | wc -l; git worktree remove --force tree; git worktree list | wc -l",
                "mkdir fresh && cd fresh && git init -qb main && echo a > a && git add a && git commit -qm a && git log --format=%H",
                "git clone -q --no-hardlinks . cloned && cd cloned && git log -1 --format=%H && git config --get core.bare && git fetch -q && git branch -q x && git checkout -q x",
                "git clone -q --bare --no-hardlinks . bare.git && git push -q ./bare.git HEAD:refs/heads/pushed && git --git-dir bare.git log -1 --format=%H pushed",
            ],
            loose: git_state,
            ..Scenario::default()
        }
        .compare(world);
    }

    fn cargo_build_and_test(world) {
        let Some(toolchain) = toolchain(world) else { return };
        let crates = ["itoa", "cfg-if", "proc-macro2", "unicode-ident", "quote", "syn"];
        for name in crates {
            let Some((source, checksum)) = crate_source(name) else {
                return stockade_tests::skip(world.name(), "cargo has no unpacked sources to depend on");
            };
            let vendored = world.workspace().join("vendor").join(name);
            fs::create_dir_all(world.workspace().join("vendor")).unwrap();
            copy_tree(&source, &vendored);
            fs::write(vendored.join(".cargo-checksum.json"), format!("{{\"files\":{{}},\"package\":\"{checksum}\"}}")).unwrap();
        }
        world.write("Cargo.toml", "[workspace]\nmembers = [\"macro\"]\n[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
            [dependencies]\nitoa = \"1\"\ncfg-if = \"1\"\nsmall-macro = { path = \"macro\" }\n[profile.dev]\nincremental = false\n");
        world.write("macro/Cargo.toml", "[package]\nname = \"small-macro\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[lib]\nproc-macro = true\n[dependencies]\nproc-macro2 = \"1\"\nquote = \"1\"\n");
        world.write("macro/src/lib.rs", "#[proc_macro]\npub fn answer(_: proc_macro::TokenStream) -> proc_macro::TokenStream { quote::quote!(42u32).into() }\n");
        world.write("build.rs", "fn main() { std::fs::write(std::path::Path::new(&std::env::var(\"OUT_DIR\").unwrap()).join(\"made.rs\"), \"pub const MADE: u32 = 1;\").unwrap(); }\n");
        world.write("src/lib.rs", "include!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\npub fn text() -> String { itoa::Buffer::new().format(MADE + small_macro::answer!()).to_owned() }\n\
            #[cfg(test)] mod tests { #[test] fn it_is() { assert_eq!(super::text(), \"43\"); std::fs::write(\"by-the-test\", \"x\").unwrap(); } }\n");
        world.write("src/main.rs", "fn main() { println!(\"{}\", small::text()); }\n");
        world.write(".cargo/config.toml", "[source.crates-io]\nreplace-with = \"vendored\"\n[source.vendored]\ndirectory = \"vendor\"\n");
        world.own_tree(&world.workspace());
        let path = format!("{toolchain}/bin:/usr/local/bin:/usr/bin:/bin");
        Scenario {
            steps: &[
                "cargo build --offline 2>&1 | grep -v Compiling | sed -E 's/in [0-9.]+s//'",
                "target/debug/small",
                "cargo test --offline 2>&1 | grep -v Compiling | sed -E 's/in [0-9.]+s//'",
                "cargo build --offline 2>&1 | sed -E 's/in [0-9.]+s//'",
                "echo '// changed' >> src/lib.rs; cargo run -q --offline; cargo clean 2>&1 | sed -E 's/[0-9.]+[KM]iB//; s/[0-9]+ files//'; ls",
                "cargo build --offline --release 2>&1 | grep -v Compiling | sed -E 's/in [0-9.]+s//'; target/release/small",
            ],
            environment: vec![
                ("PATH".into(), path),
                ("CARGO_HOME".into(), world.workspace().join(".cargo-home").to_str().unwrap().into()),
                ("CARGO_TERM_PROGRESS_WHEN".into(), "never".into()),
                ("CARGO_BUILD_JOBS".into(), "1".into()),
            ],
            loose: |name| name.starts_with(b"target/") || name.starts_with(b".cargo-home/"),
            ..Scenario::default()
        }
        .compare(world);
    }

    fn npm_install(world) {
        if !world.has("npm") {
            return;
        }
        world.write("dep/package.json", r#"{"name":"dep","version":"1.0.0","main":"index.js","bin":{"dep":"cli.js"},"dependencies":{"deeper":"1.0.0"}}"#);
        world.write("dep/index.js", "module.exports = () => 'dep+' + require('deeper')\n");
        world.write("dep/cli.js", "#!/usr/bin/env node\nconsole.log(require('./index')())\n");
        world.write("deeper/package.json", r#"{"name":"deeper","version":"1.0.0"}"#);
        world.write("deeper/index.js", "module.exports = 'deeper'\n");
        for file in 0..300 {
            world.write(format!("deeper/lib/f{file}.js"), format!("exports.n = {file}\n"));
        }
        world.native("bash").args(["-ec", "cd deeper && npm pack -s --pack-destination ..; cd ../dep && npm pack -s --pack-destination ..; cd ..; rm -rf dep deeper"]).run().assert_success();
        world.write("package.json", r#"{"name":"project","version":"1.0.0","scripts":{"test":"node test.js","postinstall":"echo hooked > hooked"},"dependencies":{"dep":"file:dep-1.0.0.tgz","deeper":"file:deeper-1.0.0.tgz"}}"#);
        world.write("test.js", "console.log(require('dep')())\n");
        fs::remove_dir_all(world.home()).unwrap();
        fs::create_dir(world.home()).unwrap();
        world.own(&world.home());
        Scenario {
            steps: &[
                "npm install --offline --no-audit --no-fund 2>&1 | sed -E 's/in [0-9a-z.]+$//'",
                "cat hooked; npm test 2>&1; node_modules/.bin/dep; npm ls 2>&1",
                "rm -rf node_modules; npm ci --offline --no-audit --no-fund 2>&1 | sed -E 's/in [0-9a-z.]+$//'; node test.js",
                "find node_modules -type f | wc -l; rm -rf .npm-cache",
            ],
            environment: vec![
                ("npm_config_cache".into(), world.workspace().join(".npm-cache").to_str().unwrap().into()),
                ("npm_config_update_notifier".into(), "false".into()),
            ],
            loose: |name| name.starts_with(b".npm-cache"),
            ..Scenario::default()
        }
        .compare(world);
    }

    fn python_venv(world) {
        if !world.has("python3") {
            return;
        }
        Scenario {
            steps: &[
                "python3 -m venv venv && venv/bin/python -c 'import sys; print(sys.prefix)'",
                "venv/bin/pip --version; venv/bin/pip list --format freeze 2>/dev/null",
                "mkdir package; printf 'def f():\\n    return 7\\n' > package/__init__.py; venv/bin/python -c 'import package; print(package.f())'; ls package",
                "venv/bin/python -m compileall -q package && ls package/__pycache__; . venv/bin/activate && python -c 'import sys; print(sys.executable)'",
                "printf 'import unittest, tempfile, sqlite3, multiprocessing\\nclass T(unittest.TestCase):\\n def test(self):\\n  with tempfile.TemporaryDirectory(dir=\".\") as d: open(d + \"/x\", \"w\").close()\\n  with multiprocessing.Pool(2) as p: self.assertEqual(p.map(abs, [-1, -2]), [1, 2])\\n' > test_it.py; python3 -m unittest 2>&1 | sed -E 's/in [0-9.]+s//'",
            ],
            // Compiled files hold the time of their source.
            loose: |name| name.ends_with(b".pyc"),
            ..Scenario::default()
        }
        .compare(world);
    }

    fn search_and_listing(world) {
        if !world.has("rg") || !world.has("git") || !repository(world, 3000) {
            return;
        }
        Scenario {
            // No `head`: a shell that minds broken pipes would mind its own.
            steps: &[
                "rg -c struct | sort",
                "rg --hidden --files | sort | sha256sum",
                "rg -l 'unsafe fn' -g '*.rs' --sort path | sed -n 1,50p; rg -uuu --no-messages -c TODO | sort | sed -n 1,10p",
                "find . -not -path './.git/*' | sort | sha256sum; find . -name '*.rs' -size +20k | sort; find . -type d -empty | sort",
                "find . -newer Cargo.toml 2>/dev/null | sed -n 1p; find . -perm /111 -type f -not -path './.git/*' | sort | sed -n 1,10p",
                "grep -rl --include='*.toml' dependencies . | sort | sha256sum; du -a --apparent-size --exclude=.git | grep -v '/$' | awk '{print $2}' | sort | sha256sum",
                "find . -name '*.rs' -print0 | sort -z | xargs -0 cat | sha256sum; ls -R | sha256sum; wc -l $(git ls-files '*.rs' | sed -n 1,100p) | tail -1",
                "find . -name '*.md' -delete; find . -name '*.toml' -exec touch -d 2020-01-01 {} +; git status --porcelain | wc -l",
            ],
            facets: Facets::Content,
            loose: git_state,
            ..Scenario::default()
        }
        .compare(world);
    }

    fn tar_cp_and_rsync(world) {
        if !world.has("rsync") {
            return;
        }
        fs::create_dir(world.workspace().join("tree")).unwrap();
        for source in stockade_tests::crate_sources().iter().take(6) {
            copy_tree(source, &world.workspace().join("tree").join(source.file_name().unwrap()));
        }
        for file in 0..300 {
            world.write(format!("tree/d{}/f{file}", file % 13), format!("{file}").repeat(file));
        }
        world.own_tree(&world.workspace());
        world.native("bash").args(["-ec", "cd tree; ln d0/f0 hard; ln -s d1/f1 soft; ln -s nowhere dangling; mkfifo fifo; chmod 600 d2/f2; chmod 2775 d3; chmod 500 d4; touch -d 1969-12-31T23:00:00.5Z d5/f5; touch -d 2001-02-03T04:05:06.789012345Z d6; setfattr -n user.x -v y d7/f7; truncate -s 1M sparse; find . -type f -newermt 2030-01-01; cd ..; tar --xattrs --sort=name -cf tree.tar tree; tar -cJf tree.tar.xz tree 2>/dev/null || gzip -k tree.tar"]).run().assert_success();
        Scenario {
            steps: &[
                "mkdir x && tar --xattrs -xpf tree.tar -C x && diff -r --no-dereference x/tree tree 2>&1 | grep -v fifo; true",
                "tar --xattrs -df tree.tar && tar cf again.tar --sort=name tree && tar tf again.tar | sha256sum",
                "cp -a tree copy-a && cp -r tree/d0 copy-r && cp -rp --sparse=always tree/sparse copy-sparse && cp -al tree/d1 copy-l; touch -r tree copy-a copy-l",
                "rsync -aH --out-format=%n tree/ synced/ | sort | sha256sum; rsync -aHX --itemize-changes tree/ synced/",
                "echo more >> tree/d8/f8; rsync -a --delete --itemize-changes tree/ synced/; rm -rf synced/d9; rsync -a -c --itemize-changes tree/ synced/ | sort; rsync -a --inplace tree/d8/f8 synced/d8/f8; touch -r tree/d8/f8 synced/d8/f8",
                "chmod u+w tree/d4 x/tree/d4 copy-a/d4 synced/d4; rm -rf tree/d10 x/tree/d11; mv copy-a moved; rm tree/d1[12]/*; rmdir tree/d11; ls moved | wc -l",
                "(cd x && tar c tree) | (mkdir y && tar xp -C y); gzip -kn moved/d3/f3; gunzip -c moved/d3/f3.gz | cmp - moved/d3/f3; split -b 1k moved/d12/f298 part; cat part* | cmp - moved/d12/f298 2>&1 | head -1",
            ],
            facets: Facets::Content,
            loose: |name| name == b"again.tar" || name.ends_with(b"tar.gz") || name == b"y",
            ..Scenario::default()
        }
        .compare(world);
    }

    /// The tools that set times set them to the nanosecond.
    fn times_that_tools_set(world) {
        if !world.has("rsync") {
            return;
        }
        for file in 0..50 {
            world.write(format!("source/d{}/f{file}", file % 5), "x");
        }
        world.native("bash").args(["-ec", "find source -exec touch -d 1999-12-31T23:59:59.123456789Z {} +; touch -d 1950-01-01T00:00:00.25Z source/d1/f1; tar -cf t.tar --posix source; ln -s f0 source/d0/link; touch -hd 2002-02-02 source/d0/link; find source -type d -exec touch -d 2003-03-03T03:03:03.3Z {} +"]).run().assert_success();
        Scenario {
            steps: &[
                "mkdir tar && tar xf t.tar -C tar && touch -d 2000-01-01 tar",
                "mkdir cp && cp -a source cp/ && touch -d 2000-01-01 cp",
                "mkdir rsync && rsync -a source rsync/ && touch -d 2000-01-01 rsync; touch -d 2000-01-01 .",
                "find . -printf '%p %T@\\n' | sort",
            ],
            facets: Facets::Modified,
            ..Scenario::default()
        }
        .compare(world);
    }

    fn make(world) {
        if !world.has("make") || !world.has("cc") {
            return;
        }
        world.write("Makefile", "OBJECTS := a.o b.o main.o\nprog: $(OBJECTS)\n\t$(CC) -o $@ $^\n%.o: %.c all.h\n\t$(CC) -c -o $@ $<\nlib.a: a.o b.o\n\t$(AR) rcsD $@ $^\nclean:\n\trm -f *.o prog lib.a\n");
        world.write("all.h", "int a(void); int b(void);\n");
        world.write("a.c", "#include \"all.h\"\nint a(void) { return 40; }\n");
        world.write("b.c", "#include \"all.h\"\nint b(void) { return 2; }\n");
        world.write("main.c", "#include <stdio.h>\n#include \"all.h\"\nint main(void) { printf(\"%d\\n\", a() + b()); return 0; }\n");
        Scenario {
            steps: &["make && ./prog", "make", "sleep 0.02; touch all.h; make -q; test $? = 1 && make -j2 | sort && ./prog", "make lib.a && ar t lib.a && nm lib.a | grep -c T", "echo '/* */' >> b.c; make; make clean; ls"],
            ..Scenario::default()
        }
        .compare(world);
    }

    fn sqlite_in_wal_mode(world) {
        if !world.has("sqlite3") {
            return;
        }
        Scenario {
            steps: &[
                "sqlite3 db 'PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t(b) SELECT hex(a) FROM (WITH RECURSIVE c(a) AS (SELECT 1 UNION ALL SELECT a+1 FROM c LIMIT 20000) SELECT a FROM c); SELECT count(*), sum(length(b)) FROM t;'",
                "sqlite3 db 'BEGIN; UPDATE t SET b = b || 1 WHERE a % 3 = 0; COMMIT; DELETE FROM t WHERE a % 7 = 0; SELECT count(*) FROM t; PRAGMA integrity_check;'",
                // Several writers at once, over processes: the locks and the shared memory must hold.
                "for w in 1 2 3 4; do (for i in $(seq 25); do sqlite3 -cmd '.timeout 20000' db \"INSERT INTO t(b) VALUES('w$w');\"; done) & done; wait; sqlite3 db \"SELECT b, count(*) FROM t WHERE b LIKE 'w%' GROUP BY b; PRAGMA integrity_check;\"",
                "(sqlite3 db 'BEGIN IMMEDIATE; INSERT INTO t(b) VALUES(1);' '.system sqlite3 -cmd \".timeout 100\" db \"INSERT INTO t(b) VALUES(2)\" 2>&1' 'ROLLBACK;'); sqlite3 db 'SELECT max(a) > 0 FROM t;'",
                "sqlite3 db 'PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE; INSERT INTO t(b) VALUES(3); VACUUM; PRAGMA mmap_size=100000000; SELECT count(*) FROM t;'; ls",
                "sqlite3 db .dump | sed -E 's/VALUES.[0-9]+,/(/' | sort | sha256sum; sqlite3 db '.backup copy' && cmp db copy; sqlite3 copy 'PRAGMA integrity_check;'",
            ],
            // Rows of several writers come in any order.
            loose: |name| name == b"db" || name == b"copy",
            ..Scenario::default()
        }
        .compare(world);
    }

    fn vim_patch_and_sed(world) {
        if !world.has("vim") || !world.has("patch") {
            return;
        }
        world.write("text", (0..500).map(|line| format!("line {line}\n")).collect::<String>());
        world.write("other", "alpha\nbeta\ngamma\n");
        fs::set_permissions(world.workspace().join("other"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        fs::hard_link(world.workspace().join("other"), world.workspace().join("second-name")).unwrap();
        std::os::unix::fs::symlink("text", world.workspace().join("link")).unwrap();
        world.write("change.patch", "--- a/other\n+++ b/other\n@@ -1,3 +1,4 @@\n alpha\n-beta\n+BETA\n gamma\n+delta\n--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+made\n");
        Scenario {
            steps: &[
                "vim -Nu NONE -i NONE -es -c '%s/line 7/LINE 7/' -c 'wq' text; grep -c LINE text",
                "vim -Nu NONE -i NONE -es -c 'set backup writebackup backupcopy=no' -c 'normal Gonew' -c 'wq' text; tail -1 text; ls",
                "vim -Nu NONE -i NONE -es -c 'set backupcopy=yes' -c 'normal Oby vim' -c 'wq' link; readlink link; head -1 text",
                "vim -Nu NONE -i NONE -es -c 'normal Oby vim' -c 'wq' second-name; cat other; stat -c %h other",
                "patch -p1 < change.patch; cat other made; patch -p1 -R < change.patch; cat other; ls",
                "sed -i 's/alpha/ALPHA/' other && sed -i.bak 's/gamma/GAMMA/' other && cat other other.bak; stat -c '%a %h' other second-name",
                "perl -pi -e 's/line/LINE/' text 2>/dev/null; head -2 text; sort -o text text; head -1 text; tac text > reversed; dd if=text of=text conv=notrunc bs=1k count=1 2>/dev/null; sha256sum text",
                "ed -s other <<< $'1d\\nw\\nq' 2>/dev/null; printf 'a\\nb\\n' | tee -a other; (echo one; echo two >&2) > both 2>&1; cat both; exec 3<>both; echo three >&3; cat both",
                "install -m 755 -D other deep/er/installed; stat -c %a deep/er/installed; mktemp -p . tmp.XXXXXX | wc -c; rm -f tmp.*; diff other other.bak; cmp text reversed; true",
            ],
            ..Scenario::default()
        }
        .compare(world);
    }
}

/// Returns a toolchain that the world's identity can run.
pub(super) fn toolchain(world: &World) -> Option<String> {
    let mut candidates: Vec<String> =
        std::env::var("STOCKADE_TEST_TOOLCHAIN").into_iter().collect();
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    if let Ok(output) = sysroot {
        candidates.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    for candidate in &candidates {
        let works = world
            .native("sh")
            .args([
                "-c",
                "\"$1/bin/cargo\" --version && \"$1/bin/rustc\" --version",
                "sh",
                candidate,
            ])
            .run();
        if works.code == 0 {
            return Some(candidate.clone());
        }
    }
    stockade_tests::skip(
        world.name(),
        "no cargo toolchain that this identity can run; scripts/test provides one",
    );
    None
}
