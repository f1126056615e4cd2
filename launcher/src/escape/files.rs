//! Attempts on files by their names, links and descriptors.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, IFlags, Mode, OFlags, RenameFlags, XattrFlags};

use super::Act::{Read, Try};
use super::{Attempt, MARK, Scene, attempt, below, create, on_suspects, with_gap, write_to};
use crate::enforcement::Gap;
use crate::sys;
use crate::sys::attempt as raw;

const METADATA: &[Gap] = &[Gap::Metadata];
const LINKS: &[Gap] = &[Gap::HardLinks];
const PROTECTED: &[Gap] = &[Gap::ProtectedPaths];
const RULES: &[Gap] = &[Gap::DenyRules];

pub(super) const ALL: &[Attempt] = &[
    attempt("path-write", Try(|s| write_to(s.file()))),
    attempt("path-create", Try(|s| create(s.outside().join("new")))),
    attempt(
        "path-append",
        Try(|s| fs::OpenOptions::new().append(true).open(s.file())?.write_all(MARK)),
    ),
    attempt("path-unlink", Try(|s| fs::remove_file(s.file()))),
    attempt("path-rename", Try(|s| fs::rename(s.file(), s.outside().join("renamed")))),
    attempt(
        "path-rename-in",
        Try(|s| {
            create(s.own().join("mine"))?;
            fs::rename(s.own().join("mine"), s.outside().join("file"))
        }),
    ),
    attempt("path-rename-out", Try(|s| fs::rename(s.file(), s.own().join("theirs")))),
    attempt(
        "path-exchange",
        Try(|s| {
            create(s.own().join("mine"))?;
            Ok(rustix::fs::renameat_with(
                CWD,
                s.own().join("mine"),
                CWD,
                s.file(),
                RenameFlags::EXCHANGE,
            )?)
        }),
    ),
    attempt("path-mkdir", Try(|s| fs::create_dir(s.outside().join("new")))),
    attempt("path-rmdir", Try(|s| fs::remove_dir(s.outside().join("empty")))),
    attempt("path-symlink", Try(|s| symlink("x", s.outside().join("new")))),
    attempt(
        "path-mkfifo",
        Try(|s| {
            Ok(rustix::fs::mknodat(CWD, s.outside().join("new"), FileType::Fifo, Mode::RUSR, 0)?)
        }),
    ),
    attempt(
        "path-unnamed",
        Try(|s| {
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            let fd = rustix::fs::open(s.outside(), flags, Mode::RUSR | Mode::WUSR)?;
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            Ok(rustix::fs::linkat(
                CWD,
                path,
                CWD,
                s.outside().join("new"),
                AtFlags::SYMLINK_FOLLOW,
            )?)
        }),
    ),
    with_gap(
        "path-truncate",
        &[Gap::Truncate],
        Try(|s| {
            let path = c_string(&s.file())?;
            raw::truncate(&path)
        }),
    ),
    attempt(
        "path-mapped",
        Try(|s| {
            let file = fs::OpenOptions::new().read(true).write(true).open(s.file())?;
            let mapped = raw::map_for_good(file.as_fd(), true)?;
            mapped.iter().for_each(|byte| byte.store(b'X', Ordering::SeqCst));
            Ok(())
        }),
    ),
    attempt("path-dotdot", Try(|s| write_to(s.own().join("../../out").join(s.id).join("file")))),
    attempt(
        "path-cwd-dotdot",
        Try(|s| {
            std::env::set_current_dir(s.own())?;
            write_to(Path::new("../../out").join(s.id).join("file"))
        }),
    ),
    with_gap(
        "metadata-mode",
        METADATA,
        Try(|s| fs::set_permissions(s.file(), fs::Permissions::from_mode(0o777))),
    ),
    with_gap(
        "metadata-owner",
        METADATA,
        Try(|s| std::os::unix::fs::chown(s.file(), Some(1), Some(1))),
    ),
    with_gap(
        "metadata-times",
        METADATA,
        Try(|s| Ok(rustix::fs::utimensat(CWD, s.file(), &EPOCH, AtFlags::empty())?)),
    ),
    with_gap(
        "metadata-xattr",
        METADATA,
        Try(|s| Ok(rustix::fs::setxattr(s.file(), "user.stockade", MARK, XattrFlags::empty())?)),
    ),
    with_gap(
        "metadata-descriptor",
        METADATA,
        Try(|s| fs::File::open(s.file())?.set_permissions(fs::Permissions::from_mode(0o777))),
    ),
    with_gap(
        "metadata-flags",
        METADATA,
        Try(|s| {
            let file = fs::File::open(s.file())?;
            Ok(rustix::fs::ioctl_setflags(
                &file,
                rustix::fs::ioctl_getflags(&file)? | IFlags::NODUMP,
            )?)
        }),
    ),
    attempt(
        "symlink-write",
        Try(|s| {
            symlink(s.file(), s.own().join("link"))?;
            write_to(s.own().join("link"))
        }),
    ),
    attempt(
        "symlink-dangling",
        Try(|s| {
            symlink(s.outside().join("new"), s.own().join("link"))?;
            fs::File::create(s.own().join("link"))?.write_all(MARK)
        }),
    ),
    attempt(
        "symlink-directory",
        Try(|s| {
            symlink(s.outside(), s.own().join("link"))?;
            create(s.own().join("link/new"))
        }),
    ),
    attempt(
        "symlink-relative",
        Try(|s| {
            symlink(Path::new("../../out").join(s.id), s.own().join("link"))?;
            fs::rename(s.own().join("link"), s.own().join("moved"))?;
            create(s.own().join("moved/new"))
        }),
    ),
    attempt("symlink-swapped", Try(swapped_directory)),
    with_gap("hardlink-write", LINKS, Try(|s| write_to(linked(s)))),
    with_gap("hardlink-truncate", LINKS, Try(|s| fs::File::create(linked(s)).map(drop))),
    with_gap(
        "hardlink-mode",
        &[Gap::HardLinks, Gap::Metadata],
        Try(|s| fs::set_permissions(linked(s), fs::Permissions::from_mode(0o777))),
    ),
    with_gap(
        "hardlink-xattr",
        &[Gap::HardLinks, Gap::Metadata],
        Try(|s| Ok(rustix::fs::setxattr(linked(s), "user.stockade", MARK, XattrFlags::empty())?)),
    ),
    with_gap(
        "hardlink-mapped",
        LINKS,
        Try(|s| {
            let file = fs::OpenOptions::new().read(true).write(true).open(linked(s))?;
            let mapped = raw::map_for_good(file.as_fd(), true)?;
            mapped.iter().for_each(|byte| byte.store(b'X', Ordering::SeqCst));
            Ok(())
        }),
    ),
    attempt(
        "hardlink-made",
        Try(|s| {
            fs::hard_link(s.file(), s.own().join("link"))?;
            write_to(s.own().join("link"))
        }),
    ),
    attempt("proc-self-root", Try(|s| write_to(below("/proc/self/root", &s.file())))),
    attempt("proc-thread-root", Try(|s| write_to(below("/proc/thread-self/root", &s.file())))),
    attempt("proc-one-root", Try(|s| write_to(below("/proc/1/root", &s.file())))),
    attempt(
        "proc-parent-root",
        Try(|s| {
            let parent = rustix::process::getppid().map_or(1, rustix::process::Pid::as_raw_pid);
            write_to(below(format!("/proc/{parent}/root"), &s.file()))
        }),
    ),
    attempt(
        "proc-self-cwd",
        Try(|s| {
            std::env::set_current_dir(s.outside())?;
            write_to("/proc/self/cwd/file")
        }),
    ),
    attempt(
        "proc-fd-reopened",
        Try(|s| {
            let file = fs::File::open(s.file())?;
            write_to(format!("/proc/self/fd/{}", file.as_raw_fd()))
        }),
    ),
    attempt(
        "proc-fd-of-path",
        Try(|s| {
            let fd = rustix::fs::open(s.file(), OFlags::PATH, Mode::empty())?;
            write_to(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        }),
    ),
    attempt(
        "proc-fd-directory",
        Try(|s| {
            let fd = rustix::fs::open(s.outside(), OFlags::PATH, Mode::empty())?;
            create(format!("/proc/self/fd/{}/new", fd.as_raw_fd()))
        }),
    ),
    attempt(
        "proc-other-cwd",
        Try(|s| on_suspects(s, |pid| write_to(format!("/proc/{}/cwd/file", pid.as_raw_pid())))),
    ),
    attempt(
        "proc-other-root",
        Try(|s| {
            on_suspects(s, |pid| {
                write_to(below(format!("/proc/{}/root", pid.as_raw_pid()), &s.file()))
            })
        }),
    ),
    attempt(
        "proc-other-fd",
        Try(|s| {
            on_suspects(s, |pid| write_to(format!("/proc/{}/fd/{}", pid.as_raw_pid(), s.held)))
        }),
    ),
    attempt(
        "proc-map-files",
        Try(|s| {
            on_suspects(s, |pid| {
                let maps = fs::read_dir(format!("/proc/{}/map_files", pid.as_raw_pid()))?;
                let mut mapped = maps.flatten().filter(|entry| {
                    fs::read_link(entry.path()).is_ok_and(|target| target == s.file())
                });
                write_to(mapped.next().ok_or(io::ErrorKind::NotFound)?.path())
            })
        }),
    ),
    attempt(
        "descriptor-inherited",
        Try(|s| {
            let fd = sys::inherited(s.descriptor)?;
            fs::File::from(fd).write_all(MARK)
        }),
    ),
    attempt(
        "descriptor-by-handle",
        Try(|s| {
            let mount = fs::File::open("/")?;
            let file = raw::open_by_handle(&c_string(&s.file())?, mount.as_fd(), libc::O_WRONLY)?;
            fs::File::from(file).write_all(MARK)
        }),
    ),
    attempt(
        "descriptor-handle-inside",
        Try(|s| {
            let mount = fs::File::open(s.own())?;
            let file = raw::open_by_handle(&c_string(&s.file())?, mount.as_fd(), libc::O_WRONLY)?;
            fs::File::from(file).write_all(MARK)
        }),
    ),
    attempt(
        "exec-memory",
        Try(|s| {
            let fd = rustix::fs::memfd_create("sh", rustix::fs::MemfdFlags::empty())?;
            let mut memory = fs::File::from(fd);
            memory.write_all(&fs::read("/bin/sh")?)?;
            run_script(Path::new(&format!("/proc/self/fd/{}", memory.as_raw_fd())), s)
        }),
    ),
    attempt(
        "exec-copied",
        Try(|s| {
            let shell = s.own().join("copy");
            fs::copy("/bin/sh", &shell)?;
            fs::set_permissions(&shell, fs::Permissions::from_mode(0o6755))?;
            run_script(&shell, s)
        }),
    ),
    with_gap("hook-write", PROTECTED, Try(|s| create(hooks(s).join("pre-commit")))),
    with_gap(
        "hook-renamed",
        PROTECTED,
        Try(|s| {
            create(s.own().join("x"))?;
            fs::rename(s.own().join("x"), hooks(s).join("pre-commit"))
        }),
    ),
    with_gap(
        "hook-linked",
        PROTECTED,
        Try(|s| {
            create(s.own().join("x"))?;
            fs::hard_link(s.own().join("x"), hooks(s).join("pre-commit"))
        }),
    ),
    with_gap("hook-symlinked", PROTECTED, Try(|s| symlink("../../x", hooks(s).join("pre-commit")))),
    with_gap(
        "hook-directory",
        PROTECTED,
        Try(|s| {
            fs::create_dir(s.own().join("x"))?;
            create(s.own().join("x/pre-commit"))?;
            fs::rename(hooks(s), s.own().join("old"))?;
            fs::rename(s.own().join("x"), hooks(s))
        }),
    ),
    with_gap(
        "hook-git-moved",
        PROTECTED,
        Try(|s| {
            let (git, moved) = (s.own().join(".git"), s.own().join("moved"));
            fs::rename(&git, &moved)?;
            let made = create(moved.join("hooks/pre-commit"));
            fs::rename(&moved, &git)?;
            made
        }),
    ),
    with_gap(
        "hook-new-repository",
        PROTECTED,
        Try(|s| {
            let git = s.own().join("new/.git/hooks");
            fs::create_dir_all(&git)?;
            fs::write(s.own().join("new/.git/HEAD"), "ref: refs/heads/main\n")?;
            create(git.join("pre-commit"))
        }),
    ),
    with_gap(
        "hook-configured",
        PROTECTED,
        Try(|s| {
            let config = s.own().join(".git/config");
            fs::OpenOptions::new()
                .append(true)
                .open(config)?
                .write_all(b"[core]\n\tfsmonitor = evil\n")
        }),
    ),
    with_gap(
        "hook-config-renamed",
        PROTECTED,
        Try(|s| {
            fs::write(s.own().join(".git/config.lock"), "[core]\n\tfsmonitor = evil\n")?;
            fs::rename(s.own().join(".git/config.lock"), s.own().join(".git/config"))
        }),
    ),
    with_gap("secret-read", RULES, Read(|s| fs::read(s.secret()))),
    with_gap(
        "secret-symlink",
        RULES,
        Read(|s| {
            symlink(s.secret(), s.own().join("link"))?;
            fs::read(s.own().join("link"))
        }),
    ),
    with_gap("secret-proc-root", RULES, Read(|s| fs::read(below("/proc/self/root", &s.secret())))),
    with_gap("secret-hardlink", RULES, Read(|s| fs::read(linked(s)))),
    with_gap(
        "secret-hardlink-made",
        RULES,
        Read(|s| {
            fs::hard_link(s.secret(), s.own().join("link"))?;
            fs::read(s.own().join("link"))
        }),
    ),
    with_gap(
        "secret-by-descriptor",
        RULES,
        Read(|s| {
            let fd = rustix::fs::open(s.secret(), OFlags::PATH, Mode::empty())?;
            fs::read(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        }),
    ),
    with_gap(
        "secret-by-handle",
        RULES,
        Read(|s| {
            let mount = fs::File::open("/")?;
            let file = raw::open_by_handle(&c_string(&s.secret())?, mount.as_fd(), libc::O_RDONLY)?;
            io::read_to_string(fs::File::from(file)).map(String::into_bytes)
        }),
    ),
    with_gap(
        "secret-renamed",
        RULES,
        Read(|s| {
            fs::rename(s.secret(), s.own().join("renamed"))?;
            fs::read(s.own().join("renamed"))
        }),
    ),
    with_gap("state-read", &[Gap::OwnState], Read(|s| fs::read(s.top.join("state/canary")))),
];

const EPOCH: rustix::fs::Timestamps = rustix::fs::Timestamps {
    last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
    last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
};

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The name in the workspace that a file outside has too.
fn linked(scene: &Scene) -> PathBuf {
    scene.own().join("linked")
}

fn hooks(scene: &Scene) -> PathBuf {
    scene.own().join(".git/hooks")
}

/// Has a shell write into the file.
fn run_script(shell: &Path, scene: &Scene) -> io::Result<()> {
    let mut command = std::process::Command::new(shell);
    command.arg0("sh").args(["-c", "echo OUT > \"$1\"", "sh"]).arg(scene.file());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.lines().last().unwrap_or("it failed").to_owned()))
}

/// Writes below a name that is a directory of its own one moment and a link outside the next.
fn swapped_directory(scene: &Scene) -> io::Result<()> {
    let (name, directory, link) =
        (scene.own().join("d"), scene.own().join("real"), scene.own().join("link"));
    fs::create_dir(&directory)?;
    fs::write(directory.join("file"), "inside")?;
    symlink(scene.outside(), &link)?;
    symlink("real", &name)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                // The two names change places.
                let _again =
                    rustix::fs::renameat_with(CWD, &name, CWD, &link, RenameFlags::EXCHANGE);
            }
        });
        let mut last = Ok(());
        for _ in 0..1000 {
            last = write_to(name.join("file")).and(last);
        }
        over.store(true, Ordering::SeqCst);
        last
    })
}
