//! `--mode read-only`: everything is refused, nothing is changed, reading works (contract F1, F2).

use std::collections::BTreeSet;

use stockade_tests::{Digest, Facets, World, as_root_and_user};

use crate::program::{self, PYTHON};

const MODE: [&str; 2] = ["--mode", "read-only"];

fn confined(world: &World, argv: &[&str]) -> stockade_tests::Output {
    world.run(&["--mode", "read-only", "-q"]).args(argv).run()
}

as_root_and_user! {
    /// F1, F2: by system call. The same calls all go through natively, so each refusal is Stockade's.
    fn every_operation_is_refused_with_erofs(world) {
        let program = program::install(world, "refused.py", program::REFUSED);
        let run = |what: &str| world.native(PYTHON[0]).args(&PYTHON[1..]).arg(&program).arg(what).run();
        run("setup").assert_success();
        let before = Digest::of(&world.workspace());

        let program = program.to_str().unwrap();
        let argv = [&PYTHON[..], &[program, "attempt"]].concat();
        let (output, result) = world.run_with_result(&MODE, &argv);
        output.assert_success();
        Digest::of(&world.workspace()).assert_same(&before, Facets::Untouched, "the tree was touched");

        let outcomes = output.stdout();
        let outcomes = program::columns(&outcomes);
        assert!(outcomes.len() >= 40, "{outcomes:?}");
        for row in &outcomes {
            // Nobody can make an unnamed file in a FUSE file system that doesn't serve it: an honest refusal (DESIGN 4).
            let right = row[2] == "EROFS" || row[0] == "tmpfile" && row[2] == "ENOTSUP";
            assert!(right, "{row:?}");
        }

        // Each refusal is in the records under its own path (L5).
        let denied: BTreeSet<&str> = result["denials"].as_array().unwrap().iter().flat_map(|denial| [&denial["path"], &denial["path2"]]).filter_map(|path| path.as_str()).collect();
        for row in outcomes.iter().filter(|row| row[2] == "EROFS" && row[0] != "bind-socket") {
            let path = world.workspace().join(row[1]);
            assert!(denied.contains(path.to_str().unwrap()), "no record of the refused {} of {}", row[0], path.display());
        }

        let after = run("attempt").stdout();
        for row in program::columns(&after) {
            assert_eq!(row[2], "done", "natively {} must work, or its refusal proves nothing", row[0]);
        }
    }

    /// F1, F2: by the programs that people use.
    fn real_programs_are_told_that_it_is_read_only(world) {
        world.write("f", "content\n");
        world.write("d/f", "content\n");
        world.write("empty/x", "");
        std::fs::remove_file(world.workspace().join("empty/x")).unwrap();
        let before = Digest::of(&world.workspace());
        let commands = [
            "echo x > new", "echo x >> f", ": > f", "touch f", "touch -d 2001-01-01 f", "cp f g", "cp f d/f", "mv f g", "mv d e",
            "mv -f f d/f", "rm f", "rm -rf d", "rmdir empty", "mkdir -p a/b", "ln f g", "ln -s f g", "chmod 600 f", "chmod -R go-r d",
            "chown $(id -u):$(id -g) f", "truncate -s 3 f", "truncate -s 0 f", "fallocate -l 65536 f", "dd if=/dev/zero of=f bs=1 count=1 conv=notrunc",
            "sed -i s/content/x/ f", "tee f </dev/null", "mkfifo p", "install -m 755 f g", "mktemp ./XXXXXX", "tar cf t.tar f",
            "python3 -c 'open(\"f\", \"r+\")'",
        ];
        for command in commands {
            let output = confined(world, &["sh", "-c", command]);
            assert_ne!(output.code, 0, "`{command}` went through");
            assert!(output.stderr().contains("Read-only file system"), "`{command}` said: {}", output.stderr());
            Digest::of(&world.workspace()).assert_same(&before, Facets::Untouched, command);
        }
    }

    /// F2: the temporary directories are no writable roots in this mode (P6).
    fn the_temporary_directories_are_read_only_too(world) {
        for directory in ["/tmp", "/var/tmp"] {
            let output = confined(world, &["sh", "-c", &format!("echo x > {directory}/stockade-suite-$$")]);
            assert_ne!(output.code, 0, "{directory}");
            assert!(output.stderr().contains("Read-only file system"), "{directory}: {}", output.stderr());
        }
    }

    /// Reading is as without Stockade: names, contents, metadata.
    fn reading_works(world) {
        for file in 0..200 {
            world.write(format!("d{}/f{file}", file % 7), format!("{file}\n").repeat(file * 50));
        }
        std::os::unix::fs::symlink("d1/f1", world.workspace().join("link")).unwrap();
        world.own(&world.workspace().join("link"));
        std::fs::hard_link(world.workspace().join("d2/f2"), world.workspace().join("hard")).unwrap();
        let commands = [
            "find . | sort",
            "find . -type f -print0 | sort -z | xargs -0 sha256sum",
            // Birth times and devices are the mount's own.
            "find . -printf '%p %y %m %u %g %s %n %i %l %T@ %C@\\n' | sort | grep -v ' d '",
            "ls -lR --time-style=full-iso --ignore-backups | grep -v ^total",
            "grep -r 17 . | sort | head -100; cat link; du -a --apparent-size | sort | grep f",
            "tar c . | tar t | sort; realpath link; readlink link; wc -c d*/* | tail -1",
            "head -c 5 < d1/f50; tail -c 5 d1/f50; cmp d1/f50 d1/f1; diff -r d1 d2 | head; file=d1/f50; test -r $file && test -f $file",
        ];
        let before = Digest::of(&world.workspace());
        for command in commands {
            let native = world.native("sh").args(["-c", command]).run();
            let inside = confined(world, &["sh", "-c", command]);
            assert_eq!((inside.stdout(), inside.stderr(), inside.code), (native.stdout(), native.stderr(), native.code), "{command}");
        }
        Digest::of(&world.workspace()).assert_same(&before, Facets::Untouched, "reading touched the tree");
    }
}
