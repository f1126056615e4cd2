//! `--mode workspace-write`: the workspace and the temporary directories are writable, nothing else is, by no way (P6, F4).

use std::fs;
use std::path::Path;

use stockade_tests::{Digest, Facets, World, as_root_and_user};

use crate::program::{self, PYTHON};

const MODE: [&str; 2] = ["--mode", "workspace-write"];

/// The ways that need a process or a right which not every machine gives: not required to work natively.
const NOT_EVERYWHERE: [&str; 10] = [
    "proc-parent-cwd",
    "proc-parent-root",
    "proc-1-cwd",
    "proc-1-root",
    "bind-mount",
    "bind-root",
    "remount",
    "unmount",
    "file-handle",
    "hard-link-fd",
];

/// Prepares one victim a way in the outside directory and returns the arguments of the program.
fn victims(world: &World, program: &Path, spare: &Path) -> Vec<String> {
    let target = world.outside();
    let mut argv: Vec<String> = PYTHON.map(str::to_owned).to_vec();
    argv.extend(
        [program, target.as_path(), Path::new("9"), spare]
            .map(|part| part.to_str().unwrap().to_owned()),
    );
    let names = world.native(&argv[0]).args(&argv[1..]).arg("names").run();
    names.assert_success();
    for name in names.stdout().lines() {
        let path = target.join(name);
        fs::write(&path, "untouched\n").unwrap();
        world.own(&path);
    }
    argv
}

/// Runs `argv` through a shell that opens the outside file `inherited-fd` for writing first.
fn with_descriptor(world: &World, prefix: &[String], argv: &[String]) -> stockade_tests::Output {
    let file = world.outside().join("inherited-fd");
    world
        .native("bash")
        .args(["-c", "exec 9>>\"$1\"; shift; exec \"$@\"", "bash"])
        .arg(file)
        .args(prefix)
        .args(argv)
        .run()
}

as_root_and_user! {
    /// P6, F4, L11: forty ways out, each of which works natively for the same identity; none gets out.
    fn no_way_leads_out(world) {
        let program = program::install(world, "escape.py", program::ESCAPE);
        let spare = world.workspace().join("spare");
        fs::create_dir(&spare).unwrap();
        world.own(&spare);
        let argv = victims(world, &program, &spare);
        let before = Digest::of(&world.outside());

        let stockade = world.binary().to_str().unwrap().to_owned();
        let prefix = [&[stockade, "run".to_owned(), "-q".to_owned()], MODE.map(str::to_owned).as_slice(), &["--".to_owned()]].concat();
        let output = with_descriptor(world, &prefix, &argv);
        output.assert_success();
        Digest::of(&world.outside()).assert_same(&before, Facets::Untouched, &format!("got out:\n{}", output.stdout()));
        let outcomes = output.stdout();
        let outcomes = program::columns(&outcomes);
        assert!(outcomes.len() >= 40, "{outcomes:?}\n{}", output.stderr());
        for row in &outcomes {
            // What happens to a victim is seen above; a way may end inside the workspace without an error.
            let plain = ["direct", "create", "mkdir", "symlink", "mkfifo", "unlink", "truncate", "chmod", "utimes", "xattr"];
            if plain.contains(&row[0]) || row[0].starts_with("link-") || row[0].starts_with("proc-self") || row[0].starts_with("dot") {
                assert_eq!(row[1], "EROFS", "{}", row[0]);
            }
        }

        // The control: without Stockade these ways lead out.
        for entry in fs::read_dir(world.workspace()).unwrap() {
            let path = entry.unwrap().path();
            if path != spare {
                if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
            }
        }
        fs::remove_dir_all(&spare).unwrap();
        fs::create_dir(&spare).unwrap();
        world.own(&spare);
        let native = with_descriptor(world, &[], &argv).stdout();
        for row in program::columns(&native) {
            assert!(row[1] == "out" || NOT_EVERYWHERE.contains(&row[0]), "natively {row:?}: the attempt proves nothing");
        }
    }

    /// P6: where writing is allowed it works, and the host sees it.
    fn the_roots_are_writable(world) {
        let extra = world.directory().join("extra");
        let tmpdir = world.directory().join("tmpdir");
        for directory in [&extra, &tmpdir] {
            fs::create_dir(directory).unwrap();
            world.own(directory);
        }
        let shared = format!("/tmp/{}", world.directory().file_name().unwrap().to_str().unwrap());
        let script = format!(
            "set -e; mkdir {shared} d; echo w > d/f; echo t > {shared}/f; echo m > $TMPDIR/f; echo e > {}/f; mv d/f g; cp g h; chmod 600 h; ln g i; rm h",
            extra.display()
        );
        let output = world
            .run(&["--mode", "workspace-write", "--writable", extra.to_str().unwrap()])
            .args(["sh", "-c", &script])
            .env("TMPDIR", &tmpdir)
            .run();
        let made = fs::read(format!("{shared}/f"));
        drop(fs::remove_dir_all(&shared));
        output.assert_success();
        assert_eq!(output.stderr(), "", "nothing was refused, so there is nothing to say");
        assert_eq!(made.unwrap(), b"t\n");
        assert_eq!(fs::read(tmpdir.join("f")).unwrap(), b"m\n");
        assert_eq!(fs::read(extra.join("f")).unwrap(), b"e\n");
        assert_eq!(fs::read(world.workspace().join("g")).unwrap(), b"w\n");
        assert_eq!(fs::read(world.workspace().join("i")).unwrap(), b"w\n");
        let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(world.workspace().join("g")).unwrap());
        assert_eq!(owner, world.ids().0);
    }

    /// P6: everything that isn't a root is refused with EROFS: home, system directories, the parent, the state directory.
    fn everything_else_is_refused(world) {
        fs::write(world.home().join("kept"), "kept").unwrap();
        world.own(&world.home().join("kept"));
        let (home, outside, state) = (world.home(), world.outside(), world.state());
        let before = [&home, &outside].map(|top| Digest::of(top));
        for directory in [home.as_path(), outside.as_path(), state.as_path(), world.directory(), Path::new("/var/tmp"), Path::new("/dev/shm/..")] {
            let script = format!("echo x > {}/stockade-suite", directory.display());
            let output = world.run(&["-q"]).args(["sh", "-c", &script]).run();
            assert_ne!(output.code, 0, "{} is writable", directory.display());
        }
        for (top, before) in [&home, &outside].into_iter().zip(before) {
            Digest::of(top).assert_same(&before, Facets::Untouched, "touched");
        }
        let output = world.run(&["-q"]).args(["sh", "-c", &format!("rm -rf {0}; ls -A {0}", home.display())]).run();
        assert!(output.stdout().contains("kept"), "{}", output.stderr());
    }

    /// P3: it is the command line's default mode.
    fn it_is_the_default(world) {
        let (output, result) = world.run_with_result(&[], &["sh", "-c", "echo $STOCKADE_MODE; echo x > f"]);
        output.assert_success();
        assert_eq!(output.stdout(), "workspace-write\n");
        assert_eq!(result["policy"]["mode"], "workspace-write");
        assert_eq!(result["policy"]["source"], "default");
        assert_eq!(result["policy"]["root"], world.workspace().to_str().unwrap());
    }
}
