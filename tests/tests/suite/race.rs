//! Races: between threads inside, and between a run and the host. Both outcomes are counted, since a race that never
//! happened proves nothing (F4, P10, P11).
//!
//! `STOCKADE_RACE_ROUNDS` says how many rounds; `scripts/soak` goes through 100,000.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use stockade_tests::{Digest, Facets, World, as_root_and_user};

/// A program with threads: each scenario is a function of the number of rounds and prints what it counted.
const RACES: &str = include_str!("../../programs/races.py");

fn rounds() -> u64 {
    std::env::var("STOCKADE_RACE_ROUNDS").map_or(400, |text| text.parse().expect("a number"))
}

/// Runs a scenario inside and returns its counts.
fn counts(world: &World, options: &[&str], scenario: &str, outside: &str) -> BTreeMap<String, u64> {
    let program = world.directory().join("races.py");
    fs::write(&program, RACES).unwrap();
    let rounds = rounds();
    let output = world
        .run(&[&["-q"], options].concat())
        .args(["/usr/bin/python3", "-I", "-S", "-B"])
        .arg(&program)
        .args([scenario, &rounds.to_string(), outside])
        .deadline(Duration::from_secs(60 + rounds / 20))
        .run();
    output.assert_success();
    crate::attempts::say(&format!("{} {scenario}: {}", world.name(), output.stdout().trim()));
    output
        .stdout()
        .split_whitespace()
        .map(|pair| {
            let (name, count) = pair.split_once('=').unwrap();
            (name.to_owned(), count.parse().unwrap())
        })
        .collect()
}

fn both_happened(counts: &BTreeMap<String, u64>, names: [&str; 2]) {
    for name in names {
        assert!(counts[name] > 0, "{name} never happened: {counts:?}");
    }
}

as_root_and_user! {
    /// F4: a component that is a directory one moment and a symbolic link out of the workspace the next: a write lands
    /// inside or is refused.
    fn a_swapped_symlink_never_leads_outside(world) {
        let outside = world.outside();
        fs::write(outside.join("target"), "untouched").unwrap();
        world.own(&outside.join("target"));
        let before = Digest::of(&outside);
        let counts = counts(world, &[], "swap", outside.to_str().unwrap());
        Digest::of(&outside).assert_same(&before, Facets::Untouched, "got out");
        both_happened(&counts, ["inside", "refused"]);
    }

    /// F4: the parent of a file is renamed during each write: what was written lies in the file that was opened.
    fn a_renamed_parent_keeps_the_write(world) {
        let counts = counts(world, &[], "parent", "-");
        both_happened(&counts, ["written", "missed"]);
        assert_eq!(counts["lost"], 0);
    }

    /// F5, F10: who opens a name that is being replaced by rename never finds it missing, nor half of it.
    fn an_open_that_races_a_replacement_finds_the_file(world) {
        let counts = counts(world, &[], "replace", "-");
        both_happened(&counts, ["old", "new"]);
        assert_eq!((counts["missing"], counts["torn"]), (0, 0), "{counts:?}");
    }

    /// P11: a file that is rewritten while it is moved to `.git/config` never becomes a configuration that runs code.
    fn a_configuration_is_not_changed_while_it_is_judged(world) {
        world.native("git").args(["init", "-q", "."]).run().assert_success();
        let counts = counts(world, &[], "judge", "-");
        assert_eq!(counts["evil"], 0, "{counts:?}");
        both_happened(&counts, ["kept", "refused"]);
    }

    /// P10: a denied file is not read while it, its directory and its neighbours are renamed and exchanged.
    fn a_denied_file_is_not_read_during_renames(world) {
        for directory in ["one", "two"] {
            world.write(format!("{directory}/x.secret"), "secret");
            world.write(format!("{directory}/plain"), "plain");
        }
        let counts = counts(world, &["--deny-read", "*.secret"], "deny", "-");
        assert_eq!(counts["secret"], 0, "{counts:?}");
        both_happened(&counts, ["plain", "refused"]);
    }

    /// F1: two appenders lose nothing, and create, delete and create again always works (`git init` does that).
    fn appends_and_creations_are_not_lost(world) {
        let counts = counts(world, &[], "append", "-");
        assert_eq!(counts["appended"], counts["wanted"], "{counts:?}");
        assert_eq!(counts["failed"], 0, "{counts:?}");
    }

    /// F4: the host swaps a directory for a link out while the run writes below it.
    fn a_host_that_swaps_never_leads_outside(world) {
        let (outside, workspace) = (world.outside(), world.workspace());
        fs::write(outside.join("target"), "untouched").unwrap();
        fs::create_dir(workspace.join("real")).unwrap();
        fs::create_dir(workspace.join("d")).unwrap();
        world.own_tree(&workspace);
        let before = Digest::of(&outside);
        let mut running = world
            .run(&["-q"])
            .args(["sh", "-c", "i=0; while ! test -e stop; do i=$((i+1)); echo $i 2>/dev/null > d/target && ok=$((ok+1)) || no=$((no+1)); echo > started; done; echo $((ok+0)) $((no+0))"])
            .spawn();
        running.wait_until("the first write", || workspace.join("started").exists());
        for _ in 0..rounds().min(5000) {
            fs::rename(workspace.join("d"), workspace.join("away")).unwrap();
            std::os::unix::fs::symlink(&outside, workspace.join("d")).unwrap();
            std::thread::sleep(Duration::from_micros(300));
            fs::remove_file(workspace.join("d")).unwrap();
            fs::rename(workspace.join("away"), workspace.join("d")).unwrap();
            std::thread::sleep(Duration::from_micros(300));
        }
        fs::write(workspace.join("stop"), "").unwrap();
        let output = running.wait();
        Digest::of(&outside).assert_same(&before, Facets::Untouched, "got out");
        let said = output.stdout();
        crate::attempts::say(&format!("{}: written, refused: {}", world.name(), said.trim()));
        assert!(said.split_whitespace().all(|count| count != "0"), "one outcome never happened: {said}");
    }
}
