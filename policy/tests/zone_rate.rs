//! How long an answer takes. Run with `cargo test --release -p stockade-policy --test zone_rate -- --ignored --nocapture`.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use stockade_policy::config::{Config, Setting};
use stockade_policy::{Mode, Policy, Rules};

fn names() -> Vec<PathBuf> {
    let root = Path::new("/home/u/project");
    (0..1000)
        .map(|i| root.join(format!("src/module{}/inner/deep{}/file{i}.rs", i % 17, i % 5)))
        .collect()
}

#[test]
#[ignore = "a measurement"]
fn nanoseconds_for_an_answer() {
    let plain = Policy::new(Mode::WorkspaceWrite, "/home/u/project".into());
    let mut profiles = plain.clone();
    let origin = stockade_policy::config::Origin::Default;
    let named = ["caches", "secrets"].map(|name| Setting::new(name.to_owned(), origin.clone()));
    let home = |name: &str| (name == "HOME").then(|| "/home/u".to_owned());
    let settings = Config::default()
        .resolve(Mode::WorkspaceWrite, &named, stockade_policy::config::Settings::default(), &home)
        .unwrap();
    settings.apply(&mut profiles);
    let mut globs = profiles.clone();
    globs.deny_read.extend((0..100).map(|i| format!("**/secret{i}/*.key")));
    globs.deny_write.extend((0..10_000).map(|i| format!("/home/u/project/locked/{i}")));
    let names = names();
    for (what, policy) in
        [("no rules", &plain), ("caches and secrets", &profiles), ("and 10,100 rules", &globs)]
    {
        let start = Instant::now();
        let rules = Rules::compile(policy).unwrap();
        let compiled = start.elapsed();
        let start = Instant::now();
        for _ in 0..20 {
            for name in &names {
                assert!(black_box(rules.zone(black_box(name))).write.is_none());
            }
        }
        let each = start.elapsed().as_nanos() / (20 * names.len() as u128);
        println!("{what}: compiled in {compiled:?}, {each} ns an answer");
    }
}
