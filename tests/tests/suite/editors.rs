//! How editors and other programs save: the same as without Stockade, under the enforced guard (F5, O3).

use std::fs;
use std::time::Duration;

use stockade_tests::{Digest, Facets, World, as_root_and_user, copy_tree};

/// Ways to save a file, by the system calls that the program makes.
const SAVES: [(&str, &str); 7] = [
    // VS Code, and nano: cut and write again, with a sync.
    (
        "cut",
        "t = open('f').read(); d = os.open('f', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666); os.write(d, t.replace('a', 'b').encode()); os.fdatasync(d); os.close(d)",
    ),
    // Emacs: the old file becomes the backup, the new one is made under the name.
    (
        "backup",
        "t = open('f').read(); m = os.stat('f').st_mode; os.rename('f', 'f~'); d = os.open('f', os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600); os.write(d, t.replace('a', 'b').encode()); os.fchmod(d, m & 0o7777); os.fsync(d); os.close(d)",
    ),
    // Vim with backupcopy=yes: the backup is a copy, the file itself is written again.
    (
        "copy",
        "shutil.copy2('f', 'f~'); t = open('f').read(); d = os.open('f', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(d, t.replace('a', 'b').encode()); os.fsync(d); os.close(d); os.unlink('f~')",
    ),
    // JetBrains, cargo, git: a temporary file is renamed over it.
    (
        "temporary",
        "t = open('f').read(); d = os.open('.f.tmp', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600); os.write(d, t.replace('a', 'b').encode()); os.fchmod(d, os.stat('f').st_mode & 0o7777); os.fsync(d); os.close(d); os.rename('.f.tmp', 'f'); p = os.open('.', os.O_RDONLY); os.fsync(p)",
    ),
    // Python and Go: open for both, cut by the descriptor.
    (
        "in place",
        "d = os.open('f', os.O_RDWR); t = os.read(d, 9999).decode(); os.ftruncate(d, 0); os.pwrite(d, t.replace('a', 'b').encode(), 0); os.close(d)",
    ),
    // A link takes the place, then the temporary name goes.
    (
        "link",
        "t = open('f').read(); open('.new', 'w').write(t.replace('a', 'b')); os.unlink('f'); os.link('.new', 'f'); os.unlink('.new')",
    ),
    (
        "mapped",
        "import mmap; d = os.open('f', os.O_RDWR); m = mmap.mmap(d, 0); m[:] = m[:].replace(b'a', b'b'); m.flush(); m.close(); os.close(d)",
    ),
];

/// Runs a script natively and inside, from copies of one workspace, and compares all that it leaves and says.
fn compare(world: &World, script: &str) {
    let workspace = world.workspace();
    let prepared = world.directory().join("prepared");
    drop(fs::remove_dir_all(&prepared));
    copy_tree(&workspace, &prepared);
    let run = |invocation: stockade_tests::Invocation| {
        invocation.args(["-ec", script]).deadline(Duration::from_secs(120)).run()
    };
    let native = run(world.native("bash"));
    assert_eq!(native.code, 0, "natively `{script}`: {}{}", native.stdout(), native.stderr());
    let tree = Digest::of(&workspace);
    fs::remove_dir_all(&workspace).unwrap();
    fs::rename(&prepared, &workspace).unwrap();
    let inside = run(world.run(&["--guard", "enforce"]).arg("bash"));
    assert_eq!(
        (inside.code, inside.stdout(), inside.stderr()),
        (native.code, native.stdout(), native.stderr()),
        "`{script}`"
    );
    tree.assert_same(&Digest::of(&workspace), Facets::Content, script);
}

as_root_and_user! {
    fn ways_to_save(world) {
        for (name, save) in SAVES {
            for mode in [0o644, 0o755, 0o600] {
                drop(fs::remove_file(world.workspace().join("f~")));
                let file = world.write("f", "aaa\nbab\n".repeat(300));
                fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
                compare(world, &format!("python3 -c \"import os, shutil; {save}\"; stat -c '%A %s %n' *; cat f | md5sum"));
                let text = fs::read_to_string(&file).unwrap();
                assert_eq!(text, "bbb\nbbb\n".repeat(300), "{name} {mode:o}");
            }
        }
    }

    fn vim(world) {
        if !world.has("vim") {
            return;
        }
        for option in ["", "set backupcopy=yes", "set backupcopy=no", "set nowritebackup", "set backup", "set undofile"] {
            for left in ["f~", "script~"] {
                drop(fs::remove_file(world.workspace().join(left)));
            }
            world.write("f", "aaa\nbab\n");
            world.write("script", "#!/bin/sh\necho a\n");
            fs::set_permissions(world.workspace().join("script"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            compare(world, &format!(
                "for f in f script; do vim -u NONE -es -c 'set undodir=/tmp' -c '{option}' -c '%s/a/b/g' -c wq $f < /dev/null; done; cat f; ls -la | cut -c1-10 | sort; ls -A; ./script"
            ));
        }
    }

    /// In place, by copies and by renaming; what a stream editor leaves keeps its mode.
    fn stream_editors(world) {
        world.write("f", "aaa\nbab\n");
        world.write("d/g", "aaa\n");
        compare(world, "chmod 755 f; sed -i s/a/b/ f; sed -i.bak s/b/c/ f d/g; perl -pi -e 's/b/d/' f; cat f f.bak d/g; ls -l f f.bak | cut -c1-10; \
            sort -o f f; cat f | tee f.copy > /dev/null; cp f.copy f; dd if=f of=f.copy conv=notrunc status=none; truncate -s 3 f; cat f f.copy; \
            diff -u --label a --label b f f.copy > p || true; patch -s f p; cat f; install -m 640 f i; ls -l i | cut -c1-10");
    }

    fn a_log_that_is_followed(world) {
        world.write("log", "old\n");
        compare(world, ": > out; tail -n +1 -f log > out 2> err & follower=$!; wait_for() { until grep -q \"$1\" out; do sleep 0.02; done; }; \
            wait_for old; echo more >> log; wait_for more; echo re > log; wait_for re$; echo last >> log; wait_for last; \
            kill $follower; wait $follower || true; cat out err; rm out err");
    }

    fn sqlite(world) {
        if !world.has("sqlite3") {
            return;
        }
        for journal in ["delete", "truncate", "persist", "wal"] {
            drop(fs::remove_file(world.workspace().join("db")));
            let output = world.run(&["--guard", "enforce"]).args(["bash", "-ec", &format!(
                "sqlite3 db 'pragma journal_mode={journal}; create table t(x); insert into t values (1);'; \
                 for i in 1 2 3; do sqlite3 db 'begin; insert into t select x + 1 from t; update t set x = x * 2; commit;'; done; \
                 sqlite3 db 'begin; delete from t; rollback; select count(*), sum(x) from t; pragma integrity_check; vacuum;'"
            )]).run();
            assert_eq!((output.code, output.stdout(), output.stderr()), (0, format!("{journal}\n8|120\nok\n"), String::new()), "{journal}");
            let outside = world.native("sqlite3").args(["db", "select count(*), sum(x) from t"]).run();
            assert_eq!(outside.stdout(), "8|120\n", "{journal}: {}", outside.stderr());
        }
    }

    fn cargo_fmt(world) {
        let Some(toolchain) = crate::everyday::toolchain(world) else { return };
        world.write("Cargo.toml", "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
        world.write("src/main.rs", "mod other;\nfn main(){println!(\"{}\",other::text( ))}\n");
        world.write("src/other.rs", "pub fn text()->&'static str{ \"x\" }\n");
        compare(world, &format!("export PATH={toolchain}/bin:$PATH; cargo fmt; cat src/*; cargo fmt --check; ls -A . src"));
    }
}
