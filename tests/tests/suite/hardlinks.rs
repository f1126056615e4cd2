//! Files that share their inode with names that a run doesn't know: no write leads out through them (F11).
//!
//! Each comment names the check that its test is about: taking that out must make the test fail.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use stockade_tests::{Digest, Facets, World, as_root_and_user};

use crate::attempts;

/// Every way to change a file called `f`, by name.
const WAYS: [(&str, &str); 17] = [
    ("write", "py 'f=open(\"f\",\"r+\"); f.write(\"in\"); f.close()'"),
    ("append", "echo in >> f"),
    ("rewrite", "echo in > f"),
    ("truncate", "truncate -s 1 f"),
    ("truncate-descriptor", "py 'import os; os.ftruncate(os.open(\"f\",os.O_RDWR),1)'"),
    ("extend", "truncate -s 100000 f"),
    ("allocate", "fallocate -l 100000 f"),
    ("punch", "fallocate -p -o 0 -l 4096 f"),
    (
        "mapping",
        "py 'import mmap,os; f=os.open(\"f\",os.O_RDWR); m=mmap.mmap(f,0); m[0]=1; m.flush()'",
    ),
    (
        "copy-range",
        "printf in > g; py 'import os; os.copy_file_range(os.open(\"g\",os.O_RDONLY),os.open(\"f\",os.O_WRONLY),2)'",
    ),
    ("chmod", "chmod 711 f"),
    ("chmod-descriptor", "py 'import os; os.fchmod(os.open(\"f\",os.O_RDONLY),0o711)'"),
    ("chown", "chown $(id -u):$(id -g) f; chmod u+x f"),
    ("utimes", "touch -d 2001-02-03 f"),
    ("utimes-descriptor", "py 'import os; os.utime(os.open(\"f\",os.O_RDONLY),(1,2))'"),
    ("xattr", "py 'import os; os.setxattr(\"f\",\"user.made\",b\"in\")'"),
    ("xattr-remove", "py 'import os; os.removexattr(\"f\",\"user.old\")'"),
];

/// Makes a directory in the workspace for each way, with a file `f` that shares its inode with one outside.
fn share(world: &World) -> PathBuf {
    for (way, _) in WAYS {
        let outside = world.outside().join(way);
        fs::write(&outside, "outside ".repeat(1000)).unwrap();
        world.own(&outside);
        rustix::fs::setxattr(&outside, "user.old", b"outside", rustix::fs::XattrFlags::empty())
            .unwrap();
        let inside = world.workspace().join(way);
        fs::create_dir(&inside).unwrap();
        world.own(&inside);
        fs::hard_link(&outside, inside.join("f")).unwrap();
    }
    world.outside()
}

fn rows() -> Vec<(&'static str, String)> {
    WAYS.iter().map(|(way, script)| (*way, format!("cd {way}; {script}"))).collect()
}

fn make(world: &World, options: &[&str]) -> attempts::Attempts {
    let rows = rows();
    let rows: Vec<(&str, &str)> =
        rows.iter().map(|(way, script)| (*way, script.as_str())).collect();
    attempts::make(world, options, &rows)
}

as_root_and_user! {
    /// F11: by default each change goes to a fresh inode with everything else that the file had, and the name outside
    /// keeps what it has. (The check: `make_sole` in `fusefs`'s `ops/open.rs`, `ops/attr.rs` and `ops/xattr.rs`.)
    fn a_change_breaks_the_link(world) {
        let outside = share(world);
        let before = Digest::of(&outside);
        let inode = |way: &str| fs::metadata(world.workspace().join(way).join("f")).unwrap().ino();
        let inodes: Vec<u64> = WAYS.iter().map(|(way, _)| inode(way)).collect();
        make(world, &[]).all_succeeded();
        // The link count is one less, and with it the change time moved.
        for (way, _) in WAYS {
            let (path, name) = (world.workspace().join(way).join("f"), outside.join(way));
            assert_eq!(fs::read_to_string(&name).unwrap(), "outside ".repeat(1000), "{way}");
            let (now, mine) = (fs::metadata(&name).unwrap(), fs::metadata(&path).unwrap());
            assert_eq!((now.nlink(), mine.nlink()), (1, 1), "{way}");
            assert_ne!(now.ino(), mine.ino(), "{way}");
            // What wasn't changed came along.
            if !way.starts_with("xattr-remove") {
                let mut value = [0; 64];
                assert_eq!(rustix::fs::getxattr(&path, "user.old", &mut value[..]).unwrap(), 7, "{way}");
            }
            if way.starts_with("chmod") || way.starts_with("xattr") || way.starts_with("utimes") {
                assert_eq!(fs::read_to_string(&path).unwrap(), "outside ".repeat(1000), "{way}");
            }
            if way.starts_with("chmod") || way.starts_with("xattr") {
                assert_eq!((now.mtime(), now.mtime_nsec()), (mine.mtime(), mine.mtime_nsec()), "{way}");
            }
        }
        let differences: Vec<String> = before
            .differences(&Digest::of(&outside), Facets::Modified)
            .into_iter()
            .filter(|line| !line.contains("size and links") && !line.contains("hard link"))
            .collect();
        assert_eq!(differences, [""; 0]);
        let moved = WAYS.iter().zip(inodes).filter(|((way, _), old)| inode(way) != *old).count();
        assert_eq!(moved, WAYS.len());
    }

    /// F11: with `deny` each change is refused, and both names keep what they have.
    /// (The check: `Hardlinks::Deny` in `make_sole`.)
    fn a_change_is_refused_when_asked(world) {
        let outside = share(world);
        let before = [Digest::of(&outside), Digest::of(&world.workspace())];
        make(world, &["--hardlinks", "deny"]).all_refused();
        for entry in fs::read_dir(world.workspace()).unwrap() {
            drop(fs::remove_file(entry.unwrap().path().join("g")));
        }
        Digest::of(&outside).assert_same(&before[0], Facets::Untouched, "outside");
        Digest::of(&world.workspace()).assert_same(&before[1], Facets::Content, "inside");
    }

    /// F11: with `follow` each change reaches both names, and the result says that this is a gap.
    fn a_change_follows_when_asked(world) {
        let outside = share(world);
        make(world, &["--hardlinks", "follow"]).all_succeeded();
        for (way, _) in WAYS {
            let (inside, name) = (world.workspace().join(way).join("f"), outside.join(way));
            assert_eq!(fs::metadata(&inside).unwrap().ino(), fs::metadata(&name).unwrap().ino(), "{way}");
            assert_eq!(fs::read(&inside).unwrap(), fs::read(&name).unwrap(), "{way}");
        }
        let (output, result) = world.run_with_result(&["--hardlinks", "follow"], &["true"]);
        output.assert_success();
        assert!(result["enforcement"]["gaps"].to_string().contains("link"), "{}", result["enforcement"]);
    }

    /// F11: reading, executing, removing and renaming a shared file leave it shared.
    fn what_changes_nothing_breaks_nothing(world) {
        let outside = world.outside().join("x");
        fs::write(&outside, "#!/bin/sh\necho ran\n").unwrap();
        world.own(&outside);
        std::process::Command::new("chmod").arg("755").arg(&outside).status().unwrap();
        for name in ["read", "exec", "gone", "moved"] {
            fs::hard_link(&outside, world.workspace().join(name)).unwrap();
        }
        let inode = fs::metadata(&outside).unwrap().ino();
        attempts::make(world, &[], &[
            ("read", "cat read; stat read; py 'import os; os.listxattr(\"read\")'"),
            ("exec", "test \"$(./exec)\" = ran"),
            ("remove", "rm gone"),
            ("rename", "mv moved moved2"),
            ("link", "ln read read2"),
        ]).all_succeeded();
        for name in ["read", "exec", "moved2", "read2"] {
            assert_eq!(fs::metadata(world.workspace().join(name)).unwrap().ino(), inode, "{name}");
        }
        assert_eq!(fs::metadata(&outside).unwrap().nlink(), 5);
    }

    /// F11: names that are made inside are known: a write through one shows through the other, and the link stays.
    /// (The check: `is_shared` in `fusefs`'s `ops/fresh.rs`.)
    fn names_made_inside_stay_one_file(world) {
        attempts::make(world, &[], &[
            ("write", "echo 1 > a; ln a b; echo 2 >> a; test \"$(cat b)\" = \"$(printf '1\\n2')\""),
            ("write-other", "echo 3 >> b; test \"$(tail -1 a)\" = 3; test \"$(stat -c %i a)\" = \"$(stat -c %i b)\"; test $(stat -c %h a) = 2"),
            ("chmod", "chmod 640 a; test $(stat -c %a b) = 640"),
            ("rename-one", "mv b c; echo 4 >> c; test \"$(tail -1 a)\" = 4"),
            ("other-directory", "mkdir d; mv c d/c; echo 5 >> a; test \"$(tail -1 d/c)\" = 5"),
            ("moved-directory", "mv d e; echo 6 >> e/c; test \"$(tail -1 a)\" = 6"),
            ("third", "ln e/c f; rm a; echo 7 >> f; test \"$(tail -1 e/c)\" = 7"),
            ("replaced", "echo new > g; mv g f; test $(stat -c %h e/c) = 1; echo 8 >> e/c; test \"$(cat f)\" = new"),
            ("many", "echo 1 > m; for i in $(seq 100); do ln m m$i; done; echo 2 >> m7; test \"$(tail -1 m93)\" = 2; test $(stat -c %h m) = 101"),
            ("exchanged", "echo p > p; ln p p2; echo q > q; exchange p q; echo more >> q; test \"$(tail -1 p2)\" = more"),
        ]).all_succeeded();
    }

    /// F11: names made inside stay known when the kernel has forgotten them.
    /// (The check: what `Table` keeps of files with several names in `fusefs`'s `node.rs`.)
    fn names_made_inside_are_known_after_the_kernel_forgot(world) {
        if !world.identity().is_root() {
            return; // Only root can have the kernel forget.
        }
        let mut running = world
            .run(&["-q"])
            .args(["sh", "-c", "mkdir d; echo 1 > d/a; ln d/a b; echo > ready; while ! test -e go; do sleep 0.02; done; echo 2 >> d/a; cat b; ls -i d/a b | cut -d' ' -f1 | uniq | wc -l"])
            .spawn();
        running.wait_until("the link", || world.workspace().join("ready").exists());
        for _ in 0..3 {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        }
        fs::write(world.workspace().join("go"), "").unwrap();
        assert_eq!(running.wait().stdout(), "1\n2\n1\n");
    }

    /// F11: whole trees of hard links (`cp -al`, `git clone --local`, a package manager's store) can be used, changed
    /// and removed, and what they were made from stays as it is.
    fn trees_of_links_can_be_used(world) {
        let store = world.outside().join("store");
        fs::create_dir(&store).unwrap();
        for number in 0..20 {
            fs::write(store.join(format!("{number}.js")), format!("module {number}\n")).unwrap();
        }
        world.own_tree(&world.outside());
        let status = std::process::Command::new("cp").arg("-al").arg(&store).arg(world.workspace().join("modules")).status().unwrap();
        assert!(status.success());
        world.native("sh").args(["-c", "git init -q -b main ../out/up; cd ../out/up; git config user.name t; git config user.email t@t; for i in 1 2 3; do echo $i > f; git add f; git commit -qm $i; done; git clone -q --local . ../../w/clone"]).run().assert_success();
        let before = Digest::of(&world.outside());
        attempts::make(world, &[], &[
            ("patch", "for f in modules/*.js; do sed -i s/module/patched/ $f; done; grep -q patched modules/7.js"),
            ("append", "for f in modules/*.js; do echo x >> $f; done; test $(cat modules/*.js | grep -c x) = 20"),
            ("copy", "cp -al modules copy; echo y >> copy/3.js; rm -rf copy/4.js; test \"$(tail -1 copy/3.js)\" = y"),
            ("remove", "rm -rf copy; test -e modules/3.js"),
            ("clone-works", "cd clone; git config user.name a; git config user.email a@b; echo 4 > f; git commit -qam 4; git gc -q; git fsck"),
            ("clone-again", "git clone -q --local clone clone2; git -C clone2 fsck; git -C clone2 gc -q --prune=now; git -C clone fsck"),
            ("clone-remove", "rm -rf clone"),
        ]).all_succeeded();
        let differences: Vec<String> = before
            .differences(&Digest::of(&world.outside()), Facets::Modified)
            .into_iter()
            .filter(|line| !line.contains("size and links"))
            .collect();
        assert_eq!(differences, [""; 0]);
    }

    /// F7, F11: breaking a link leaves no staged file, and nobody inside sees one.
    fn breaking_a_link_leaves_nothing(world) {
        share(world);
        let names = |world: &World| {
            let output = world.native("find").args([".", "-name", "*stockade*"]).run();
            output.stdout()
        };
        let mut rows = rows();
        rows.push(("look", "test -z \"$(find . -name '.stockade*')\"".into()));
        let rows: Vec<(&str, &str)> = rows.iter().map(|(way, script)| (*way, script.as_str())).collect();
        attempts::make(world, &[], &rows).all_succeeded();
        assert_eq!(names(world), "");
        // The pattern of a staged name is not a way to hide or to make one.
        let tried = attempts::make(world, &[], &[("staged-name", "echo x > .stockade-1-1.tmp; cat .stockade-1-1.tmp")]);
        tried.all_refused();
        assert_eq!(names(world), "");
    }
}
