//! The same sequences of system calls, in the mount and in a plain directory: each answer must be the same (F1, F12).

use std::fs;

use stockade_tests::{Digest, Facets, Identity, Output, World, as_root_and_user};

use crate::program::{self, PYTHON};

/// Lines in which the two may differ, with the reason. Nothing else may.
struct Exception {
    section: &'static str,
    line: &'static str,
    who: &'static [Identity],
    #[expect(dead_code, reason = "for the reader")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        section: "permissions",
        line: "chown to another",
        who: &[Identity::User],
        reason: "in a user namespace with one id, other ids don't exist: EINVAL in place of EPERM",
    },
    Exception {
        section: "permissions",
        line: "chgrp to another",
        who: &[Identity::User],
        reason: "as above",
    },
    Exception {
        section: "specials",
        line: "datagrams",
        who: &[Identity::Root, Identity::User],
        reason: "each datagram may name another target, so Unix datagram sockets aren't there (EACCES; L11)",
    },
    Exception {
        section: "limits",
        line: "epoll of a file",
        who: &[Identity::Root, Identity::User],
        reason: "the kernel gives every FUSE file a poll operation, so epoll takes it",
    },
];

/// Returns the lines without those that may differ.
fn comparable(section: &str, identity: Identity, text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| {
            !EXCEPTIONS.iter().any(|exception| {
                exception.section == section
                    && exception.who.contains(&identity)
                    && line.starts_with(exception.line)
            })
        })
        .map(str::to_owned)
        .collect()
}

fn differential(world: &World, section: &str) {
    let program = program::install(world, "posix.py", program::POSIX);
    let workspace = world.workspace();
    let top = workspace.join(section);
    let run = |invocation: stockade_tests::Invocation| {
        let output = invocation.args(&PYTHON[1..]).arg(&program).arg(section).run();
        let tree = Digest::of(&top);
        // What a section takes its rights from must not stop the cleaning up.
        drop(std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(&top).status());
        fs::remove_dir_all(&top).unwrap();
        (output, tree)
    };
    let (native, native_tree) = run(world.native(PYTHON[0]));
    assert_eq!(native.code, 0, "natively: {}", native.stderr());
    for backend in ["auto", "landlock"] {
        let inside = run(world.run(&["--backend", backend]).arg(PYTHON[0]));
        compare(world.identity(), section, backend, (&native, &native_tree), &inside);
    }
}

fn compare(
    identity: Identity,
    section: &str,
    backend: &str,
    (native, native_tree): (&Output, &Digest),
    (inside, inside_tree): &(Output, Digest),
) {
    let wanted = comparable(section, identity, &native.stdout());
    let got = comparable(section, identity, &inside.stdout());
    let differences: Vec<String> = (0..wanted.len().max(got.len()))
        .filter(|&index| wanted.get(index) != got.get(index))
        .map(|index| {
            let (wanted, got) = (wanted.get(index), got.get(index));
            format!(
                "line {index}\n  native {}\n  inside {}",
                wanted.map_or("-", String::as_str),
                got.map_or("-", String::as_str)
            )
        })
        .collect();
    assert!(
        differences.is_empty() && inside.code == 0,
        "{section} ({backend}): {} differences, code {}\n{}\n{}",
        differences.len(),
        inside.code,
        differences.iter().take(15).map(String::as_str).collect::<Vec<_>>().join("\n"),
        inside.stderr(),
    );
    native_tree.assert_same(inside_tree, Facets::Content, "what is there afterwards");
}

macro_rules! sections {
    ($($section:ident)+) => {
        as_root_and_user! {
            $(fn $section(world) {
                if world.has("setfacl") {
                    differential(world, stringify!($section));
                }
            })+
        }

        /// A section that isn't named here would never be run.
        #[test]
        fn every_section_is_run() {
            let named = [$(stringify!($section)),+];
            let there: Vec<&str> = program::POSIX
                .split("@section\ndef ")
                .skip(1)
                .map(|part| part.split('(').next().unwrap())
                .collect();
            assert_eq!(there, named);
        }
    };
}

sections! {
    renames unlinked create_delete_create appends open_flags reads_and_writes early_close direct maps holes allocations copies
    attributes acls locks times names deep links symlinks specials directories permissions limits unnamed many_processes
}
