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
