//! Runs are ended at random moments, from the very start on, by SIGINT, SIGTERM and SIGKILL: no process, mount, control group or
//! file is left, after SIGKILL once the next start is over (L6, L10, F7). `scripts/soak killed` does it a thousand times.

use std::time::Duration;

use stockade_tests::as_root_and_user;

use crate::program;

const SCRIPT: &str = include_str!("../../../scripts/killed");

/// `STOCKADE_KILLS` asks for another number.
fn kills() -> String {
    std::env::var("STOCKADE_KILLS").unwrap_or_else(|_| "20".to_owned())
}

as_root_and_user! {
    fn nothing_is_left_whenever_a_run_is_ended(world) {
        let script = world.write("../killed", SCRIPT);
        let kills = kills();
        let count: u32 = kills.parse().unwrap();
        let output = world
            .native(program::PYTHON[0])
            .args(&program::PYTHON[1..])
            .arg(&script)
            .args(["--binary", world.binary().to_str().unwrap(), "--work", world.workspace().to_str().unwrap()])
            .args(["--kills", &kills, "--host-changes"])
            .deadline(Duration::from_secs(120) + Duration::from_secs(10) * count)
            .run();
        assert_eq!(output.code, 0, "{}{}", output.stdout(), output.stderr());
        assert!(output.stdout().contains(&format!("kills: {kills} ")) && output.stdout().contains("left: 0"), "{}", output.stdout());
        crate::attempts::say(&format!("{}: {}", world.name(), output.stdout().trim()));
    }
}
