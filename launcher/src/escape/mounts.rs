//! Attempts to change the view: mounts, roots and namespaces.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::Act::{Own, Read, Try};
use super::{Attempt, Scene, attempt, create, on_suspects, with_gap, write_to};
use crate::enforcement::Gap;
use crate::sys;

const PROTECTED: &[Gap] = &[Gap::ProtectedPaths];

pub(super) const ALL: &[Attempt] = &[
    attempt("mount-remount", Try(|s| aside(s).and_then(|()| remount(s)))),
    attempt("mount-bind", Try(|s| aside(s).and_then(|()| bind(s)))),
    attempt("mount-attributes", Try(|s| aside(s).and_then(|()| set_attributes(s)))),
    attempt("mount-detached", Try(|s| aside(s).and_then(|()| detached(s)))),
    with_gap("mount-umount", PROTECTED, Try(|s| aside(s).and_then(|()| unmount(s)))),
    with_gap("mount-uncovered", PROTECTED, Try(|s| aside(s).and_then(|()| uncovered(s)))),
    with_gap("mount-over", PROTECTED, Try(|s| aside(s).and_then(|()| moved_over(s)))),
    attempt("mount-pivot", Try(|s| aside(s).and_then(|()| pivot(s)))),
    attempt("mount-chroot", Try(|s| aside(s).and_then(|()| change_root(s)))),
    attempt("mount-proc", Own(|s| aside(s).and_then(|()| fresh_proc(s)))),
    attempt("mount-fuse", Own(|s| aside(s).and_then(|()| fuse(s)))),
    attempt("userns-remount", Try(|s| become_root().and_then(|()| remount(s)))),
    attempt("userns-bind", Try(|s| become_root().and_then(|()| bind(s)))),
    attempt("userns-attributes", Try(|s| become_root().and_then(|()| set_attributes(s)))),
    attempt("userns-detached", Try(|s| become_root().and_then(|()| detached(s)))),
    with_gap("userns-umount", PROTECTED, Try(|s| become_root().and_then(|()| unmount(s)))),
    with_gap("userns-uncovered", PROTECTED, Try(|s| become_root().and_then(|()| uncovered(s)))),
    with_gap("userns-over", PROTECTED, Try(|s| become_root().and_then(|()| moved_over(s)))),
    attempt("userns-pivot", Try(|s| become_root().and_then(|()| pivot(s)))),
    attempt("userns-chroot", Try(|s| become_root().and_then(|()| change_root(s)))),
    attempt("userns-proc", Own(|s| become_root().and_then(|()| fresh_proc(s)))),
    attempt("userns-device", Own(|s| become_root().and_then(|()| device_node(s)))),
    with_gap(
        "userns-secret",
        &[Gap::DenyRules],
        Read(|s| {
            become_root()?;
            let place = place(s)?;
            let secrets = s.top.join("secrets");
            rustix::mount::mount_bind(&secrets, &place)?;
            fs::read(place.join(s.id))
        }),
    ),
    attempt("setns-one", Try(|s| enter("/proc/1/ns/mnt").and_then(|()| write_to(s.file())))),
    attempt(
        "setns-other",
        Try(|s| {
            on_suspects(s, |pid| {
                enter(&format!("/proc/{}/ns/mnt", pid.as_raw_pid()))?;
                write_to(s.file())
            })
        }),
    ),
    attempt("device-node", Own(device_node)),
];

/// Goes where mounts are nobody else's, where nothing confines the attempt (invariant I2).
fn aside(scene: &Scene) -> io::Result<()> {
    if !scene.unconfined {
        return Ok(());
    }
    if rustix::process::geteuid().is_root() {
        sys::unshare(UnshareFlags::NEWNS)?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private)?;
        return Ok(());
    }
    become_root()
}

/// Becomes root in a user namespace of its own, with mounts of its own.
pub(super) fn become_root() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))
}

fn place(scene: &Scene) -> io::Result<std::path::PathBuf> {
    let place = scene.own().join("place");
    fs::create_dir_all(&place)?;
    Ok(place)
}

fn remount(scene: &Scene) -> io::Result<()> {
    rustix::mount::mount_remount("/", MountFlags::BIND, "")?;
    write_to(scene.file())
}

fn bind(scene: &Scene) -> io::Result<()> {
    let place = place(scene)?;
    rustix::mount::mount_bind(scene.outside(), &place)?;
    // What can be mounted read-only can't always be made writable again.
    let _locked = rustix::mount::mount_remount(&place, MountFlags::BIND, "");
    write_to(place.join("file"))
}

fn set_attributes(scene: &Scene) -> io::Result<()> {
    sys::attempt::writable_below(c"/")?;
    write_to(scene.file())
}

fn detached(scene: &Scene) -> io::Result<()> {
    use rustix::mount::OpenTreeFlags;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, scene.outside(), flags)?;
    let file = rustix::fs::openat(&tree, "file", OFlags::WRONLY, Mode::empty())?;
    rustix::io::write(file.as_fd(), super::MARK)?;
    Ok(())
}

fn unmount(scene: &Scene) -> io::Result<()> {
    let taken = rustix::mount::unmount(scene.workspace(), UnmountFlags::DETACH);
    // Unconfined there is no mount: what would be below it is there already.
    if !scene.unconfined {
        taken?;
    }
    create(scene.own().join(".git/hooks/pre-commit"))
}

/// Binds the root without the mounts in it: what lies below them would come to light.
fn uncovered(scene: &Scene) -> io::Result<()> {
    let place = place(scene)?;
    rustix::mount::mount_bind("/", &place)?;
    let own = scene.own();
    let own = place.join(own.strip_prefix("/").unwrap_or(&own));
    create(own.join(".git/hooks/pre-commit"))
}

/// Moves the workspace's mount away from its name.
fn moved_over(scene: &Scene) -> io::Result<()> {
    let place = place(scene)?;
    if !scene.unconfined {
        rustix::mount::mount_move(scene.workspace(), &place)?;
    }
    create(scene.own().join(".git/hooks/pre-commit"))
}

fn pivot(scene: &Scene) -> io::Result<()> {
    let place = place(scene)?;
    rustix::mount::mount_bind_recursive("/", &place)?;
    std::env::set_current_dir(&place)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    write_to(scene.file())
}

/// The old trick: a root of one's own, and a directory outside of it still open.
fn change_root(scene: &Scene) -> io::Result<()> {
    let outside = fs::File::open("/")?;
    rustix::process::chroot(place(scene)?)?;
    rustix::process::fchdir(outside.as_fd())?;
    for _ in 0..64 {
        std::env::set_current_dir("..")?;
    }
    let file = scene.file();
    write_to(file.strip_prefix("/").unwrap_or(&file))
}

/// A fresh `/proc` has no covers.
fn fresh_proc(scene: &Scene) -> io::Result<()> {
    let place = place(scene)?;
    rustix::mount::mount("proc", &place, "proc", MountFlags::empty(), None)?;
    fs::OpenOptions::new().write(true).open(place.join("sys/kernel/core_pattern")).map(drop)
}

/// A file system of the attempt's own over the workspace.
fn fuse(scene: &Scene) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    let options = std::ffi::CString::new(options)?;
    rustix::mount::mount("escape", scene.workspace(), "fuse", MountFlags::empty(), &*options)?;
    Ok(())
}

fn enter(namespace: &str) -> io::Result<()> {
    let file = fs::File::open(namespace)?;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok(())
}

/// Returns the name and the numbers of the disk that the battery's own files are on, else of any.
pub(super) fn block_device(scene: &Scene) -> io::Result<(String, u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(&scene.top)?.dev();
    let own = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let own = fs::canonicalize(own).into_iter();
    let all = fs::read_dir("/sys/class/block")?.flatten().map(|entry| entry.path());
    for path in own.chain(all) {
        let text = fs::read_to_string(path.join("dev")).unwrap_or_default();
        let size = fs::read_to_string(path.join("size")).unwrap_or_default();
        let numbers = text.trim().split_once(':').map(|(a, b)| (a.parse(), b.parse()));
        if let Some((Ok(major), Ok(minor))) = numbers
            && size.trim() != "0"
            && let Some(name) = path.file_name()
        {
            return Ok((name.to_string_lossy().into_owned(), major, minor));
        }
    }
    Err(io::Error::other("there is no block device"))
}

/// Makes the node of a disk, and reads from it.
fn device_node(scene: &Scene) -> io::Result<()> {
    let (_, major, minor) = block_device(scene)?;
    let node = scene.own().join("disk");
    let device = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR, device)?;
    read_some(&node)
}

pub(super) fn read_some(path: &Path) -> io::Result<()> {
    use std::io::Read;
    fs::File::open(path)?.read_exact(&mut [0; 512])
}
