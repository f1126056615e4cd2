//! Sources on file systems of several kinds, with other file systems and bound directories below them: everything keeps its
//! identity and the host's attributes, in a second run too (F3, F12). Root alone may mount.

use stockade_tests::{Identity, World, check, skip};

use crate::program;

fn on(world: &World, kind: &str, maker: Option<&str>) {
    if maker.is_some_and(|maker| !world.has(maker)) || !world.has("unshare") {
        return;
    }
    let script = program::install(world, "sources.sh", program::SOURCES);
    // A namespace of its own: whatever is mounted is gone with the script.
    let output = world
        .native("unshare")
        .args(["--mount", "--propagation", "private", "sh"])
        .arg(script)
        .arg(kind)
        .arg(world.binary())
        .run();
    if output.code == 77 {
        return skip(world.name(), &format!("{kind} can't be mounted: {}", output.stderr()));
    }
    output.assert_success();
    assert_eq!(output.stdout(), "passed\n", "{}", output.stderr());
}

/// F1, F10: what is moved away, whiteouts and all, is no host change: a file system above the mount keeps what it made.
#[test]
fn an_overlay_above_keeps_its_files() {
    check("sources::an_overlay_above_keeps_its_files::root", Identity::Root, |world| {
        if !world.has("unshare") {
            return;
        }
        let script = program::install(world, "above.sh", program::ABOVE);
        let output = world
            .native("unshare")
            .args(["--mount", "--propagation", "private", "bash"])
            .arg(script)
            .arg(world.binary())
            .arg("25")
            .run();
        if output.code == 77 {
            return skip(world.name(), &format!("no overlay here: {}", output.stderr()));
        }
        assert_eq!(output.stdout(), "passed\n", "{}", output.stderr());
    });
}

/// F3, F4: a file handle outlives the mount that gave it, and leads to nothing that doesn't lie below the source.
#[test]
fn a_file_handle_outlives_its_mount() {
    check("sources::a_file_handle_outlives_its_mount::root", Identity::Root, |world| {
        if !world.has("unshare") || !world.has("mkfs.ext4") {
            return;
        }
        let script = program::install(world, "handles.py", program::HANDLES);
        let output = world
            .native("unshare")
            .args(["--mount", "--propagation", "private"])
            .args(program::PYTHON)
            .arg(script)
            .arg(world.binary())
            .run();
        if output.code == 77 {
            return skip(world.name(), &format!("ext4 can't be mounted: {}", output.stderr()));
        }
        assert_eq!(
            output.stdout(),
            "kept: src/kept\nd/e/moved: src/d/e/moved\ngone: ESTALE\nled out: ESTALE\n",
            "{}",
            output.stderr()
        );
    });
}

macro_rules! sources {
    ($($name:ident $maker:expr;)+) => { $(
        #[test]
        fn $name() {
            check(concat!(module_path!(), "::", stringify!($name)), Identity::Root, |world| {
                on(world, stringify!($name), $maker);
            });
        }
    )+ };
}

sources! {
    ext4 Some("mkfs.ext4");
    xfs Some("mkfs.xfs");
    btrfs Some("mkfs.btrfs");
    tmpfs None;
    overlay None;
}
