//! The seccomp filter of the command (contract L11): what no mount can keep it from.
//!
//! - `ioctl(TIOCSTI)` and `ioctl(TIOCLINUX)`, which push input into the terminal that the launcher shares with its
//!   caller, fail with `EPERM`.
//! - `add_key`, `request_key` and `keyctl` do too: a user's keyrings are the same everywhere.
//! - With [`Sockets::Guarded`], `connect` waits for the helper, which makes the connection itself, so that no Unix socket
//!   of the host's is reached by its path ([`crate::connect`]). Datagram sockets of that family, which need no
//!   `connect`, can't be made (`EACCES`), and `io_uring`, whose operations no filter sees, isn't there (`ENOSYS`).
//!
//! Programs of the machine's 32-bit architecture meet the same rules; those that go through `socketcall`, whose
//! arguments a filter can't see, have no sockets while they are guarded. Other ABIs have no system calls at all.

/// One instruction of a classic BPF program: code, jump if true, jump if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// Whether the helper looks after connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// It doesn't.
    Open,
    /// It does.
    Guarded,
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The low half of an argument: what is tested here is an `int` for the kernel.
const fn argument(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "little") { 0 } else { 4 }
}

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH_32: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH_32: u32 = 0x4000_0028;

/// Numbers of the system calls that are looked at.
struct Numbers {
    ioctl: u32,
    socket: u32,
    socketpair: u32,
    connect: u32,
    keys: [u32; 3],
    socketcall: Option<u32>,
}

#[cfg(target_arch = "x86_64")]
const NATIVE: Numbers = Numbers {
    ioctl: 16,
    socket: 41,
    socketpair: 53,
    connect: 42,
    keys: [248, 249, 250],
    socketcall: None,
};
#[cfg(target_arch = "aarch64")]
const NATIVE: Numbers = Numbers {
    ioctl: 29,
    socket: 198,
    socketpair: 199,
    connect: 203,
    keys: [217, 218, 219],
    socketcall: None,
};
#[cfg(target_arch = "x86_64")]
const COMPATIBLE: Numbers = Numbers {
    ioctl: 54,
    socket: 359,
    socketpair: 360,
    connect: 362,
    keys: [286, 287, 288],
    socketcall: Some(102),
};
#[cfg(target_arch = "aarch64")]
const COMPATIBLE: Numbers = Numbers {
    ioctl: 54,
    socket: 281,
    socketpair: 288,
    connect: 283,
    keys: [309, 310, 311],
    socketcall: Some(102),
};

/// The same number on every architecture.
const IO_URING_SETUP: u32 = 425;

/// x32 calls carry this bit under the architecture of x86-64; arm64 has no such thing, and no number this high.
const X32: u32 = 0x4000_0000;

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const AF_UNIX: u32 = 1;
/// The kernel's `SOCK_TYPE_MASK`; flags lie above it.
const TYPE: u32 = 0xf;
/// The kernel makes a datagram socket of a raw one.
const DATAGRAM: [u32; 2] = [2, 3];

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7FFF_0000;
const ASK: u32 = 0x7FC0_0000;

/// What the kernel returns instead of doing the call.
const fn refuse(errno: u32) -> u32 {
    0x0005_0000 | errno
}
const EPERM: u32 = 1;
const EACCES: u32 = 13;
const ENOSYS: u32 = 38;

/// An argument, a mask on it, and the values that it must have one of.
type Test<'t> = (u32, u32, &'t [u32]);

/// Appends: if the call is `number` and every test holds, return `verdict`.
fn rule(program: &mut Vec<Instruction>, number: u32, tests: &[Test<'_>], verdict: u32) {
    let mut body = Vec::new();
    for (index, mask, values) in tests {
        body.push((LOAD, 0, 0, argument(*index)));
        body.push((AND, 0, 0, *mask));
        let mut left = u8::try_from(values.len()).unwrap_or(u8::MAX);
        for value in *values {
            // Over the rest of the values and the way out.
            body.push((JUMP_EQUAL, left, 0, *value));
            left -= 1;
        }
        body.push((RETURN, 0, 0, ALLOW));
    }
    body.push((RETURN, 0, 0, verdict));
    program.push((JUMP_EQUAL, 0, u8::try_from(body.len()).unwrap_or(u8::MAX), number));
    program.extend(body);
}

fn rules(numbers: &Numbers, sockets: Sockets) -> Vec<Instruction> {
    let mut program = vec![(LOAD, 0, 0, NUMBER)];
    rule(&mut program, numbers.ioctl, &[(1, u32::MAX, &[TIOCSTI, TIOCLINUX])], refuse(EPERM));
    for key in numbers.keys {
        rule(&mut program, key, &[], refuse(EPERM));
    }
    if sockets == Sockets::Guarded {
        let datagram: [Test<'_>; 2] = [(0, u32::MAX, &[AF_UNIX]), (1, TYPE, &DATAGRAM)];
        rule(&mut program, numbers.connect, &[], ASK);
        rule(&mut program, numbers.socket, &datagram, refuse(EACCES));
        rule(&mut program, numbers.socketpair, &datagram, refuse(EACCES));
        rule(&mut program, IO_URING_SETUP, &[], refuse(ENOSYS));
        if let Some(socketcall) = numbers.socketcall {
            rule(&mut program, socketcall, &[], refuse(ENOSYS));
        }
    }
    program
}

/// Returns the filter.
#[must_use]
pub fn program(sockets: Sockets) -> Vec<Instruction> {
    let native = {
        let mut native =
            vec![(LOAD, 0, 0, NUMBER), (JUMP_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, refuse(ENOSYS))];
        native.extend(rules(&NATIVE, sockets));
        native.push((RETURN, 0, 0, ALLOW));
        native
    };
    let mut program = vec![
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 0, u8::try_from(native.len()).unwrap_or(u8::MAX), AUDIT_ARCH),
    ];
    program.extend(native);
    program.extend([(JUMP_EQUAL, 1, 0, AUDIT_ARCH_32), (RETURN, 0, 0, refuse(ENOSYS))]);
    program.extend(rules(&COMPATIBLE, sockets));
    program.push((RETURN, 0, 0, ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn verdict(sockets: Sockets, architecture: u32, number: u32, arguments: [u32; 2]) -> u32 {
        let program = program(sockets);
        let (mut accumulator, mut at) = (0, 0_usize);
        loop {
            let (code, yes, no, operand) = program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { yes } else { no });
            match code {
                LOAD if operand == NUMBER => accumulator = number,
                LOAD if operand == ARCHITECTURE => accumulator = architecture,
                LOAD if operand == argument(0) => accumulator = arguments[0],
                LOAD if operand == argument(1) => accumulator = arguments[1],
                AND => accumulator &= operand,
                JUMP_EQUAL => at += jump(accumulator == operand),
                JUMP_AT_LEAST => at += jump(accumulator >= operand),
                RETURN => return operand,
                other => panic!("instruction {other} {operand}"),
            }
        }
    }

    #[test]
    fn the_filter_says_what_the_table_says() {
        use Sockets::{Guarded, Open};
        const STREAM: u32 = 1 | 0o2_000_000;
        const DGRAM: u32 = 2 | 0o2_004_000;
        let both = [Open, Guarded].as_slice();
        let rows = [
            (both, AUDIT_ARCH, NATIVE.ioctl, [0, TIOCSTI], refuse(EPERM)),
            (both, AUDIT_ARCH, NATIVE.ioctl, [0, TIOCLINUX], refuse(EPERM)),
            (both, AUDIT_ARCH, NATIVE.ioctl, [0, 0x5401], ALLOW),
            (both, AUDIT_ARCH, NATIVE.ioctl | X32, [0, TIOCSTI], refuse(ENOSYS)),
            (both, AUDIT_ARCH, X32 | 1, [0, 0], refuse(ENOSYS)),
            (both, AUDIT_ARCH, NATIVE.keys[0], [0, 0], refuse(EPERM)),
            (both, AUDIT_ARCH, NATIVE.keys[2], [0, 0], refuse(EPERM)),
            (both, AUDIT_ARCH_32, COMPATIBLE.keys[1], [0, 0], refuse(EPERM)),
            (both, AUDIT_ARCH_32, COMPATIBLE.ioctl, [0, TIOCSTI], refuse(EPERM)),
            (both, AUDIT_ARCH_32, COMPATIBLE.ioctl, [0, 0x5413], ALLOW),
            (both, AUDIT_ARCH_32, 1, [0, TIOCSTI], ALLOW),
            (both, AUDIT_ARCH, 0, [0, TIOCSTI], ALLOW),
            (both, 1, NATIVE.ioctl, [0, 0], refuse(ENOSYS)),
            (&[Guarded], AUDIT_ARCH, NATIVE.connect, [0, 0], ASK),
            (&[Open], AUDIT_ARCH, NATIVE.connect, [0, 0], ALLOW),
            (&[Guarded], AUDIT_ARCH_32, COMPATIBLE.connect, [0, 0], ASK),
            (&[Guarded], AUDIT_ARCH, NATIVE.socket, [1, DGRAM], refuse(EACCES)),
            (&[Guarded], AUDIT_ARCH, NATIVE.socket, [1, 3], refuse(EACCES)),
            (&[Guarded], AUDIT_ARCH, NATIVE.socket, [1, STREAM], ALLOW),
            (&[Guarded], AUDIT_ARCH, NATIVE.socket, [1, 5], ALLOW),
            (&[Guarded], AUDIT_ARCH, NATIVE.socket, [2, DGRAM], ALLOW),
            (&[Open], AUDIT_ARCH, NATIVE.socket, [1, DGRAM], ALLOW),
            (&[Guarded], AUDIT_ARCH, NATIVE.socketpair, [1, DGRAM], refuse(EACCES)),
            (&[Guarded], AUDIT_ARCH, NATIVE.socketpair, [1, STREAM], ALLOW),
            (&[Guarded], AUDIT_ARCH_32, COMPATIBLE.socket, [1, DGRAM], refuse(EACCES)),
            (&[Guarded], AUDIT_ARCH_32, COMPATIBLE.socketpair, [1, DGRAM], refuse(EACCES)),
            (&[Guarded], AUDIT_ARCH_32, 102, [3, 0], refuse(ENOSYS)),
            (&[Open], AUDIT_ARCH_32, 102, [3, 0], ALLOW),
            (&[Guarded], AUDIT_ARCH, IO_URING_SETUP, [0, 0], refuse(ENOSYS)),
            (&[Guarded], AUDIT_ARCH_32, IO_URING_SETUP, [0, 0], refuse(ENOSYS)),
            (&[Open], AUDIT_ARCH, IO_URING_SETUP, [0, 0], ALLOW),
        ];
        for (states, architecture, number, arguments, expected) in rows {
            for &sockets in states {
                assert_eq!(
                    verdict(sockets, architecture, number, arguments),
                    expected,
                    "{sockets:?} {architecture:x} {number} {arguments:x?}"
                );
            }
        }
    }
}
