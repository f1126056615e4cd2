//! How sequences are chosen: few names and small files, so that steps meet each other.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::operation::{Case, Name, Operation, PROCESSES, SLOTS, Set, Step};

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        6 => prop::collection::vec(0_u8..5, 1),
        4 => prop::collection::vec(0_u8..3, 2),
        1 => prop::collection::vec(0_u8..3, 3),
    ]
    .prop_map(Name)
}

fn mode() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![
        0o644_u32, 0o644, 0o755, 0o755, 0o777, 0o600, 0o444, 0o400, 0o200, 0, 0o1777, 0o2755,
        0o4755, 0o6711, 0o2644,
    ])
}

/// Modes of directories, most of which let one in.
fn directory_mode() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0o755_u32, 0o755, 0o755, 0o777, 0o700, 0o1777, 0o2775, 0o500, 0o300])
}

fn flags() -> impl Strategy<Value = u32> {
    let access =
        prop::sample::select(vec![libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
    let more = (
        prop::bool::weighted(0.6),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.25),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.08),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.03),
    );
    (access, more).prop_map(
        |(access, (create, exclusive, truncate, append, directory, no_follow, path))| {
            let one = |on: bool, flag: i32| if on { flag } else { 0 };
            let all = access
            | one(create, libc::O_CREAT)
            | one(exclusive, libc::O_EXCL)
            | one(truncate, libc::O_TRUNC)
            | one(append, libc::O_APPEND)
            | one(directory, libc::O_DIRECTORY)
            | one(no_follow, libc::O_NOFOLLOW)
            | one(path, libc::O_PATH)
            // A FIFO would keep the opener waiting.
            | libc::O_NONBLOCK;
            all.cast_unsigned()
        },
    )
}

fn set() -> impl Strategy<Value = Set> {
    prop_oneof![
        4 => prop::sample::select(vec![
            Set::At(0, 0),
            Set::At(-1, 500_000_000),
            Set::At(1_000_000_000, 123_456_789),
            Set::At(981_173_106, 7),
            Set::At(-1_000_000_000, 999_999_999),
        ]),
        1 => Just(Set::Now),
        1 => Just(Set::Keep),
    ]
}

/// Places in a file: around the edges of pages, and anywhere.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..32, 4090_u64..4102, 0_u64..20_000, Just(65_536), Just(1 << 20)]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0_usize..64, 2 => 4000_usize..9000, 1 => Just(140_000)]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as Op;
    // Most processes hold few files open.
    let slot = || prop_oneof![3 => Just(0), 1 => 0..SLOTS];
    let seek = prop::sample::select(vec![
        libc::SEEK_SET,
        libc::SEEK_CUR,
        libc::SEEK_END,
        libc::SEEK_DATA,
        libc::SEEK_HOLE,
    ]);
    // Those that FUSE carries.
    let allocate = prop::sample::select(vec![
        0,
        libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_ZERO_RANGE,
        libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
    ])
    .prop_map(i32::cast_unsigned);
    let rename = prop_oneof![
        5 => Just(0),
        1 => Just(libc::RENAME_NOREPLACE),
        2 => Just(libc::RENAME_EXCHANGE),
        1 => Just(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE),
    ];
    let files = prop_oneof![
        12 => (slot(), name(), flags(), mode()).prop_map(|(slot, at, flags, mode)| Op::Open { slot, at, flags, mode }),
        4 => slot().prop_map(|slot| Op::Close { slot }),
        1 => (slot(), slot()).prop_map(|(from, to)| Op::Dup { from, to }),
        4 => (slot(), length()).prop_map(|(slot, length)| Op::Read { slot, length }),
        4 => (slot(), offset(), length()).prop_map(|(slot, offset, length)| Op::PRead { slot, offset, length }),
        8 => (slot(), length(), 1_u8..).prop_map(|(slot, length, byte)| Op::Write { slot, length, byte }),
        6 => (slot(), offset(), length(), 1_u8..)
            .prop_map(|(slot, offset, length, byte)| Op::PWrite { slot, offset, length, byte }),
        3 => (slot(), -100_i64..20_000, seek)
            .prop_map(|(slot, offset, whence)| Op::Seek { slot, offset, whence }),
        3 => (slot(), offset()).prop_map(|(slot, length)| Op::FTruncate { slot, length }),
        3 => (name(), offset()).prop_map(|(at, length)| Op::Truncate { at, length }),
        3 => (slot(), allocate, offset(), 0_u64..20_000)
            .prop_map(|(slot, mode, offset, length)| Op::Allocate { slot, mode, offset, length }),
        3 => (slot(), offset(), slot(), offset(), length()).prop_map(
            |(from, from_at, to, to_at, length)| Op::CopyRange { from, from_at, to, to_at, length }
        ),
        1 => slot().prop_map(|slot| Op::Sync { slot }),
        3 => slot().prop_map(|slot| Op::FStat { slot }),
        1 => (slot(), mode()).prop_map(|(slot, mode)| Op::FChmod { slot, mode }),
        2 => (slot(), set(), set())
            .prop_map(|(slot, access, modification)| Op::FUtimes { slot, access, modification }),
        2 => slot().prop_map(|slot| Op::Map { slot }),
        3 => (0_usize..16_000, 1_usize..5000, 1_u8..)
            .prop_map(|(offset, length, byte)| Op::MapWrite { offset, length, byte }),
        3 => (0_usize..16_000, 1_usize..5000).prop_map(|(offset, length)| Op::MapRead { offset, length }),
        1 => Just(Op::Unmap),
    ];
    let names = prop_oneof![
        8 => (name(), name(), rename).prop_map(|(from, to, flags)| Op::Rename { from, to, flags }),
        5 => (name(), name(), any::<bool>()).prop_map(|(from, to, follow)| Op::Link { from, to, follow }),
        3 => (name(), name()).prop_map(|(target, at)| Op::Symlink { target, at }),
        6 => name().prop_map(|at| Op::Unlink { at }),
        3 => name().prop_map(|at| Op::RmDir { at }),
        6 => (name(), directory_mode()).prop_map(|(at, mode)| Op::MkDir { at, mode }),
        1 => (name(), any::<bool>(), mode()).prop_map(|(at, fifo, mode)| Op::MkNod { at, fifo, mode }),
        3 => (name(), prop_oneof![mode(), directory_mode()]).prop_map(|(at, mode)| Op::Chmod { at, mode }),
        1 => (name(), any::<bool>()).prop_map(|(at, follow)| Op::Chown { at, follow }),
        3 => (name(), set(), set(), any::<bool>()).prop_map(
            |(at, access, modification, follow)| Op::Utimes { at, access, modification, follow }
        ),
        3 => (name(), 0_u8..2, any::<u8>(), 0_usize..300, 0_u32..3)
            .prop_map(|(at, name, value, length, flags)| Op::SetXattr { at, name, value, length, flags }),
        2 => (name(), 0_u8..2).prop_map(|(at, name)| Op::GetXattr { at, name }),
        2 => (name(), 0_u8..2).prop_map(|(at, name)| Op::RemoveXattr { at, name }),
        2 => name().prop_map(|at| Op::List { at }),
        3 => (name(), any::<bool>()).prop_map(|(at, follow)| Op::Stat { at, follow }),
        1 => name().prop_map(|at| Op::ReadLink { at }),
        1 => (name(), 0_u32..8).prop_map(|(at, mode)| Op::Access { at, mode }),
        1 => name().prop_map(|at| Op::ChDir { at }),
    ];
    prop_oneof![3 => files, 2 => names]
}

/// What each sequence begins with: two directories, and a file that each process holds open.
fn beginning() -> Vec<Step> {
    let name = |indices: &[u8]| Name(indices.to_vec());
    let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK).cast_unsigned();
    let open = |who, at| Step { who, what: Operation::Open { slot: 0, at, flags, mode: 0o644 } };
    let write = |who, length, byte| Step { who, what: Operation::Write { slot: 0, length, byte } };
    vec![
        Step { who: 0, what: Operation::MkDir { at: name(&[0]), mode: 0o755 } },
        Step { who: 1, what: Operation::MkDir { at: name(&[1]), mode: 0o755 } },
        open(0, name(&[0, 2])),
        write(0, 5000, b'x'),
        open(1, name(&[2])),
        write(1, 100, b'y'),
        open(2, name(&[0, 2])),
    ]
}

/// Sequences of up to `steps` steps after a common beginning.
pub fn cases(steps: usize, every: usize) -> impl Strategy<Value = Case> {
    let step = (0..PROCESSES, operation()).prop_map(|(who, what)| Step { who, what });
    prop::collection::vec(step, steps.div_ceil(2)..=steps).prop_map(move |steps| Case {
        steps: beginning().into_iter().chain(steps).collect(),
        verbose: false,
        every,
    })
}

/// Chooses one sequence, which can be simplified.
///
/// # Panics
/// Never: nothing is filtered.
pub fn tree_of(
    runner: &mut TestRunner,
    steps: usize,
    every: usize,
) -> Box<dyn ValueTree<Value = Case>> {
    Box::new(cases(steps, every).new_tree(runner).expect("nothing is filtered"))
}
