//! Random sequences of operations by several processes: the mount and a plain directory give the same answers, errnos
//! included, and look the same after each step (F1, F3, F12).
//!
//! `STOCKADE_MODEL_STEPS` says how many steps are tried, `STOCKADE_MODEL_SEED` which; `scripts/soak` tries a million
//! others.
//! A difference is simplified and printed step by step.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stockade_tests::model::{Case, tree_of};
use stockade_tests::{Digest, Facets, World, as_root_and_user};

/// Steps of one sequence.
const LENGTH: usize = 60;
/// Sequences that one run carries out.
const BATCH: usize = 40;

/// The program that carries sequences out, where every identity can execute it.
fn program(world: &World) -> PathBuf {
    let name = world.directory().join("model");
    if !name.exists() {
        let built = Path::new(env!("CARGO_BIN_EXE_stockade-model"));
        if fs::hard_link(built, &name).is_err() {
            fs::copy(built, &name).unwrap();
        }
    }
    name
}

/// Where the same sequences are carried out inside and on a plain directory.
struct Pair<'w> {
    world: &'w World,
    program: PathBuf,
    batch: usize,
}

impl<'w> Pair<'w> {
    fn new(world: &'w World) -> Self {
        let plain = world.directory().join("plain");
        fs::create_dir(&plain).unwrap();
        world.own(&plain);
        Self { world, program: program(world), batch: 0 }
    }

    /// Carries the sequences out on both sides; returns the accounts, and where the two trees are.
    fn accounts(&mut self, cases: &[Case]) -> ([Vec<Vec<String>>; 2], [PathBuf; 2]) {
        self.batch += 1;
        let places = [self.world.workspace(), self.world.directory().join("plain")]
            .map(|top| top.join(format!("batch-{}", self.batch)));
        let input: String =
            cases.iter().map(|case| serde_json::to_string(case).unwrap() + "\n").collect();
        let accounts = [0, 1].map(|side| {
            fs::create_dir(&places[side]).unwrap();
            self.world.own(&places[side]);
            let invocation = if side == 0 {
                self.world.run(&["-q"]).arg(&self.program)
            } else {
                self.world.native(&self.program)
            };
            let output = invocation
                .directory(&places[side])
                .input(input.as_bytes())
                .deadline(Duration::from_secs(300))
                .run();
            output.assert_success();
            let lines: Vec<Vec<String>> =
                output.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines.len(), cases.len(), "{}", output.stderr());
            lines
        });
        (accounts, places)
    }

    fn differ(&mut self, case: &Case) -> bool {
        let (accounts, places) = self.accounts(std::slice::from_ref(case));
        let differ = accounts[0] != accounts[1];
        self.clear(&places);
        differ
    }

    fn clear(&self, places: &[PathBuf; 2]) {
        for place in places {
            let removed = std::process::Command::new("rm").arg("-rf").arg(place).status().unwrap();
            assert!(removed.success() || !self.world.identity().is_root());
        }
    }

    /// Fails with the step at which the two sides part.
    fn report(&mut self, case: &Case, origin: &str) -> ! {
        let verbose = Case { verbose: true, every: 1, ..case.clone() };
        let (accounts, _) = self.accounts(&[verbose]);
        let [inside, plain] = accounts.map(|mut all| all.remove(0));
        let before: Vec<&String> =
            plain.iter().zip(&inside).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
        let short: Vec<&str> =
            before.iter().map(|line| line.split("\n    ").next().unwrap()).collect();
        let at = before.len();
        let part = |account: &[String]| {
            account.get(at).cloned().unwrap_or_else(|| "the same, this time".into())
        };
        panic!(
            "{origin}\n{}\n--- plain:\n{}\n--- inside:\n{}\n--- as JSON:\n{}",
            short.join("\n"),
            part(&plain),
            part(&inside),
            serde_json::to_string(case).unwrap()
        );
    }

    /// Simplifies a sequence as long as the two sides differ.
    fn simplify(&mut self, tree: &mut dyn proptest::strategy::ValueTree<Value = Case>) -> Case {
        let begun = Instant::now();
        let mut best = tree.current();
        let mut going = tree.simplify();
        while going && begun.elapsed() < Duration::from_secs(60) {
            let case = Case { every: 1, ..tree.current() };
            if self.differ(&case) {
                best = case;
                going = tree.simplify();
            } else {
                going = tree.complicate();
            }
        }
        best
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn seeded(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn same_trees(world: &World, places: &[PathBuf; 2], origin: &str) {
    // What an identity may not read itself, the harness may only as root.
    if rustix::process::geteuid().is_root() {
        let [inside, plain] = places.each_ref().map(|place| Digest::of(place));
        inside.assert_same(&plain, Facets::Content, origin);
    }
    assert!(world.workspace().exists());
}

as_root_and_user! {
    /// F1: both sides agree on every answer and every state.
    fn the_mount_is_like_a_plain_directory(world) {
        let total = usize::try_from(number("STOCKADE_MODEL_STEPS").unwrap_or(4000)).unwrap();
        let every = usize::try_from(number("STOCKADE_MODEL_EVERY").unwrap_or(1)).unwrap();
        let first = number("STOCKADE_MODEL_SEED").unwrap_or(1);
        let mut pair = Pair::new(world);
        let (mut done, mut seed, mut answered) = (0, first, 0);
        while done < total {
            let origin = format!("STOCKADE_MODEL_SEED={seed} STOCKADE_MODEL_STEPS=1");
            crate::attempts::say(&format!("{}: {origin}, {done} steps done", world.name()));
            let mut runner = seeded(seed);
            let mut trees: Vec<_> = (0..BATCH).map(|_| tree_of(&mut runner, LENGTH, every)).collect();
            let cases: Vec<Case> = trees.iter().map(|tree| tree.current()).collect();
            let (accounts, places) = pair.accounts(&cases);
            for (tree, (inside, plain)) in trees.iter_mut().zip(accounts[0].iter().zip(&accounts[1])) {
                if inside != plain {
                    let case = pair.simplify(tree.as_mut());
                    pair.report(&case, &origin);
                }
                answered += plain.iter().filter(|line| !line.starts_with("Os {")).count();
            }
            same_trees(world, &places, &origin);
            pair.clear(&places);
            done += cases.iter().map(|case| case.steps.len()).sum::<usize>();
            seed = seed.wrapping_add(1);
        }
        // Sequences of nothing but errors would prove little.
        assert!(answered * 3 > done, "{answered} of {done} steps did something");
    }
}
