//! Attempts to reach sockets of the host's, each of which could have a server that acts outside.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::Act::Try;
use super::mounts::become_root;
use super::{Attempt, Scene, below, on_suspects, with_gap};
use crate::enforcement::Gap;
use crate::sys::attempt as raw;

const BY_PATH: &[Gap] = &[Gap::HostSockets, Gap::LateSockets];
const ABSTRACT: &[Gap] = &[Gap::AbstractSockets];

pub(super) const ALL: &[Attempt] = &[
    with_gap(
        "socket-stream",
        BY_PATH,
        Try(|s| connect(&s.outside().join("stream"), SocketType::STREAM)),
    ),
    with_gap(
        "socket-packet",
        BY_PATH,
        Try(|s| connect(&s.outside().join("packet"), SocketType::SEQPACKET)),
    ),
    with_gap(
        "socket-datagram",
        BY_PATH,
        Try(|s| connect(&s.outside().join("datagram"), SocketType::DGRAM)),
    ),
    with_gap(
        "socket-datagram-unconnected",
        BY_PATH,
        Try(|s| {
            let socket = own(SocketType::DGRAM)?;
            send_to(&socket, &s.outside().join("datagram"))
        }),
    ),
    with_gap(
        "socket-datagram-pair",
        BY_PATH,
        Try(|s| {
            let (socket, _other) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            send_to(&socket, &s.outside().join("datagram"))
        }),
    ),
    with_gap(
        "socket-symlink",
        BY_PATH,
        Try(|s| {
            symlink(s.outside().join("stream"), s.own().join("link"))?;
            connect(&s.own().join("link"), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-hardlink",
        BY_PATH,
        Try(|s| connect(&s.own().join("linked-socket"), SocketType::STREAM)),
    ),
    with_gap(
        "socket-hardlink-made",
        BY_PATH,
        Try(|s| {
            fs::hard_link(s.outside().join("stream"), s.own().join("link"))?;
            connect(&s.own().join("link"), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-proc-root",
        BY_PATH,
        Try(|s| {
            connect(&below("/proc/self/root", &s.outside().join("stream")), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-by-descriptor",
        BY_PATH,
        Try(|s| {
            let fd = rustix::fs::open(
                s.outside().join("stream"),
                rustix::fs::OFlags::PATH,
                rustix::fs::Mode::empty(),
            )?;
            connect(&PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-relative",
        BY_PATH,
        Try(|s| {
            std::env::set_current_dir(s.outside())?;
            connect(Path::new("stream"), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-other-cwd",
        BY_PATH,
        Try(|s| {
            on_suspects(s, |pid| {
                connect(
                    &PathBuf::from(format!("/proc/{}/cwd/stream", pid.as_raw_pid())),
                    SocketType::STREAM,
                )
            })
        }),
    ),
    with_gap("socket-swapped", BY_PATH, Try(swapped)),
    with_gap(
        "socket-userns",
        BY_PATH,
        Try(|s| {
            become_root()?;
            connect(&s.outside().join("stream"), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-userns-bind",
        BY_PATH,
        Try(|s| {
            become_root()?;
            let place = s.own().join("place");
            fs::create_dir(&place)?;
            rustix::mount::mount_bind(s.outside(), &place)?;
            connect(&place.join("stream"), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-userns-chroot",
        BY_PATH,
        Try(|s| {
            become_root()?;
            rustix::process::chroot(s.outside())?;
            connect(Path::new("/stream"), SocketType::STREAM)
        }),
    ),
    with_gap(
        "socket-io-uring",
        BY_PATH,
        Try(|s| {
            let socket = own(SocketType::STREAM)?;
            let mut address = AddressFamily::UNIX.as_raw().to_ne_bytes().to_vec();
            address.extend(s.outside().join("stream").as_os_str().as_bytes());
            address.push(0);
            Ok(raw::connect_by_ring(socket.as_fd(), &address)?)
        }),
    ),
    with_gap(
        "socket-in-workspace",
        BY_PATH,
        Try(|s| connect(&s.own().join("socket"), SocketType::STREAM)),
    ),
    with_gap(
        "socket-in-tmp",
        BY_PATH,
        Try(|s| connect(&s.temporary.join("socket"), SocketType::STREAM)),
    ),
    with_gap(
        "socket-abstract",
        ABSTRACT,
        Try(|s| {
            rustix::net::connect(
                own(SocketType::STREAM)?,
                &SocketAddrUnix::new_abstract_name(s.name().as_bytes())?,
            )?;
            Ok(())
        }),
    ),
    with_gap(
        "socket-abstract-datagram",
        ABSTRACT,
        Try(|s| {
            let address = SocketAddrUnix::new_abstract_name(s.name().as_bytes())?;
            rustix::net::sendto(own(SocketType::DGRAM)?, b"x", SendFlags::NOSIGNAL, &address)?;
            Ok(())
        }),
    ),
    with_gap(
        "socket-abstract-userns",
        ABSTRACT,
        Try(|s| {
            become_root()?;
            rustix::net::connect(
                own(SocketType::STREAM)?,
                &SocketAddrUnix::new_abstract_name(s.name().as_bytes())?,
            )?;
            Ok(())
        }),
    ),
];

fn own(kind: SocketType) -> io::Result<rustix::fd::OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

fn connect(path: &Path, kind: SocketType) -> io::Result<()> {
    let socket = own(kind)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    if kind == SocketType::DGRAM {
        rustix::net::send(&socket, b"x", SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

fn send_to(socket: &rustix::fd::OwnedFd, path: &Path) -> io::Result<()> {
    rustix::net::sendto(socket, b"x", SendFlags::NOSIGNAL, &SocketAddrUnix::new(path)?)?;
    Ok(())
}

/// Connects by a name that leads to a socket of its own one moment and outside the next.
fn swapped(scene: &Scene) -> io::Result<()> {
    let (name, link) = (scene.own().join("name"), scene.own().join("link"));
    let _listener = std::os::unix::net::UnixListener::bind(scene.own().join("mine"))?;
    symlink(scene.outside().join("stream"), &link)?;
    symlink("mine", &name)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                // The two names change places.
                let _again = rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    &name,
                    rustix::fs::CWD,
                    &link,
                    exchange,
                );
            }
        });
        let mut last = Ok(());
        for _ in 0..500 {
            let socket = own(SocketType::STREAM)?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            let made = rustix::net::connect(&socket, &SocketAddrUnix::new(&name)?);
            last = made.map_err(io::Error::from).and(last);
        }
        over.store(true, Ordering::SeqCst);
        last
    })
}

/// Returns a path as the C string that system calls take.
pub(super) fn c_string(text: &str) -> io::Result<CString> {
    Ok(CString::new(text)?)
}
