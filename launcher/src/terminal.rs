//! A terminal of the run's own: a pseudo-terminal whose other end the launcher relays to its own streams (contract L7).
//!
//! The command is the leader of the terminal's session, so job control, Ctrl-C and Ctrl-Z are the kernel's work inside, and nothing of
//! the caller's terminal is in reach of the command. The caller's terminal, where there is one, is raw meanwhile.
//!
//! Invariants:
//! - I1: the caller's terminal is put back as it was, however the run ends; only the end of this process by SIGKILL leaves it.
//! - I2: nothing that the command wrote is lost: the relay ends when the last process inside has closed the terminal.
//! - I3: the flags of the caller's descriptors, which others share, are never changed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, Winsize, isatty, tcgetattr, tcgetpgrp,
    tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// The size of a terminal that nobody sees.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// A pseudo-terminal that nobody uses yet.
#[derive(Debug)]
pub struct Pty {
    master: OwnedFd,
    slave: OwnedFd,
    path: PathBuf,
}

impl Pty {
    /// Opens one. It is set as the caller's terminal is, where one of the standard streams is one.
    ///
    /// # Errors
    /// There are no more of them, or `/dev/ptmx` is missing.
    pub fn open() -> io::Result<Self> {
        let master =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(
            rustix::pty::ptsname(&master, Vec::new())?.into_bytes(),
        ));
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(&path, flags, rustix::fs::Mode::empty())?;
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let caller = streams.into_iter().find(|stream| isatty(stream));
        let size =
            caller.and_then(|caller| tcgetwinsize(caller).ok()).filter(|size| size.ws_col > 0);
        tcsetwinsize(&slave, size.unwrap_or(SIZE))?;
        if let Some(caller) = caller {
            tcsetattr(&slave, OptionalActions::Now, &tcgetattr(caller)?)?;
        }
        Ok(Self { master, slave, path })
    }

    /// Returns the name that the host knows it by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins to relay to the caller's streams, and returns the command's three.
    ///
    /// # Errors
    /// Descriptors or threads ran out, or the caller's terminal can't be set.
    pub fn relay(self, [input, output, _]: [OwnedFd; 3]) -> io::Result<(Relay, [OwnedFd; 3])> {
        let streams = [self.slave.try_clone()?, self.slave.try_clone()?, self.slave];
        let raw = Raw::of(input.try_clone()?)?;
        let seen = output.try_clone()?;
        let (stop, stopped) = io::pipe()?;
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(body)
        };
        let keys = self.master.try_clone()?;
        let sizes = self.master.try_clone()?;
        spawn("keys", Box::new(move || type_in(input, keys, &stop)))?;
        let master = self.master;
        let screen = spawn("screen", Box::new(move || show(master, output)))?;
        Ok((Relay { raw, seen, sizes, screen: Some(screen), stopped }, streams))
    }
}

/// A relay at work. Dropping it puts the caller's terminal back.
#[derive(Debug)]
pub struct Relay {
    raw: Raw,
    seen: OwnedFd,
    sizes: OwnedFd,
    screen: Option<JoinHandle<()>>,
    /// Closing it ends the thread that waits for keys.
    #[expect(dead_code, reason = "it is there to be closed")]
    stopped: io::PipeWriter,
}

impl Relay {
    /// Gives the terminal the size of the caller's.
    pub fn resize(&self) {
        let caller = [self.raw.terminal.as_fd(), self.seen.as_fd()];
        let size = caller.into_iter().find_map(|caller| tcgetwinsize(caller).ok());
        if let Some(size) = size {
            // The kernel tells the programs on it.
            let _gone = tcsetwinsize(&self.sizes, size);
        }
    }

    /// Puts the caller's terminal back while the run is stopped.
    pub fn pause(&self) {
        self.raw.restore();
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&self) {
        self.raw.set();
        self.resize();
    }

    /// Tells whether everything that was written on the terminal is relayed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.screen.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// The caller's terminal, raw until this is dropped; or whatever else the input is.
#[derive(Debug)]
struct Raw {
    terminal: OwnedFd,
    before: Option<Termios>,
}

impl Raw {
    fn of(input: OwnedFd) -> io::Result<Self> {
        let before = if isatty(&input) { Some(tcgetattr(&input)?) } else { None };
        let raw = Self { terminal: input, before };
        raw.set();
        Ok(raw)
    }

    fn set(&self) {
        if let Some(before) = &self.before {
            let mut raw = before.clone();
            raw.make_raw();
            // From the background, this stops us until we are brought to the foreground, as any program that does it.
            let _gone = tcsetattr(&self.terminal, OptionalActions::Drain, &raw);
        }
    }

    fn restore(&self) {
        let ours =
            || tcgetpgrp(&self.terminal).is_ok_and(|group| group == rustix::process::getpgrp());
        if let Some(before) = &self.before
            && ours()
        {
            // Without a drain, which a caller that reads no more would hold up for ever.
            let _gone = tcsetattr(&self.terminal, OptionalActions::Now, before);
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Copies what the command shows until nobody holds its end any more, which reads as `EIO`.
fn show(master: OwnedFd, output: OwnedFd) {
    let (mut master, mut output) = (std::fs::File::from(master), std::fs::File::from(output));
    let mut buffer = [0; 8192];
    let mut wanted = true;
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        // A reader that went away wants no more, but the command needn't stop for it.
        wanted = wanted && output.write_all(buffer.get(..count).unwrap_or_default()).is_ok();
    }
}

/// Copies what is typed until there is no more of it, or the run is over.
fn type_in(input: OwnedFd, master: OwnedFd, stop: &io::PipeReader) {
    let (mut input, mut master) = (std::fs::File::from(input), std::fs::File::from(master));
    let mut buffer = [0; 4096];
    let mut last = b'\n';
    loop {
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        let [keys, stopped] = fds.map(|fd| fd.revents());
        if !stopped.is_empty() {
            return;
        }
        if keys.is_empty() {
            continue;
        }
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                let typed = buffer.get(..count).unwrap_or_default();
                last = typed.last().copied().unwrap_or(last);
                if master.write_all(typed).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The caller's terminal hung up.
            Err(_) => break,
        }
    }
    end_of_input(&mut master, last);
}

/// Says that there is no more input, as a person does who types Ctrl-D: twice behind a line that isn't complete.
fn end_of_input(master: &mut std::fs::File, last: u8) {
    let Ok(termios) = tcgetattr(&*master) else { return };
    let end = termios.special_codes[SpecialCodeIndex::VEOF];
    let again = last != b'\n' && termios.local_modes.contains(LocalModes::ICANON);
    let _gone = master.write_all(&vec![end; 1 + usize::from(again)]);
}
