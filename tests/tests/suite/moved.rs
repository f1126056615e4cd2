//! What the host moves while programs use it (F4): out of the workspace, nobody goes along; within it, everybody does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stockade_tests::{Digest, Facets, World, as_root_and_user};

use crate::program::{self, PYTHON, columns};

/// What the program uses, with everything it will try to reach.
fn furnish(world: &World) {
    for dir in ["d", "d/below"] {
        world.write(format!("{dir}/there"), "untouched\n");
        world.write(format!("{dir}/unseen"), "unseen\n");
        let path = world.workspace().join(dir);
        std::os::unix::fs::symlink("target", path.join("link")).unwrap();
        fs::create_dir(path.join("empty")).unwrap();
        world.own_tree(&path);
    }
    world.write("f", "untouched\n");
    world.write("inside", "inside\n");
}

/// Runs the program, has the host move something while it waits, and returns what it printed.
fn run(world: &World, options: &[&str], movement: impl FnOnce(&Path)) -> String {
    furnish(world);
    let program = program::install(world, "moved.py", program::MOVED);
    let workspace = world.workspace();
    let options = [&["-q"], options].concat();
    let mut running = world.run(&options).args(PYTHON).arg(program).spawn();
    running.wait_until("it holds what it needs", || workspace.join("ready").exists());
    movement(&workspace);
    fs::write(workspace.join("go"), "").unwrap();
    let output = running.wait();
    output.assert_success();
    output.stdout()
}

fn assert_nothing_was_done(printed: &str) {
    let rows = columns(printed);
    assert!(rows.len() >= 80, "{printed}");
    let done: Vec<_> = rows.iter().filter(|row| row[1] == "done").collect();
    assert!(done.is_empty(), "done outside: {done:?}");
}

fn nobody_goes_along(world: &World, what: &str, movement: impl FnOnce(&Path, &Path)) {
    let outside = world.outside();
    let mut before = None;
    let printed = run(world, &[], |workspace| {
        movement(workspace, &outside);
        before = Some(Digest::of(&outside));
    });
    assert_nothing_was_done(&printed);
    let after = Digest::of(&outside);
    after.assert_same(&before.unwrap(), Facets::Untouched, what);
    assert!(!world.workspace().join("stolen").exists());
    assert!(world.workspace().join("inside").exists());
}

as_root_and_user! {
    /// Removing the check in `ops/inside.rs` makes these three fail.
    fn a_directory_that_the_host_moves_out_takes_nobody_along(world) {
        nobody_goes_along(world, "changed outside", |workspace, outside| {
            fs::rename(workspace.join("d"), outside.join("d")).unwrap();
            fs::rename(workspace.join("f"), outside.join("f")).unwrap();
        });
    }

    fn a_directory_that_is_swapped_for_a_link_takes_nobody_along(world) {
        nobody_goes_along(world, "changed outside", |workspace, outside| {
            for name in ["d", "f"] {
                fs::rename(workspace.join(name), outside.join(name)).unwrap();
                std::os::unix::fs::symlink(outside.join(name), workspace.join(name)).unwrap();
            }
        });
    }

    /// The directory that holds the workspace's own may move, too.
    fn a_parent_that_the_host_moves_out_takes_nobody_along(world) {
        let outside = world.outside();
        world.write("p/q/there", "untouched\n");
        world.own_tree(&world.workspace().join("p"));
        let script = "cd p/q && cat there && echo > ../../ready && \
            for i in $(seq 3000); do test -e ../../go && break; sleep 0.01; done; \
            for way in 'echo x > new' 'echo x > there' 'mkdir new' 'rm there' 'cat there' 'chmod 600 there'; do \
            (eval \"$way\") && echo \"done: $way\"; done; exit 0";
        let mut running = world.run(&["-q"]).args(["sh", "-c", script]).spawn();
        let workspace = world.workspace();
        running.wait_until("it stands there", || workspace.join("ready").exists());
        fs::rename(workspace.join("p"), outside.join("p")).unwrap();
        let before = Digest::of(&outside);
        fs::write(workspace.join("go"), "").unwrap();
        let output = running.wait();
        assert_eq!(output.stdout(), "untouched\n", "{}", output.stderr());
        Digest::of(&outside).assert_same(&before, Facets::Untouched, "changed outside");
    }

    /// A file whose last name inside is gone, and that has another outside, isn't to be reached by its descriptor (F11).
    fn a_descriptor_of_a_removed_name_does_not_lead_outside(world) {
        let outside = world.outside().join("shared");
        fs::write(&outside, "outside\n").unwrap();
        world.own(&outside);
        fs::hard_link(&outside, world.workspace().join("shared")).unwrap();
        let mode = fs::metadata(&outside).unwrap().mode();
        let script = "exec 3< shared; rm shared; (echo x > /proc/self/fd/3); (echo x >> /proc/self/fd/3); \
            (chmod 600 /proc/self/fd/3); exit 0";
        world.run(&["-q"]).args(["sh", "-c", script]).run().assert_success();
        assert_eq!(fs::read(&outside).unwrap(), b"outside\n");
        assert_eq!(fs::metadata(&outside).unwrap().mode(), mode);
    }

    /// Whoever stands in a directory that moves within the workspace works on in it.
    fn a_directory_that_the_host_moves_within_the_workspace_is_followed(world) {
        fs::create_dir(world.workspace().join("e")).unwrap();
        world.own(&world.workspace().join("e"));
        let printed = run(world, &[], |workspace| {
            fs::rename(workspace.join("d"), workspace.join("e/moved")).unwrap();
            fs::rename(workspace.join("f"), workspace.join("e/f")).unwrap();
        });
        // The ways follow one another: what was removed isn't there to be read. `..` of the directory is another now,
        // for the kernel below; inside it is still the one it was entered by.
        let rows = columns(&printed);
        let failed = |way: &str| rows.iter().any(|row| row[0] == way && row[1] != "done");
        for way in ["create", "rewrite", "write", "append", "truncate", "chmod", "mkdir", "link here", "below, create",
                    "the descriptor, list", "chmod of the directory", "the file, write", "the file, chmod"] {
            assert!(!failed(way), "{way}: {printed}");
        }
        let moved = world.workspace().join("e/moved");
        assert!(moved.join("newdir").exists() && moved.join("below/newdir").exists());
    }

    /// There, the rules of the new place hold (P10).
    fn a_directory_that_the_host_moves_to_a_denied_place_is_denied(world) {
        fs::create_dir(world.workspace().join("e")).unwrap();
        world.own(&world.workspace().join("e"));
        let denied = world.workspace().join("e");
        let mut before = None;
        let printed = run(world, &["--deny-write", denied.to_str().unwrap()], |workspace| {
            fs::rename(workspace.join("d"), workspace.join("e/moved")).unwrap();
            fs::rename(workspace.join("f"), workspace.join("e/f")).unwrap();
            before = Some(Digest::of(&denied));
        });
        let rows = columns(&printed);
        let may = |way: &str| ["read", "list", "readlink", "look"].iter().any(|end| way.ends_with(end));
        let done: Vec<_> = rows.iter().filter(|row| row[1] == "done" && !may(row[0])).collect();
        assert!(done.is_empty(), "{done:?}");
        Digest::of(&denied).assert_same(&before.unwrap(), Facets::Untouched, "changed where writing is denied");
    }
}
