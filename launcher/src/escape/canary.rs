//! What stands outside of the confinement and shows whether anything reached it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use rustix::pty::OpenptFlags;

use super::sockets::c_string;
use super::{Act, Answer, Attempt, Scene, kernel, processes};
use crate::sys::attempt::{self as raw, Object};
use crate::sys::{self, Child};

/// Where the memory of a process outside that must not change is.
static MEMORY: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Everything that stands around one pass of the battery. Dropping it ends its processes and removes its kernel objects.
#[derive(Debug)]
pub(super) struct Canaries {
    pub(super) scene: Scene,
    /// The attempts' own terminal.
    pub(super) terminal: Terminal,
    secret: Vec<u8>,
    before: BTreeMap<&'static str, Snapshot>,
    victims: BTreeMap<&'static str, Child>,
    listeners: BTreeMap<&'static str, Vec<Listener>>,
    objects: BTreeMap<&'static str, (Object, i32)>,
    queue: Option<(OwnedFd, String)>,
    other: Terminal,
    keys: Vec<String>,
    shared: PathBuf,
    inherited: OwnedFd,
    _temporary: tempfile::TempDir,
}

type Snapshot = BTreeMap<PathBuf, String>;

#[derive(Debug)]
enum Listener {
    Stream(UnixListener),
    Packet(OwnedFd),
    Datagram(UnixDatagram),
}

/// A terminal: what programs use, and what its other end is.
#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) inner: OwnedFd,
    outer: OwnedFd,
    path: PathBuf,
}

impl Terminal {
    fn open() -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let outer = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&outer)?;
        rustix::pty::unlockpt(&outer)?;
        let name = rustix::pty::ptsname(&outer, Vec::new())?;
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let inner = rustix::fs::open(&name, flags, rustix::fs::Mode::empty())?;
        let mut modes = rustix::termios::tcgetattr(&inner)?;
        // Input is there as it comes, and isn't shown again.
        modes.make_raw();
        rustix::termios::tcsetattr(&inner, rustix::termios::OptionalActions::Now, &modes)?;
        rustix::io::ioctl_fionbio(&outer, true)?;
        let path = PathBuf::from(name.to_string_lossy().into_owned());
        Ok(Self { inner, outer, path })
    }

    /// Tells whether something was written to it.
    fn has_output(&self) -> bool {
        rustix::io::read(&self.outer, &mut [0; 16]).is_ok_and(|count| count > 0)
    }
}

impl Canaries {
    /// Sets everything up below a directory that no run of the battery may write.
    pub(super) fn set_up(
        top: &Path,
        word: &str,
        unconfined: bool,
        all: &[Attempt],
    ) -> io::Result<Self> {
        for part in ["out", "work", "secrets", "state"] {
            fs::create_dir_all(top.join(part))?;
        }
        let secret = format!("secret {word} {}", top.display()).into_bytes();
        fs::write(top.join("state/canary"), &secret)?;
        let temporary = tempfile::Builder::new()
            .prefix(&format!("{}{}-", super::verify::PREFIX, std::process::id()))
            .tempdir_in("/tmp")?;
        let held = tempfile::tempfile()?.into();
        MEMORY.store(u64::from_ne_bytes(*b"untouchd"), std::sync::atomic::Ordering::SeqCst);
        let mut canaries = Self {
            scene: Scene {
                top: top.to_owned(),
                unconfined,
                word: word.to_owned(),
                memory: u64::try_from(MEMORY.as_ptr().addr()).unwrap_or(0),
                temporary: temporary.path().to_owned(),
                ..Scene::default()
            },
            terminal: Terminal::open()?,
            secret,
            before: BTreeMap::new(),
            victims: BTreeMap::new(),
            listeners: BTreeMap::new(),
            objects: BTreeMap::new(),
            queue: None,
            other: Terminal::open()?,
            keys: Vec::new(),
            shared: PathBuf::new(),
            inherited: held,
            _temporary: temporary,
        };
        canaries.scene.terminal = canaries.other.path.clone();
        for attempt in all {
            canaries.prepare(attempt.id)?;
        }
        Ok(canaries)
    }

    fn prepare(&mut self, id: &'static str) -> io::Result<()> {
        self.scene.id = id;
        let scene = self.scene.clone();
        let (own, outside) = (scene.own(), scene.outside());
        for directory in [&outside.join("empty"), &own.join(".git/hooks")] {
            fs::create_dir_all(directory)?;
        }
        for (file, content) in [(scene.file(), &b"untouched\n"[..]), (scene.secret(), &self.secret)]
        {
            fs::write(&file, content)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        }
        fs::write(own.join(".git/config"), "[core]\n\tbare = false\n")?;
        fs::write(own.join(".git/HEAD"), "ref: refs/heads/main\n")?;
        let linked = if id.starts_with("secret") { scene.secret() } else { scene.file() };
        fs::hard_link(linked, own.join("linked"))?;
        if id.starts_with("socket") {
            self.listen(&scene)?;
        }
        let family = id.split('-').next().unwrap_or_default();
        let on_process = id.starts_with("proc-other")
            || id == "proc-map-files"
            || id.ends_with("-other-cwd")
            || id == "setns-other";
        if matches!(family, "signal" | "process") || on_process {
            self.victim(&scene)?;
        }
        if let Some(object) = kernel::object(id) {
            let key = i32::from_ne_bytes(random()?);
            let made = object.get(key, true)?;
            self.objects.insert(id, (object, made));
            self.scene.keys.insert(id.to_owned(), key);
        }
        match id {
            "ipc-posix-queue" => {
                let name = scene.name();
                // A kernel without them has nothing to try.
                self.queue = raw::queue(&c_string(&name)?, true).ok().map(|queue| (queue, name));
            }
            "ipc-posix-memory" => {
                self.shared = Path::new("/dev/shm").join(scene.name());
                fs::write(&self.shared, "untouched")?;
            }
            "keyring-user" => self.keys.push(scene.name()),
            "descriptor-inherited" => {
                let file = fs::OpenOptions::new().write(true).open(scene.file())?;
                self.inherited = file.into();
                self.scene.descriptor = self.inherited.as_raw_fd();
            }
            _ => {}
        }
        self.before.insert(id, snapshot(&scene));
        Ok(())
    }

    fn listen(&mut self, scene: &Scene) -> io::Result<()> {
        let outside = scene.outside();
        let packet = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&packet, &SocketAddrUnix::new(outside.join("packet"))?)?;
        rustix::net::listen(&packet, 16)?;
        let mut made = vec![
            Listener::Stream(UnixListener::bind(outside.join("stream"))?),
            Listener::Packet(packet),
            Listener::Datagram(UnixDatagram::bind(outside.join("datagram"))?),
        ];
        fs::hard_link(outside.join("stream"), scene.own().join("linked-socket"))?;
        match scene.id {
            "socket-in-workspace" => {
                made.push(Listener::Stream(UnixListener::bind(scene.own().join("socket"))?))
            }
            "socket-in-tmp" => {
                made.push(Listener::Stream(UnixListener::bind(scene.temporary.join("socket"))?))
            }
            _ => {}
        }
        if scene.id.starts_with("socket-abstract") {
            use std::os::linux::net::SocketAddrExt;
            let address = SocketAddr::from_abstract_name(scene.name())?;
            made.push(if scene.id.ends_with("datagram") {
                Listener::Datagram(UnixDatagram::bind_addr(&address)?)
            } else {
                Listener::Stream(UnixListener::bind_addr(&address)?)
            });
        }
        for listener in &made {
            match listener {
                Listener::Stream(listener) => listener.set_nonblocking(true)?,
                Listener::Datagram(socket) => socket.set_nonblocking(true)?,
                Listener::Packet(_) => {}
            }
        }
        self.listeners.insert(scene.id, made);
        Ok(())
    }

    /// Starts a process that works in the outside directory, has its file open and mapped, and does nothing.
    fn victim(&mut self, scene: &Scene) -> io::Result<()> {
        let file = fs::OpenOptions::new().read(true).write(true).open(scene.file())?;
        let _mapped = raw::map_for_good(file.as_fd(), true)?;
        // The number is the same for all.
        let held = rustix::io::fcntl_dupfd_cloexec(&file, 200)?;
        self.scene.held = held.as_raw_fd();
        let directory = fs::File::open(scene.outside())?;
        let child = sys::fork(|| {
            let parent = rustix::process::set_parent_process_death_signal(Some(
                rustix::process::Signal::KILL,
            ));
            let ready = parent
                .and_then(|()| rustix::process::setpgid(None, None))
                .and_then(|()| rustix::process::fchdir(&directory));
            sys::set_signal_mask(sys::SignalSet::default());
            if ready.is_err() {
                return 1;
            }
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        })?;
        self.scene.victims.insert(scene.id.to_owned(), child.pid().as_raw_pid());
        self.victims.insert(scene.id, child);
        // Its copy keeps the file open.
        drop(held);
        Ok(())
    }

    /// A descriptor that is left open for the attempts.
    pub(super) fn inherited(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inherited.as_fd()
    }

    /// Tells whether an attempt had an effect, and which.
    pub(super) fn effect(&mut self, attempt: Attempt, answer: Option<&Answer>) -> Option<String> {
        self.scene.id = attempt.id;
        if let Some(answer) = answer.filter(|answer| answer.done) {
            match attempt.act {
                Act::Own(_) => return Some("it could be done".to_owned()),
                Act::Read(_) if answer.read == self.secret => {
                    return Some("it was read".to_owned());
                }
                Act::Read(_) | Act::Try(_) => {}
            }
        }
        let now = snapshot(&self.scene);
        if let Some(before) = self.before.get(attempt.id)
            && *before != now
        {
            let keys = before.keys().chain(now.keys());
            let changed = keys.into_iter().find(|path| before.get(*path) != now.get(*path));
            let name = changed.and_then(|path| path.strip_prefix(&self.scene.top).ok());
            return Some(format!("`{}` changed", name.unwrap_or(Path::new("?")).display()));
        }
        if self.listeners.get(attempt.id).is_some_and(|all| all.iter().any(reached)) {
            return Some("a server was reached".to_owned());
        }
        if let Some(child) = self.victims.get(attempt.id)
            && let Some(effect) = on_process(child)
        {
            return Some(effect);
        }
        if self.objects.get(attempt.id).is_some_and(|(object, id)| object.is_changed(*id)) {
            return Some("it was changed".to_owned());
        }
        let shown = match attempt.id {
            "terminal-other" => self.other.has_output(),
            "ipc-posix-queue" => {
                self.queue.as_ref().is_some_and(|(queue, _)| raw::queue_holds(queue.as_fd()))
            }
            "ipc-posix-memory" => fs::read(&self.shared).unwrap_or_default() != b"untouched",
            "keyring-user" => {
                c_string(&self.scene.name()).is_ok_and(|name| raw::key_take(&name).is_some())
            }
            _ => false,
        };
        shown.then(|| "it arrived".to_owned())
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        for (object, id) in self.objects.values() {
            object.remove(*id);
        }
        if let Some((_, name)) = &self.queue
            && let Ok(name) = c_string(name)
        {
            raw::queue_remove(&name);
        }
        for name in self.keys.iter().filter_map(|name| c_string(name).ok()) {
            let _absent = raw::key_take(&name);
        }
        if !self.shared.as_os_str().is_empty() {
            // It may never have been made.
            let _absent = fs::remove_file(&self.shared);
        }
    }
}

pub(super) fn random<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

fn reached(listener: &Listener) -> bool {
    match listener {
        Listener::Stream(listener) => listener.accept().is_ok(),
        Listener::Packet(fd) => rustix::net::accept(fd).is_ok(),
        Listener::Datagram(socket) => socket.recv(&mut [0; 8]).is_ok(),
    }
}

/// Tells what happened to a process outside.
fn on_process(child: &Child) -> Option<String> {
    let pid: Pid = child.pid();
    if rustix::process::waitid(
        rustix::process::WaitId::Pid(pid),
        rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOHANG
            | rustix::process::WaitIdOptions::NOWAIT,
    )
    .is_ok_and(|status| status.is_some())
    {
        return Some("a process outside ended".to_owned());
    }
    let mut word = [0; 8];
    let address = u64::try_from(MEMORY.as_ptr().addr()).unwrap_or(0);
    if sys::seccomp::read_memory(pid, address, &mut word).is_ok() && word == processes::WORD {
        return Some("the memory of a process outside changed".to_owned());
    }
    let changed = |what: &str| Some(format!("the {what} of a process outside changed"));
    let limits =
        fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_pid())).unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    if files.is_some_and(|text| text.split_whitespace().next() == Some("77")) {
        return changed("limits");
    }
    if rustix::process::getpriority_process(Some(pid)) == Ok(7) {
        return changed("priority");
    }
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", pid.as_raw_pid()));
    score
        .is_ok_and(|score| score.trim() == "777")
        .then(|| "the score of a process outside changed".to_owned())
}

/// Describes everything that an attempt must not change: what is outside, and what runs code in the workspace.
fn snapshot(scene: &Scene) -> Snapshot {
    let mut found = Snapshot::new();
    describe(&scene.outside(), &mut found);
    let mut inside = Snapshot::new();
    describe(&scene.own(), &mut inside);
    let runs_code = |path: &Path| {
        let text = path.to_string_lossy();
        text.contains("/.git/hooks/") || text.ends_with("/.git/config")
    };
    // The sockets of the battery's own stay where they are.
    found.extend(inside.into_iter().filter(|(path, _)| runs_code(path)));
    found
}

fn describe(path: &Path, found: &mut Snapshot) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    let kind = metadata.file_type();
    let content = if kind.is_symlink() {
        fs::read_link(path).unwrap_or_default().into_os_string().into_encoded_bytes()
    } else if kind.is_file() {
        fs::read(path).unwrap_or_default()
    } else {
        Vec::new()
    };
    let (mut names, mut flags) = (vec![0; 512], String::new());
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    names.truncate(length);
    if kind.is_file()
        && let Ok(file) = fs::File::open(path)
    {
        flags = format!("{:?}", rustix::fs::ioctl_getflags(&file).ok());
    }
    // A directory's own time says no more than its entries do, and a socket's is the battery's.
    let time = if kind.is_dir() || kind.is_socket() {
        (0, 0)
    } else {
        (metadata.mtime(), metadata.mtime_nsec())
    };
    let text = format!(
        "{:o} {}:{} {time:?} {:?} {:?} {flags}",
        metadata.mode(),
        metadata.uid(),
        metadata.gid(),
        String::from_utf8_lossy(&content),
        String::from_utf8_lossy(&names)
    );
    found.insert(path.to_owned(), text);
    if kind.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            describe(&entry.path(), found);
        }
    }
}
