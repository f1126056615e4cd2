//! The binary under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the `stockade` binary: `STOCKADE_BIN`, or the one of the profile that the suite was built with, which is
/// brought up to date first.
///
/// # Panics
/// When there is none and it can't be built.
pub fn stockade_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("STOCKADE_BIN") {
            return PathBuf::from(given);
        }
        let suite = std::env::current_exe().expect("the suite knows its own path");
        // target/<profile>/deps/suite-<hash>
        let profile = suite.ancestors().nth(2).expect("the suite lies in a target directory");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "stockade-launcher", "--bin", "stockade"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
        // What cargo says about the suite's own package makes some build scripts start anew.
        for (name, _) in std::env::vars_os() {
            if ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|own| name.to_string_lossy().starts_with(own))
            {
                build.env_remove(name);
            }
        }
        let built = build.output().expect("cargo starts");
        assert!(
            built.status.success(),
            "failed to build `stockade`: {}",
            String::from_utf8_lossy(&built.stderr)
        );
        let binary = profile.join("stockade");
        assert!(binary.exists(), "no `stockade` at {}", binary.display());
        binary
    })
}
