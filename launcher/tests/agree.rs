//! One table of rules, three consumers (contract P6): what the file system would decide, what bubblewrap is told and what
//! Landlock is told agree on every path, or the difference is a gap that the result names.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stockade_launcher::backend::{bwrap, landlock};
use stockade_launcher::enforcement::Gap;
use stockade_launcher::resolve::{self, Places, Request};
use stockade_policy::{EntryKind, Mode, ModeSource, Policy, Rule, Rules};

const POLICIES: usize = 200;
const PATHS: usize = 10_000;

/// Directories that exist below the base.
const DIRECTORIES: [&str; 8] =
    ["w", "w/sub/.git/hooks", "x/y", "x/z", "home/.ssh", "home/.cache", "tmp/in", "own"];

/// Names of which random paths are made.
const NAMES: [&str; 12] =
    ["w", "x", "y", "sub", "home", "tmp", "own", ".git", "hooks", ".env", ".ssh", "new"];

fn policy(base: &Path) -> impl Strategy<Value = Request> + use<> {
    let base = base.to_owned();
    let some = |words: &'static [&'static str], most| {
        prop::collection::vec(prop::sample::select(words.to_vec()), 0..most)
    };
    let mode = prop::sample::select(Mode::ALL.to_vec());
    let roots = some(&["x", "x/y", "home", "home/.cache", "tmp", "w/sub", "w/file"], 3);
    let denied = || {
        some(
            &[".env", "BASE/home/.ssh", "BASE/x/new/deep", "BASE/x/**/k", "sub", "BASE/home/later"],
            3,
        )
    };
    let lifted = some(&[".git", "sub/.git/hooks"], 2);
    (mode, roots, denied(), denied(), lifted).prop_map(move |(mode, roots, read, write, lifted)| {
        let full = |list: Vec<&str>| -> Vec<String> {
            list.iter().map(|pattern| pattern.replace("BASE", base.to_str().unwrap())).collect()
        };
        let mut request = Request::new(mode, base.join("w"));
        request.mode.1 = ModeSource::Default;
        request.writable = roots.iter().map(|root| base.join(root)).collect();
        request.deny_read = full(read);
        request.deny_write = full(write);
        request.allow_write = full(lifted);
        request
    })
}

/// What the kernel's mounts inside allow at a path: the last option about a directory above it decides.
fn kernel_writable(options: &[OsString], path: &Path) -> bool {
    let mut writable = true;
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let mut next = || Path::new(rest.next().map_or(OsStr::new(""), OsString::as_os_str));
        let (place, writes) = match option.to_str().unwrap() {
            "--ro-bind" | "--ro-bind-try" => (next(), next()).into_pair(false),
            "--bind" | "--dev-bind" => (next(), next()).into_pair(true),
            "--tmpfs" | "--dev" | "--proc" => (next(), true),
            "--remount-ro" => (next(), false),
            "--perms" | "--cap-drop" | "--cap-add" => {
                next();
                continue;
            }
            _ => continue,
        };
        if path.starts_with(place) {
            writable = writes;
        }
    }
    writable
}

/// What the Landlock runner's options allow at a path.
fn landlock_writable(options: &[OsString], path: &Path) -> bool {
    options.chunks(2).any(|pair| pair[0] == "--writable" && path.starts_with(&pair[1]))
}

/// The gap that says that a rule isn't kept by Landlock alone.
fn gap_of(rule: Rule) -> Gap {
    if rule == Rule::ProtectedPath {
        return Gap::ProtectedPaths;
    }
    assert!([Rule::WriteDenied, Rule::ReadDenied].contains(&rule), "{rule} has no gap");
    Gap::DenyRules
}

trait IntoPair<'a> {
    fn into_pair(self, writes: bool) -> (&'a Path, bool);
}

impl<'a> IntoPair<'a> for (&'a Path, &'a Path) {
    fn into_pair(self, writes: bool) -> (&'a Path, bool) {
        assert_eq!(self.0, self.1, "what is bound stands at its own path");
        (self.1, writes)
    }
}

#[test]
fn the_rules_and_both_back_ends_agree() {
    // Outside of /tmp, which bubblewrap's own options speak of.
    let base = tempfile::Builder::new().prefix("stk-agree").tempdir_in("/var/tmp").unwrap();
    let base = fs::canonicalize(base.path()).unwrap();
    for directory in DIRECTORIES {
        fs::create_dir_all(base.join(directory)).unwrap();
    }
    fs::write(base.join("w/file"), "").unwrap();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[11; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let requests = policy(&base);
    let paths = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..5)
        .prop_map(|names| names.iter().collect::<PathBuf>());
    let mut sample: Vec<PathBuf> =
        (0..PATHS - 3).map(|_| base.join(paths.new_tree(&mut runner).unwrap().current())).collect();
    sample.extend(["/etc/passwd", "/usr", "/home/nobody/x"].map(PathBuf::from));
    let mut seen = [0_usize; 2];
    let mut gap_paths = 0_usize;
    for _ in 0..POLICIES {
        let request = requests.new_tree(&mut runner).unwrap().current();
        let places = Places { temporary: vec![base.join("tmp/in")], own: vec![base.join("own")] };
        let policy: Policy = resolve::resolve(&request, &places).unwrap();
        let rules = Rules::compile(&policy).unwrap();
        let regions = resolve::regions(&policy);
        let machine = bwrap::Machine { own: places.own.clone(), ..bwrap::Machine::default() };
        let options = bwrap::options(&policy, &regions, &machine);
        let inside = landlock::options(&policy, &regions, true);
        let alone = landlock::options(&policy, &regions, false);
        let gaps = landlock::gaps_alone(&policy, 7);
        assert_eq!(rules.roots(), policy.writable_roots());
        for path in &sample {
            let served = regions.iter().any(|region| path.starts_with(region));
            let allowed = rules.create_refused(path, EntryKind::File).is_none()
                || rules.zone(path).write.is_none();
            let own = path.starts_with(base.join("own"));
            let kernel = kernel_writable(&options, path);
            let what = || format!("{} under {request:?}: {options:?}", path.display());
            seen[usize::from(allowed)] += 1;
            if policy.mode == Mode::DangerFullAccess {
                assert!(kernel, "{}", what());
                continue;
            }
            // Landlock within namespaces lets through what is served, and nothing else.
            assert_eq!(landlock_writable(&inside, path), served, "{}: {inside:?}", what());
            // Alone it can't take away below what it gives: each such path is a gap that is named.
            let gives = landlock_writable(&alone, path);
            assert!(gives || !allowed, "{}: {alone:?}", what());
            if gives && let Some(denial) = &rules.zone(path).write {
                gap_paths += 1;
                assert!(own || gaps.contains(&gap_of(denial.rule())), "{}: {gaps:?}", what());
                assert!(!own || gaps.contains(&Gap::OwnState), "{}: {gaps:?}", what());
            }
            // What the rules allow, the mounts let through to the file system, which decides by these rules.
            assert!(!allowed || (kernel && served), "{}", what());
            // What the file system doesn't serve, the rules refuse and the kernel too.
            assert!(served || (!allowed && !kernel), "{}", what());
            // And nothing that is served is decided by the kernel, but for our own directories.
            assert!(!served || kernel || own, "{}", what());
        }
    }
    assert!(seen.iter().all(|count| *count > POLICIES * PATHS / 20), "{seen:?}");
    assert!(gap_paths > 0);
}
