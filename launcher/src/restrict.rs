//! What the command's own process gives up just before it becomes the command.
//!
//! This is depth, and it closes what a mount namespace can't: signals and abstract sockets to outside (contract L11),
//! and input pushed into the terminal that the launcher shares with its caller.

use rustix::io::Errno;

use crate::sys;

/// First Landlock ABI that can keep signals and abstract sockets inside.
pub const SCOPE_ABI: i64 = 6;

/// Tells whether this kernel can keep signals and abstract sockets inside.
#[must_use]
pub fn can_scope() -> bool {
    sys::landlock_abi().is_ok_and(|abi| abi >= SCOPE_ABI)
}

/// Keeps signals and abstract Unix sockets of this process and its descendants inside.
///
/// # Errors
/// The kernel can't, or the process may still gain privileges.
pub fn scope() -> Result<(), Errno> {
    sys::landlock_scope()
}

/// Makes `ioctl(TIOCSTI)` and `ioctl(TIOCLINUX)` fail with `EPERM`, in this process and its descendants.
///
/// # Errors
/// The kernel has no seccomp filters.
pub fn no_terminal_injection() -> Result<(), Errno> {
    sys::install_filter(&terminal_filter())
}

/// One instruction of a classic BPF program: code, jump if true, jump if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// The low half of the second argument; ioctl(2) takes its request as an unsigned int.
const REQUEST: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;
#[cfg(target_arch = "x86_64")]
const IOCTL: u32 = 16;
#[cfg(target_arch = "aarch64")]
const IOCTL: u32 = 29;
/// The same calls as 32-bit programs make them, where the kernel runs such.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH_32: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH_32: u32 = 0x4000_0028;
const IOCTL_32: u32 = 54;
/// x32 calls carry this bit under the architecture of x86-64.
const X32: u32 = 0x4000_0000;
const X32_IOCTL: u32 = X32 | 514;

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7FFF_0000;
const REFUSE: u32 = 0x0005_0001;

/// ```text
///  0 load architecture
///  1 this one? else 5
///  2 load number
///  3 ioctl? then 9
///  4 x32's ioctl? then 9, else 8
///  5 the 32-bit one? else 8
///  6 load number
///  7 ioctl? then 9, else 8
///  8 allow
///  9 load request
/// 10 TIOCSTI? then 12
/// 11 TIOCLINUX? then 12, else 13
/// 12 refuse
/// 13 allow
/// ```
fn terminal_filter() -> [Instruction; 14] {
    [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 0, 3, AUDIT_ARCH),
        (LOAD, 0, 0, NUMBER),
        (JUMP_EQUAL, 5, 0, IOCTL),
        (JUMP_EQUAL, 4, 3, X32_IOCTL),
        (JUMP_EQUAL, 0, 2, AUDIT_ARCH_32),
        (LOAD, 0, 0, NUMBER),
        (JUMP_EQUAL, 1, 0, IOCTL_32),
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, REQUEST),
        (JUMP_EQUAL, 1, 0, TIOCSTI),
        (JUMP_EQUAL, 0, 1, TIOCLINUX),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn verdict(architecture: u32, number: u32, request: u32) -> u32 {
        let program = terminal_filter();
        let (mut accumulator, mut at) = (0, 0_usize);
        loop {
            let (code, yes, no, operand) = program[at];
            at += 1;
            match code {
                LOAD => {
                    accumulator = match operand {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        REQUEST => request,
                        other => panic!("load of {other}"),
                    };
                }
                JUMP_EQUAL => at += usize::from(if accumulator == operand { yes } else { no }),
                RETURN => return operand,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn the_filter_refuses_terminal_injection_and_nothing_else() {
        let rows = [
            (AUDIT_ARCH, IOCTL, TIOCSTI, REFUSE),
            (AUDIT_ARCH, IOCTL, TIOCLINUX, REFUSE),
            (AUDIT_ARCH, X32_IOCTL, TIOCSTI, REFUSE),
            (AUDIT_ARCH_32, IOCTL_32, TIOCSTI, REFUSE),
            (AUDIT_ARCH_32, IOCTL_32, TIOCLINUX, REFUSE),
            (AUDIT_ARCH, IOCTL, 0x5401, ALLOW),
            (AUDIT_ARCH, IOCTL + 1, TIOCSTI, ALLOW),
            (AUDIT_ARCH, IOCTL_32, TIOCSTI, ALLOW),
            (AUDIT_ARCH_32, IOCTL_32, 0x5413, ALLOW),
            (AUDIT_ARCH_32, 1, TIOCSTI, ALLOW),
            (1, IOCTL, TIOCSTI, ALLOW),
        ];
        for (architecture, number, request, expected) in rows {
            assert_eq!(
                verdict(architecture, number, request),
                expected,
                "{architecture:x} {number} {request:x}"
            );
        }
    }
}
