//! What takes part in a rewrite is killed at random moments and at every named point: nothing published is torn or lost,
//! and nothing is left after the next start (F7). `scripts/crash` does the same for as long as one likes.

use std::time::Duration;

use stockade_tests::{Output, World, as_root_and_user};

const SCRIPT: &str = include_str!("../../../scripts/crash");

fn crash(world: &World, options: &[&str]) -> Output {
    let script = world.write("../crash", SCRIPT);
    let work = world.workspace();
    world
        .native("python3")
        .arg(&script)
        .args(["--binary", world.binary().to_str().unwrap(), "--work", work.to_str().unwrap()])
        .args(options)
        .deadline(Duration::from_secs(240))
        .run()
}

as_root_and_user! {
    fn nothing_is_torn_or_left_whoever_is_killed(world) {
        let output = crash(world, &["--kills", "27", "--failpoints", "1"]);
        output.assert_success();
        assert!(output.stdout().contains("torn: 0; left: 0"), "{}", output.stdout());
        for point in ["linked 1", "exchanged 1", "moved 1"] {
            assert!(output.stdout().contains(point), "{}", output.stdout());
        }
    }

    /// What the test above would show if content were written directly.
    fn direct_writes_are_torn(world) {
        let output = crash(world, &["--kills", "100", "--publish", "direct"]);
        assert_eq!(output.code, 1, "{}", output.stdout());
        assert!(output.stdout().contains("torn: 1"), "{}", output.stdout());
    }
}
