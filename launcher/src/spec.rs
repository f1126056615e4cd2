//! What the helper inside the sandbox is told to run, and the messages between it and the launcher.
//!
//! The command's arguments and environment travel in a sealed memory file and not on bubblewrap's command line, so
//! they have no length limit of ours and don't influence bubblewrap itself.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::sys::SignalSet;

/// The command, and the state that it starts in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The command and its arguments.
    pub argv: Vec<CString>,
    /// `NAME=value` each.
    pub environment: Vec<CString>,
    /// The working directory.
    pub cwd: CString,
    /// Signals that the caller ignores.
    pub ignored: SignalSet,
    /// Signals that the caller blocks.
    pub blocked: SignalSet,
    /// The caller's umask.
    pub umask: u32,
    /// The caller's soft limit of the size of files.
    pub file_size: Option<u64>,
    /// Whether the mode refuses anything.
    pub confined: bool,
    /// The errno that making `check` must fail with.
    pub proof: i32,
    /// A path that must not be makeable inside; the command doesn't run when it is.
    pub check: Option<CString>,
    /// Whether the kernel shall be asked to keep signals and abstract sockets inside.
    pub scoped: bool,
    /// Whether Landlock already restricts what may be written here.
    pub landlocked: bool,
    /// The helper dies with the process that started it, which ends for nothing else.
    pub dies: bool,
    /// Whether the helper makes the command's connections.
    pub guarded: bool,
    /// Whether the command leads a session of its own, on the terminal that its standard input is.
    pub leads: bool,
    /// Directories of the file systems that are the run's own.
    pub inside: Vec<CString>,
    /// Sockets of the host's that the command may reach.
    pub sockets: Vec<CString>,
    /// Numbers under which the extra descriptors reach the command.
    pub keep: Vec<i32>,
}

impl Spec {
    /// Writes the specification to a memory file.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let mut bytes = Vec::new();
        put_list(&mut bytes, &self.argv);
        put_list(&mut bytes, &self.environment);
        put_list(&mut bytes, std::slice::from_ref(&self.cwd));
        put_list(&mut bytes, self.check.as_slice());
        put_list(&mut bytes, &self.inside);
        put_list(&mut bytes, &self.sockets);
        bytes.extend(self.ignored.0.to_ne_bytes());
        bytes.extend(self.blocked.0.to_ne_bytes());
        bytes.extend(u64::from(self.umask).to_ne_bytes());
        bytes.extend(self.file_size.unwrap_or(u64::MAX).to_ne_bytes());
        bytes.extend(u64::from(self.scoped).to_ne_bytes());
        bytes.extend(u64::from(self.landlocked).to_ne_bytes());
        bytes.extend(u64::from(self.dies).to_ne_bytes());
        bytes.extend(u64::from(self.guarded).to_ne_bytes());
        bytes.extend(u64::from(self.confined).to_ne_bytes());
        bytes.extend(u64::from(self.leads).to_ne_bytes());
        bytes.extend(i64::from(self.proof).to_ne_bytes());
        for number in &self.keep {
            bytes.extend(i64::from(*number).to_ne_bytes());
        }
        let file = rustix::fs::memfd_create(
            "stockade-spec",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        )?;
        Ok(file)
    }

    /// Reads a specification that [`Self::to_file`] wrote.
    ///
    /// # Errors
    /// The file isn't one.
    pub fn from_file(file: BorrowedFd<'_>) -> io::Result<Self> {
        let size = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        let mut bytes = vec![0; size];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let offset = u64::try_from(done).unwrap_or(u64::MAX);
            match rustix::io::pread(file, rest, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        let mut reader = Reader(&bytes);
        let spec = Self {
            argv: reader.list()?,
            environment: reader.list()?,
            cwd: reader.list()?.pop().ok_or(io::ErrorKind::InvalidData)?,
            check: reader.list()?.pop(),
            inside: reader.list()?,
            sockets: reader.list()?,
            ignored: SignalSet(reader.number()?),
            blocked: SignalSet(reader.number()?),
            umask: u32::try_from(reader.number()?).map_err(|_| io::ErrorKind::InvalidData)?,
            file_size: Some(reader.number()?).filter(|&limit| limit != u64::MAX),
            scoped: reader.number()? != 0,
            landlocked: reader.number()? != 0,
            dies: reader.number()? != 0,
            guarded: reader.number()? != 0,
            confined: reader.number()? != 0,
            leads: reader.number()? != 0,
            proof: i32::try_from(reader.number()?).map_err(|_| io::ErrorKind::InvalidData)?,
            keep: {
                let mut keep = Vec::new();
                while !reader.0.is_empty() {
                    keep.push(
                        i32::try_from(reader.number()?).map_err(|_| io::ErrorKind::InvalidData)?,
                    );
                }
                keep
            },
        };
        if spec.argv.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(spec)
    }
}

/// Returns a C string of a name that came from the operating system.
///
/// # Errors
/// It has a NUL in it.
pub fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(io::Error::from)
}

fn put_list(bytes: &mut Vec<u8>, list: &[CString]) {
    bytes.extend((list.len() as u64).to_ne_bytes());
    for text in list {
        bytes.extend((text.as_bytes().len() as u64).to_ne_bytes());
        bytes.extend(text.as_bytes());
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> io::Result<&'b [u8]> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = tail;
        Ok(head)
    }

    fn number(&mut self) -> io::Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn length(&mut self) -> io::Result<usize> {
        usize::try_from(self.number()?).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn list(&mut self) -> io::Result<Vec<CString>> {
        let count = self.length()?;
        let mut list = Vec::new();
        for _ in 0..count {
            let length = self.length()?;
            list.push(CString::new(self.take(length)?)?);
        }
        Ok(list)
    }
}

/// What the helper does before the command runs; a number that travels in [`Told::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`describe` says what each is")]
pub enum HelperStep {
    ReadSpec = 1,
    Hide,
    Confined,
    ChangeDirectory,
    Fork,
    Restrict,
}

impl HelperStep {
    const ALL: [Self; 6] = [
        Self::ReadSpec,
        Self::Hide,
        Self::Confined,
        Self::ChangeDirectory,
        Self::Fork,
        Self::Restrict,
    ];

    /// Returns what the step does, as a fragment for messages.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::ReadSpec => "reading what to run",
            Self::Hide => "protecting the helper from the command",
            Self::Confined => "seeing a forbidden write fail inside the sandbox",
            Self::ChangeDirectory => "entering the working directory inside the sandbox",
            Self::Fork => "starting the command's process",
            Self::Restrict => "restricting the command's process",
        }
    }
}

/// What the helper tells the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The command runs. The number is the process id as the launcher sees the helper's namespace: unknown, so zero.
    Started,
    /// `execve` failed with this errno.
    ExecFailed(i32),
    /// The command ended with this wait status.
    Exited(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// Whether the command is stopped now; the answer to [`Ask::IsStopped`].
    IsStopped(bool),
    /// The helper couldn't do what it must; the command doesn't run.
    Failed(HelperStep, i32),
}

/// What the launcher asks of the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Send this signal to the command, unless the whole process group got it.
    Signal(i32),
    /// Send SIGTERM to everything inside.
    Terminate,
    /// Say whether the command is stopped.
    IsStopped,
    /// Let a stopped command go on.
    Continue,
}

type Message = [u8; 9];

fn pack(kind: u8, first: i32, second: i32) -> Message {
    let mut message = [0; 9];
    let (head, rest) = message.split_at_mut(1);
    head.fill(kind);
    let (a, b) = rest.split_at_mut(4);
    a.copy_from_slice(&first.to_ne_bytes());
    b.copy_from_slice(&second.to_ne_bytes());
    message
}

fn unpack(message: &Message) -> (u8, i32, i32) {
    let [kind, a0, a1, a2, a3, b0, b1, b2, b3] = *message;
    (kind, i32::from_ne_bytes([a0, a1, a2, a3]), i32::from_ne_bytes([b0, b1, b2, b3]))
}

impl Told {
    fn encode(self) -> Message {
        match self {
            Self::Started => pack(1, 0, 0),
            Self::ExecFailed(errno) => pack(2, errno, 0),
            Self::Exited(status) => pack(3, status, 0),
            Self::Stopped(signal) => pack(4, signal, 0),
            Self::IsStopped(stopped) => pack(5, i32::from(stopped), 0),
            Self::Failed(step, errno) => pack(6, step as i32, errno),
        }
    }

    fn decode(message: &Message) -> Option<Self> {
        let (kind, first, second) = unpack(message);
        Some(match kind {
            1 => Self::Started,
            2 => Self::ExecFailed(first),
            3 => Self::Exited(first),
            4 => Self::Stopped(first),
            5 => Self::IsStopped(first != 0),
            6 => Self::Failed(
                HelperStep::ALL.into_iter().find(|&step| step as i32 == first)?,
                second,
            ),
            _ => return None,
        })
    }

    /// Sends it.
    ///
    /// # Errors
    /// The launcher is gone.
    pub fn send(self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        rustix::net::send(socket, &self.encode(), SendFlags::NOSIGNAL).map(drop)
    }

    /// Receives one, `None` when the helper is gone; doesn't wait.
    ///
    /// # Errors
    /// `EAGAIN` when nothing is there.
    pub fn receive(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<Self>> {
        match receive(socket, RecvFlags::DONTWAIT)? {
            None => Ok(None),
            Some(message) => Self::decode(&message).ok_or(Errno::PROTO).map(Some),
        }
    }
}

impl Ask {
    fn encode(self) -> Message {
        match self {
            Self::Signal(signal) => pack(1, signal, 0),
            Self::Terminate => pack(2, 0, 0),
            Self::IsStopped => pack(3, 0, 0),
            Self::Continue => pack(4, 0, 0),
        }
    }

    fn decode(message: &Message) -> Option<Self> {
        let (kind, first, _) = unpack(message);
        Some(match kind {
            1 => Self::Signal(first),
            2 => Self::Terminate,
            3 => Self::IsStopped,
            4 => Self::Continue,
            _ => return None,
        })
    }

    /// Sends it.
    ///
    /// # Errors
    /// The helper is gone.
    pub fn send(self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        rustix::net::send(socket, &self.encode(), SendFlags::NOSIGNAL).map(drop)
    }

    /// Receives one, `None` when the launcher is gone; doesn't wait.
    ///
    /// # Errors
    /// `EAGAIN` when nothing is there.
    pub fn receive(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<Self>> {
        match receive(socket, RecvFlags::DONTWAIT)? {
            None => Ok(None),
            Some(message) => Self::decode(&message).ok_or(Errno::PROTO).map(Some),
        }
    }
}

fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> rustix::io::Result<Option<Message>> {
    let mut message = [0_u8; 9];
    loop {
        match rustix::net::recv(socket, &mut message, flags) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(None),
            Ok((9, _)) => return Ok(Some(message)),
            Ok(_) => return Err(Errno::PROTO),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Most descriptors that can be passed along.
pub const MOST_DESCRIPTORS: usize = 250;

/// Hands descriptors to the helper: the specification, the three standard streams, then what is kept.
///
/// # Errors
/// The helper is gone, or there are too many.
pub fn send_descriptors(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    if fds.len() > MOST_DESCRIPTORS {
        return Err(Errno::INVAL);
    }
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    rustix::net::sendmsg(socket, &[io::IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
}

/// Receives what [`send_descriptors`] sent; waits for it.
///
/// # Errors
/// The launcher is gone.
pub fn receive_descriptors(socket: BorrowedFd<'_>) -> rustix::io::Result<Vec<OwnedFd>> {
    match receive_with_descriptors(socket, &mut [0])? {
        (0, _) => Err(Errno::CONNRESET),
        (_, fds) => Ok(fds),
    }
}

/// Receives a message and what descriptors came with it; waits for it. A length of zero means that the other end is closed.
///
/// # Errors
/// As recvmsg(2).
pub fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    message: &mut [u8],
) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [io::IoSliceMut::new(message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut all = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            all.extend(fds);
        }
    }
    Ok((received.bytes, all))
}

/// Makes the two ends of a control channel, both close-on-exec.
///
/// # Errors
/// Descriptors ran out.
pub fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(io::Error::from)
}

/// Returns a borrowed view of owned descriptors.
#[must_use]
pub fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(text: &[u8]) -> CString {
        CString::new(text).unwrap()
    }

    #[test]
    fn a_specification_survives_the_way_names_that_are_no_text_included() {
        let spec = Spec {
            argv: vec![c(b"echo"), c(b""), c(b"\xff\xfe")],
            environment: vec![c(b"A=1"), c(b"B=\x80")],
            cwd: c(b"/tmp/\xe9"),
            ignored: SignalSet::default().with(1).with(64),
            blocked: SignalSet(0),
            umask: 0o27,
            file_size: Some(7),
            check: Some(c(b"/x")),
            scoped: true,
            landlocked: true,
            dies: true,
            guarded: true,
            leads: true,
            confined: true,
            proof: 30,
            inside: vec![c(b"/w")],
            sockets: vec![c(b"/s\xff")],
            keep: vec![5, 9],
        };
        let file = spec.to_file().unwrap();
        assert_eq!(Spec::from_file(file.as_fd()).unwrap(), spec);
        assert!(rustix::io::write(&file, b"x").is_err(), "the specification is sealed");
    }

    #[test]
    fn messages_round_trip() {
        let (ours, theirs) = channel().unwrap();
        for told in [
            Told::Started,
            Told::ExecFailed(2),
            Told::Exited(0x8b),
            Told::Stopped(20),
            Told::IsStopped(true),
            Told::Failed(HelperStep::Confined, 30),
        ] {
            told.send(theirs.as_fd()).unwrap();
            assert_eq!(Told::receive(ours.as_fd()).unwrap(), Some(told));
        }
        for ask in [Ask::Signal(15), Ask::Terminate, Ask::IsStopped, Ask::Continue] {
            ask.send(ours.as_fd()).unwrap();
            assert_eq!(Ask::receive(theirs.as_fd()).unwrap(), Some(ask));
        }
        assert_eq!(Told::receive(ours.as_fd()), Err(Errno::AGAIN));
        drop(theirs);
        assert_eq!(Told::receive(ours.as_fd()), Ok(None));
    }

    #[test]
    fn descriptors_arrive_in_order_and_close_on_exec() {
        let (ours, theirs) = channel().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        send_descriptors(ours.as_fd(), &[reader.as_fd(), writer.as_fd()]).unwrap();
        let got = receive_descriptors(theirs.as_fd()).unwrap();
        assert_eq!(got.len(), 2);
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(got[0].as_fd()), inode(reader.as_fd()));
        let flags = rustix::io::fcntl_getfd(&got[1]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
