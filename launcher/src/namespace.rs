//! The process that makes the namespaces of a run and mounts the regions inside them.
//!
//! It is forked from the launcher, does its few system calls and then becomes the back end (bubblewrap). Because the
//! mounts are made in a private mount namespace, the host never shows them, and the kernel removes them when the last
//! process inside ends, however the launcher died.
//!
//! Invariants:
//! - I1: between fork and exec only memory prepared before the fork is used; nothing is allocated.
//! - I2: `/dev/fuse` is opened inside the user namespace (the kernel refuses a mount from a descriptor opened outside).
//! - I3: no copy of a device descriptor outlives the sending: a left-over copy would keep a dead connection alive.
//! - I4: nothing touches a mount before the server has answered INIT; the child waits for [`Namespace::go`].
//! - I5: a region is mounted over the directory that was opened before, or not at all (device and inode are compared).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal};
use rustix::thread::UnshareFlags;

use crate::guardian::Guardian;
use crate::sys::{self, CStringArray, Child, SignalSet};

/// The device that FUSE mounts are made from.
pub const DEVICE: &CStr = c"/dev/fuse";

/// What in `/proc` is the machine's and can be written: by root, or by everybody.
pub const MACHINE_WIDE: [&CStr; 9] = [
    c"/proc/sys",
    c"/proc/sysrq-trigger",
    c"/proc/fs",
    c"/proc/driver",
    c"/proc/acpi",
    c"/proc/scsi",
    c"/proc/asound",
    c"/proc/mtrr",
    c"/proc/pressure",
];

/// How long the child may take for its few system calls; a directory on a dead network file system takes for ever.
const LIMIT: Duration = Duration::from_secs(20);

/// One step of the set-up, as the child reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// `unshare(CLONE_NEWUSER)`
    UserNamespace = 1,
    /// `/proc/self/setgroups`
    DenySetgroups,
    /// `/proc/self/uid_map`
    UidMap,
    /// `/proc/self/gid_map`
    GidMap,
    /// `unshare(CLONE_NEWNS)`
    MountNamespace,
    /// Making `/` private.
    PrivateMounts,
    /// The child must die with the launcher.
    DieWithParent,
    /// Opening `/dev/fuse`.
    OpenDevice,
    /// Opening the region's directory inside the namespace.
    OpenRegion,
    /// The directory isn't the one that was opened before.
    RegionMoved,
    /// `mount(2)` of the region.
    Mount,
    /// Making every mount but the regions read-only.
    ReadOnly,
    /// Covering what must not be seen.
    Cover,
    /// `unshare` of processes, IPC and network.
    OtherNamespaces,
    /// Mounting a `/proc` of the new processes' own.
    Proc,
    /// Handing the descriptor over.
    Send,
    /// Everything is mounted.
    Ready,
    /// Starting the back end.
    Exec,
}

impl Step {
    const ALL: [Self; 18] = [
        Self::UserNamespace,
        Self::DenySetgroups,
        Self::UidMap,
        Self::GidMap,
        Self::MountNamespace,
        Self::PrivateMounts,
        Self::DieWithParent,
        Self::OpenDevice,
        Self::OpenRegion,
        Self::RegionMoved,
        Self::Mount,
        Self::ReadOnly,
        Self::Cover,
        Self::OtherNamespaces,
        Self::Proc,
        Self::Send,
        Self::Ready,
        Self::Exec,
    ];

    fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&step| step as u8 == raw)
    }

    /// Returns what the step does, as a fragment for messages.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::UserNamespace => "creating a user namespace",
            Self::DenySetgroups => "writing /proc/self/setgroups in the user namespace",
            Self::UidMap => "mapping the user id in the user namespace",
            Self::GidMap => "mapping the group id in the user namespace",
            Self::MountNamespace => "creating a mount namespace",
            Self::PrivateMounts => "making the mounts of the namespace private",
            Self::DieWithParent => "tying the namespace to the launcher",
            Self::OpenDevice => "opening /dev/fuse",
            Self::OpenRegion => "opening the directory inside the namespace",
            Self::RegionMoved => "finding the same directory again inside the namespace",
            Self::Mount => "mounting the file system",
            Self::ReadOnly => "making the mounts of the namespace read-only",
            Self::Cover => "covering what the command must not see",
            Self::OtherNamespaces => "creating namespaces for processes, IPC and network",
            Self::Proc => "mounting /proc for the new namespace",
            Self::Send => "handing over the FUSE descriptor",
            Self::Ready => "waiting for the namespace",
            Self::Exec => "starting the sandbox's program",
        }
    }
}

/// A step failed.
#[derive(Debug, thiserror::Error)]
#[error("{} failed{}", step.describe(), region.as_ref().map(|path| format!(" for `{}`", path.display())).unwrap_or_default())]
pub struct NamespaceError {
    /// The step.
    pub step: Step,
    /// The region it was for.
    pub region: Option<PathBuf>,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// One directory that is to be served by FUSE at its own path.
#[derive(Debug)]
pub struct Region {
    path: PathBuf,
    target: CString,
    identity: (u64, u64),
    /// Holds the number that the device gets in the child, so that the mount options can be written before the fork.
    placeholder: OwnedFd,
    options: CString,
}

impl Region {
    /// Prepares the mount of a directory. `options` gets the descriptor (a number that is only right in the child) and
    /// returns the data string of mount(2).
    ///
    /// # Errors
    /// The directory can't be looked at, or descriptors ran out.
    pub fn new(
        path: &Path,
        source: BorrowedFd<'_>,
        options: impl FnOnce(BorrowedFd<'_>) -> CString,
    ) -> io::Result<Self> {
        let stat = rustix::fs::fstat(source)?;
        let placeholder = rustix::fs::open(
            "/",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            path: path.to_owned(),
            target: CString::new(path.as_os_str().as_bytes())?,
            identity: (stat.st_dev, stat.st_ino),
            options: options(placeholder.as_fd()),
            placeholder,
        })
    }
}

/// The program that the child becomes.
#[derive(Debug)]
pub struct Program {
    /// Its path.
    pub path: CString,
    /// Its arguments, the first is its name.
    pub argv: CStringArray,
    /// Its environment.
    pub environment: CStringArray,
    /// Descriptors that it inherits under their present numbers.
    pub keep: Vec<OwnedFd>,
    /// What becomes its standard error.
    pub stderr: Option<OwnedFd>,
    /// The signals that it starts with as blocked and as ignored, where they aren't to stay as they are here.
    pub signals: Option<(SignalSet, SignalSet)>,
    /// It isn't to die with the launcher at once: what it starts sees that the launcher is gone, and the guardian ends it a
    /// moment later. bubblewrap that dies too early leaves a child that waits for it for good.
    pub lingers: bool,
}

/// Something in a region that stays the host's: a socket that the caller names.
#[derive(Debug)]
pub struct Kept {
    target: CString,
    /// Holds the number under which the child opens it.
    placeholder: OwnedFd,
    link: CString,
}

impl Kept {
    /// Prepares to keep what is at a path.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn new(path: &Path) -> io::Result<Self> {
        let placeholder = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let link = CString::new(format!("/proc/self/fd/{}", placeholder.as_raw_fd()))?;
        Ok(Self { target: CString::new(path.as_os_str().as_bytes())?, placeholder, link })
    }

    fn open(&self) -> rustix::io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&*self.target, flags, Mode::empty())?;
        sys::dup_onto(file.as_fd(), self.placeholder.as_fd())
    }
}

/// What our own namespaces confine.
#[derive(Debug, Default)]
pub struct Confine {
    /// Makes everything but the regions read-only.
    pub read_only: bool,
    /// Directories that can't be seen.
    pub hidden: Vec<CString>,
    /// Leaves the host's network.
    pub no_network: bool,
    /// The caller's terminal.
    pub terminal: Option<CString>,
}

/// Everything that the child needs, prepared before the fork.
#[derive(Debug)]
pub struct Setup {
    /// The caller's user and group, when a user namespace is needed.
    pub user: Option<(u32, u32)>,
    /// Whether there is a mount namespace; without one there are no regions either.
    pub mounts: bool,
    /// What is mounted.
    pub regions: Vec<Region>,
    /// What stays the host's in the regions.
    pub kept: Vec<Kept>,
    /// What our namespaces do in the place of bubblewrap's.
    pub confine: Option<Confine>,
    /// What runs then; without one the child ends when it is told to go.
    pub program: Option<Program>,
}

/// The child, with its mounts made and waiting. Dropping it kills it, and the kernel then removes the mounts.
#[derive(Debug)]
pub struct Namespace {
    child: Child,
    // Dropped before the child's namespaces end.
    guardian: Option<Guardian>,
    socket: OwnedFd,
    regions: Vec<PathBuf>,
}

impl Namespace {
    /// Forks the child, which begins at once; [`Self::devices`] waits for it.
    ///
    /// # Errors
    /// There is no memory or no descriptor.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let (socket, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(LIMIT),
        )?;
        let maps = setup.user.map(|(uid, gid)| (map_line(uid), map_line(gid)));
        let parent = rustix::process::getpid();
        let child = sys::fork(|| {
            let report = |step: Step, region: usize, error: Errno| {
                send_report(theirs.as_fd(), step, region, Some(error), None);
            };
            match in_child(&setup, maps.as_ref(), parent, theirs.as_fd()) {
                Ok(()) => 0,
                Err((step, region, error)) => {
                    report(step, region, error);
                    125
                }
            }
        })?;
        let targets: Vec<CString> =
            setup.regions.iter().map(|region| region.target.clone()).collect();
        let guarded = setup.program.is_some() && !targets.is_empty();
        let guardian =
            guarded.then(|| Guardian::start(&child, setup.user.is_some(), &targets)).transpose()?;
        let regions = setup.regions.iter().map(|region| region.path.clone()).collect();
        Ok(Self { child, guardian, socket, regions })
    }

    /// Returns the child's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Waits until everything is mounted and returns a device for each region, in order.
    ///
    /// # Errors
    /// A step failed; the child is gone then.
    pub fn devices(&self) -> Result<Vec<OwnedFd>, NamespaceError> {
        let mut devices = Vec::with_capacity(self.regions.len());
        loop {
            match receive_report(self.socket.as_fd()) {
                Ok(Some((Step::Send, _, None, Some(device)))) => devices.push(device),
                Ok(Some((Step::Ready, _, None, _))) if devices.len() == self.regions.len() => {
                    return Ok(devices);
                }
                Ok(Some((step, region, error, _))) => {
                    return Err(self.error(step, region, error.unwrap_or(Errno::PROTO)));
                }
                Ok(None) => return Err(self.error(Step::Ready, usize::MAX, Errno::CONNRESET)),
                Err(error) => return Err(self.error(Step::Ready, usize::MAX, error)),
            }
        }
    }

    /// Sends the guardian of the mounts to its post; to be dropped before the servers are waited for.
    ///
    /// # Errors
    /// It is gone.
    pub fn guardian(&mut self) -> io::Result<Option<Guardian>> {
        let mut guardian = self.guardian.take();
        guardian.as_mut().map(Guardian::enter).transpose()?;
        Ok(guardian)
    }

    /// Lets the child become its program. What that does with the mounts waits until they are served.
    ///
    /// # Errors
    /// The child is gone.
    pub fn go(&self) -> Result<(), NamespaceError> {
        rustix::net::send(&self.socket, &[1], SendFlags::NOSIGNAL)
            .map(|_sent| ())
            .map_err(|error| self.error(Step::Exec, usize::MAX, error))
    }

    /// Waits until the child is its program.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn gone(self) -> Result<Child, NamespaceError> {
        match receive_report(self.socket.as_fd()) {
            // Close-on-exec closed the child's end: it is its program now.
            Ok(None) => Ok(self.child),
            Ok(Some((step, region, error, _))) => {
                Err(self.error(step, region, error.unwrap_or(Errno::PROTO)))
            }
            Err(error) => Err(self.error(Step::Exec, usize::MAX, error)),
        }
    }

    fn error(&self, step: Step, region: usize, error: Errno) -> NamespaceError {
        let error = if error == Errno::AGAIN { Errno::TIMEDOUT } else { error };
        NamespaceError { step, region: self.regions.get(region).cloned(), source: error.into() }
    }
}

/// Returns the line that maps an id to itself.
fn map_line(id: u32) -> String {
    format!("{id} {id} 1\n")
}

type ChildError = (Step, usize, Errno);

/// The child's whole life up to the exec (invariant I1).
fn in_child(
    setup: &Setup,
    maps: Option<&(String, String)>,
    parent: Pid,
    socket: BorrowedFd<'_>,
) -> Result<(), ChildError> {
    const NONE: usize = usize::MAX;
    let at = |step: Step| move |error: Errno| (step, NONE, error);
    match maps {
        Some((uid, gid)) => {
            sys::unshare(UnshareFlags::NEWUSER).map_err(at(Step::UserNamespace))?;
            write_file(c"/proc/self/setgroups", b"deny").map_err(at(Step::DenySetgroups))?;
            write_file(c"/proc/self/uid_map", uid.as_bytes()).map_err(at(Step::UidMap))?;
            write_file(c"/proc/self/gid_map", gid.as_bytes()).map_err(at(Step::GidMap))?;
            sys::unshare(UnshareFlags::NEWNS).map_err(at(Step::MountNamespace))?;
        }
        None if setup.mounts => {
            sys::unshare(UnshareFlags::NEWNS).map_err(at(Step::MountNamespace))?;
        }
        None => {}
    }
    // After the change of credentials, which would clear it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(at(Step::DieWithParent))?;
    if rustix::process::getppid() != Some(parent) {
        return Err((Step::DieWithParent, NONE, Errno::SRCH));
    }
    if setup.mounts {
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        rustix::mount::mount_change(c"/", private).map_err(at(Step::PrivateMounts))?;
    }
    if let Some(confine) = &setup.confine {
        confine.cover()?;
    }
    for kept in &setup.kept {
        kept.open().map_err(at(Step::OpenRegion))?;
    }
    for (index, region) in setup.regions.iter().enumerate() {
        mount_region(region, index, socket)?;
    }
    send_report(socket, Step::Ready, NONE, None, None);
    let mut go = [0_u8; 1];
    match rustix::net::recv(socket, &mut go, RecvFlags::empty()) {
        Ok((1, _)) => {}
        Ok(_) => return Err((Step::Exec, NONE, Errno::CONNRESET)),
        Err(error) => return Err((Step::Exec, NONE, error)),
    }
    let Some(program) = &setup.program else { return Ok(()) };
    if let Some(confine) = &setup.confine
        && let Some(status) = confine.in_own_namespaces()?
    {
        sys::leave(status);
    }
    for kept in &setup.kept {
        // The file system below answers from here on (invariant I4).
        rustix::mount::mount_bind(&*kept.link, &*kept.target).map_err(at(Step::Mount))?;
    }
    if let Some((blocked, ignored)) = program.signals {
        for signal in 1..=sys::LAST_SIGNAL {
            sys::set_ignored(signal, ignored.contains(signal));
        }
        sys::set_signal_mask(blocked);
    }
    for fd in &program.keep {
        sys::keep_over_exec(fd.as_fd()).map_err(at(Step::Exec))?;
    }
    // Without a region there is no guardian.
    if program.lingers && !setup.regions.is_empty() {
        rustix::process::set_parent_process_death_signal(None).map_err(at(Step::DieWithParent))?;
    }
    if let Some(stderr) = &program.stderr {
        rustix::stdio::dup2_stderr(stderr).map_err(at(Step::Exec))?;
    }
    Err((Step::Exec, NONE, sys::exec(&program.path, &program.argv, &program.environment)))
}

impl Confine {
    /// Makes the mounts that belong below the regions.
    fn cover(&self) -> Result<(), ChildError> {
        const QUIET: MountFlags =
            MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
        let at = |step: Step| move |error: Errno| (step, usize::MAX, error);
        if !self.read_only {
            return Ok(());
        }
        sys::read_only_below(c"/").map_err(at(Step::ReadOnly))?;
        rustix::mount::mount(c"tmpfs", c"/dev/shm", c"tmpfs", QUIET, c"mode=1777")
            .map_err(at(Step::Cover))?;
        self.own_terminals()?;
        for directory in &self.hidden {
            let flags = QUIET | MountFlags::RDONLY;
            rustix::mount::mount(c"tmpfs", &**directory, c"tmpfs", flags, c"mode=0000")
                .map_err(at(Step::Cover))?;
        }
        Ok(())
    }

    /// Puts terminals of the run's own in the place of everybody's. Its caller's keeps one name, by which ttyname(3) finds it.
    fn own_terminals(&self) -> Result<(), ChildError> {
        const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);
        let at = |error: Errno| (Step::Cover, usize::MAX, error);
        // A container may have neither place.
        let absent = |error: Errno| if error == Errno::NOENT { Ok(()) } else { Err(at(error)) };
        if let Some(terminal) = &self.terminal {
            rustix::mount::mount_bind(&**terminal, c"/dev/console").or_else(absent)?;
        }
        let options = c"newinstance,ptmxmode=0666,mode=0620";
        rustix::mount::mount(c"devpts", c"/dev/pts", c"devpts", FLAGS, options).or_else(absent)?;
        let quiet = FLAGS | MountFlags::NODEV | MountFlags::RDONLY;
        rustix::mount::mount(c"tmpfs", c"/dev/mqueue", c"tmpfs", quiet, c"mode=0555")
            .or_else(absent)
    }

    /// Goes on in a child that is process 1 of a namespace; in this process, returns the child's end.
    fn in_own_namespaces(&self) -> Result<Option<u8>, ChildError> {
        let at = |step: Step| move |error: Errno| (step, usize::MAX, error);
        let network = if self.no_network { UnshareFlags::NEWNET } else { UnshareFlags::empty() };
        sys::unshare(UnshareFlags::NEWPID | UnshareFlags::NEWIPC | network)
            .map_err(at(Step::OtherNamespaces))?;
        if self.no_network {
            sys::loopback_up().map_err(at(Step::OtherNamespaces))?;
        }
        if let Some(status) = sys::continue_in_child().map_err(at(Step::OtherNamespaces))? {
            return Ok(Some(status));
        }
        // Whoever made it dies with the launcher, and it with them.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(at(Step::DieWithParent))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None).map_err(at(Step::Proc))?;
        for path in MACHINE_WIDE.iter().filter(|_| self.read_only) {
            match rustix::mount::mount_bind(*path, *path).and_then(|()| sys::read_only_below(path))
            {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err((Step::Proc, usize::MAX, error)),
            }
        }
        Ok(None)
    }
}

fn mount_region(region: &Region, index: usize, socket: BorrowedFd<'_>) -> Result<(), ChildError> {
    let at = |step: Step| move |error: Errno| (step, index, error);
    let directory = rustix::fs::open(
        &*region.target,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(at(Step::OpenRegion))?;
    let stat = rustix::fs::fstat(&directory).map_err(at(Step::OpenRegion))?;
    if (stat.st_dev, stat.st_ino) != region.identity {
        return Err((Step::RegionMoved, index, Errno::STALE));
    }
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(at(Step::OpenDevice))?;
    sys::dup_onto(device.as_fd(), region.placeholder.as_fd()).map_err(at(Step::OpenDevice))?;
    drop(device);
    let mut path = [0_u8; 32];
    let target = fd_path(&mut path, &directory);
    rustix::mount::mount(
        c"stockade",
        target,
        c"fuse",
        MountFlags::NOSUID | MountFlags::NODEV,
        &*region.options,
    )
    .map_err(at(Step::Mount))?;
    if !send_report(socket, Step::Send, index, None, Some(region.placeholder.as_fd())) {
        return Err((Step::Send, index, Errno::PIPE));
    }
    // Invariant I3: the number now refers to something harmless.
    sys::dup_onto(directory.as_fd(), region.placeholder.as_fd()).map_err(at(Step::Send))
}

/// Writes `/proc/self/fd/N` into a buffer of the caller's, without allocating.
fn fd_path<'b>(buffer: &'b mut [u8; 32], fd: &OwnedFd) -> &'b CStr {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut digits = [0_u8; 10];
    let mut number = u32::try_from(fd.as_raw_fd()).unwrap_or(0);
    let mut count = 0;
    for digit in &mut digits {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    let reversed = digits.iter().take(count).rev();
    for (place, &byte) in buffer.iter_mut().zip(PREFIX.iter().chain(reversed)) {
        *place = byte;
    }
    CStr::from_bytes_until_nul(buffer).unwrap_or(c"/nonexistent")
}

fn write_file(path: &CStr, content: &[u8]) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, content).map(drop)
}

/// Sends one report; tells whether it went out.
fn send_report(
    socket: BorrowedFd<'_>,
    step: Step,
    region: usize,
    error: Option<Errno>,
    device: Option<BorrowedFd<'_>>,
) -> bool {
    let mut message = [0_u8; 13];
    let (kind, rest) = message.split_at_mut(1);
    kind.fill(step as u8);
    let (index, code) = rest.split_at_mut(8);
    index.copy_from_slice(&u64::try_from(region).unwrap_or(u64::MAX).to_ne_bytes());
    code.copy_from_slice(&error.map_or(0, Errno::raw_os_error).to_ne_bytes());
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = device.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(socket, &[io::IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
        .is_ok()
}

type Report = (Step, usize, Option<Errno>, Option<OwnedFd>);

/// Receives one report; `None` when the other end is closed.
fn receive_report(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<Report>> {
    let mut message = [0_u8; 13];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [io::IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut device = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = part {
            device = fds.next();
        }
    }
    let [kind, index @ .., e0, e1, e2, e3] = message;
    let step = Step::from_raw(kind).ok_or(Errno::PROTO)?;
    let region = usize::try_from(u64::from_ne_bytes(index)).unwrap_or(usize::MAX);
    let code = i32::from_ne_bytes([e0, e1, e2, e3]);
    let error = (code != 0).then(|| Errno::from_raw_os_error(code));
    Ok(Some((step, region, error, device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_descriptor_is_written_without_allocating() {
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let mut buffer = [0; 32];
        let expected = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(fd_path(&mut buffer, &file).to_str().unwrap(), expected);
        let stat = rustix::fs::stat(fd_path(&mut buffer, &file)).unwrap();
        assert_eq!(stat.st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
    }

    #[test]
    fn reports_carry_step_region_and_errno() {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        for step in Step::ALL {
            assert!(send_report(theirs.as_fd(), step, 3, Some(Errno::PERM), None));
            let (got, region, error, device) = receive_report(ours.as_fd()).unwrap().unwrap();
            assert_eq!((got, region, error), (step, 3, Some(Errno::PERM)));
            assert!(device.is_none());
        }
        drop(theirs);
        assert!(receive_report(ours.as_fd()).unwrap().is_none());
    }
}
