//! From bubblewrap's arguments to what is served, under which rules, and what isn't enforced.

use std::ffi::OsString;
use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use stockade_policy::{Mode, fold_roots};

use super::args::{Arguments, Kind, Operation};
use crate::backend::bwrap::KEPT_CAPABILITIES;
use crate::enforcement::Gap;
use crate::resolve::servable;

/// What becomes of the binds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// What may be written and is served: directories, and single files.
    pub writable: Vec<PathBuf>,
    /// What is served: directories.
    pub regions: Vec<PathBuf>,
    /// What the rules call the workspace.
    pub root: PathBuf,
    /// Sockets and other special files that a bind names and that lie in a region; they stay the host's.
    pub kept: Vec<PathBuf>,
    /// The options for bubblewrap.
    pub words: Vec<OsString>,
    /// Something may be written that isn't served.
    pub unserved: bool,
    /// The host's devices can be used.
    pub devices: bool,
}

impl View {
    /// Decides. `cwd` is canonical, `own` are Stockade's directories.
    #[must_use]
    pub fn new(arguments: &Arguments, cwd: &Path, own: &[PathBuf]) -> Self {
        let mut view = Self::default();
        let mut regions = Vec::new();
        let mut special = Vec::new();
        for operation in &arguments.operations {
            let Kind::Bind { writable: true, devices } = operation.kind else { continue };
            // What isn't there is bubblewrap's to complain of, or to leave out.
            let Some(source) = operation.source().and_then(|path| path.canonicalize().ok()) else {
                continue;
            };
            view.devices |= devices && (source == Path::new("/") || source.starts_with("/dev"));
            match region(&source) {
                Place::Served(region) => {
                    regions.push(region);
                    view.writable.push(source);
                }
                Place::Special => special.push(source),
                Place::Devices if devices => {}
                Place::Devices | Place::Kernel => view.unserved = true,
            }
        }
        let directory = view.writable.iter().find(|path| cwd.starts_with(path) && path.is_dir());
        view.root = match directory.or_else(|| view.writable.iter().find(|path| path.is_dir())) {
            Some(root) => root.clone(),
            None => cwd.to_owned(),
        };
        // With nothing to write, what is read here is recorded all the same; the kernel refuses every write.
        if view.writable.is_empty() && servable(cwd) {
            regions.push(cwd.to_owned());
        }
        view.regions = fold_roots(&regions);
        let served = |path: &Path| view.regions.iter().any(|region| path.starts_with(region));
        view.kept = special.into_iter().filter(|path| served(path)).collect();
        let hidden: Vec<&PathBuf> = own.iter().filter(|path| !served(path)).collect();
        view.words = words(arguments, &hidden);
        view
    }

    /// Returns the mode that the binds amount to.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.writable.is_empty() && !self.unserved {
            Mode::ReadOnly
        } else {
            Mode::WorkspaceWrite
        }
    }

    /// Returns what of the contract isn't enforced, because bubblewrap's arguments don't ask for it.
    #[must_use]
    pub fn gaps(&self, arguments: &Arguments) -> Vec<Gap> {
        let root = rustix::process::geteuid().is_root();
        let all = |name| arguments.has(&["--unshare-all", name]);
        let network = all("--unshare-net") && !arguments.has(&["--share-net"]);
        let added = arguments
            .all("--cap-add")
            .any(|name| !KEPT_CAPABILITIES.iter().any(|kept| name.eq_ignore_ascii_case(kept)));
        let rows = [
            (Gap::UnservedBinds, self.unserved),
            (Gap::Unobserved, self.regions.is_empty()),
            (Gap::Refusals, true),
            (Gap::HostSockets, true),
            (Gap::AbstractSockets, !network),
            (Gap::Signals, !all("--unshare-pid")),
            (Gap::OtherProcesses, !all("--unshare-pid")),
            (Gap::StrayProcesses, !all("--unshare-pid")),
            (Gap::SharedMemory, !all("--unshare-ipc")),
            (Gap::TerminalInjection, !arguments.has(&["--new-session"])),
            (Gap::Keyrings, true),
            (Gap::Descriptors, true),
            (Gap::OtherTerminals, self.devices),
            (Gap::RawDevices, self.devices && root),
            (Gap::Capabilities, root && added && !arguments.has(&["--unshare-user"])),
        ];
        rows.into_iter().filter_map(|(gap, there)| there.then_some(gap)).collect()
    }
}

/// Returns the places in what is served that bubblewrap would make to mount on, with whether each is a directory.
#[must_use]
pub fn places_to_make(arguments: &Arguments) -> Vec<(PathBuf, bool)> {
    let mut places = Vec::new();
    for (index, operation) in arguments.operations.iter().enumerate() {
        let Some(target) = operation.target() else { continue };
        let below = arguments.operations.get(..index).unwrap_or_default();
        let covers = |one: &&Operation| one.target().is_some_and(|over| target.starts_with(over));
        let Some(bind) = below.iter().rfind(covers) else { continue };
        let Kind::Bind { writable: true, .. } = bind.kind else { continue };
        let source = bind.source().and_then(|source| source.canonicalize().ok());
        let rest = bind.target().and_then(|over| Some(target.strip_prefix(over).ok()?.to_owned()));
        let (Some(source), Some(rest)) = (source, rest) else { continue };
        let directory = match operation.kind {
            Kind::Bind { .. } => match operation.source().and_then(|path| path.metadata().ok()) {
                Some(metadata) => metadata.is_dir(),
                None => continue,
            },
            Kind::Cover => !operation.name().as_encoded_bytes().ends_with(b"bind-data"),
            Kind::Other => continue,
        };
        places.push((source.join(rest), directory));
    }
    places
}

/// How the source of a writable bind can be served.
enum Place {
    /// In this region.
    Served(PathBuf),
    /// It is a socket, or something else that is no file.
    Special,
    /// It lies among the devices.
    Devices,
    /// It is, or holds, directories of the kernel's.
    Kernel,
}

fn region(source: &Path) -> Place {
    let Ok(metadata) = source.metadata() else { return Place::Kernel };
    let is_special = |kind: FileType| {
        kind.is_socket() || kind.is_fifo() || kind.is_char_device() || kind.is_block_device()
    };
    if source.starts_with("/dev") && !servable(source) {
        return Place::Devices;
    }
    if is_special(metadata.file_type()) {
        return Place::Special;
    }
    // A single file is served in its directory, of which nothing else may be written.
    let directory = if metadata.is_dir() { Some(source) } else { source.parent() };
    match directory.filter(|directory| servable(directory)) {
        Some(directory) => Place::Served(directory.to_owned()),
        None => Place::Kernel,
    }
}

/// Returns bubblewrap's options: the caller's, with canonical sources for what is served, and with what we add.
fn words(arguments: &Arguments, hidden: &[&PathBuf]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--die-with-parent".into()];
    if rustix::process::geteuid().is_root() {
        // bubblewrap takes them in this order, so what the caller adds or drops comes on top (contract L12).
        words.extend(["--cap-drop", "ALL"].map(OsString::from));
        for name in KEPT_CAPABILITIES {
            words.extend(["--cap-add", name].map(OsString::from));
        }
    }
    for operation in &arguments.operations {
        if operation.name() == "--json-status-fd" {
            continue;
        }
        let canonical = operation.source().and_then(|source| source.canonicalize().ok());
        match (&canonical, &operation.words[..]) {
            (Some(source), [name, _, target]) => {
                words.extend([name.clone(), source.into(), target.clone()]);
            }
            _ => words.extend(operation.words.iter().cloned()),
        }
    }
    for own in hidden {
        for target in places(&arguments.operations, own) {
            words.extend(["--perms", "0000", "--tmpfs"].map(OsString::from));
            words.extend([target.clone().into(), "--remount-ro".into(), target.into()]);
        }
    }
    words
}

/// Returns where a bind shows a path of the host's.
fn shown_at(operation: &Operation, path: &Path) -> Option<PathBuf> {
    let source = operation.source()?.canonicalize().ok()?;
    let below = path.strip_prefix(source).ok()?;
    let target = operation.target()?;
    Some(if below.as_os_str().is_empty() { target } else { target.join(below) })
}

/// Returns every path at which a path of the host's is seen in the end.
fn places(operations: &[Operation], path: &Path) -> Vec<PathBuf> {
    let mut seen: Vec<PathBuf> = Vec::new();
    for operation in operations {
        if let Some(target) = operation.target() {
            seen.retain(|place| !place.starts_with(&target));
        }
        seen.extend(shown_at(operation, path));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Arguments {
        Arguments::parse(words.iter().map(OsString::from).collect()).unwrap()
    }

    fn has(words: &[OsString], wanted: &[&str]) -> bool {
        words.windows(wanted.len()).any(|window| window.iter().zip(wanted).all(|(a, b)| a == b))
    }

    #[test]
    fn every_writable_bind_is_served_and_named_where_it_is_not() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        for directory in ["w", "w/sub", "h"] {
            std::fs::create_dir(base.join(directory)).unwrap();
        }
        std::fs::write(base.join("h/file"), "").unwrap();
        std::os::unix::fs::symlink(base.join("w"), base.join("link")).unwrap();
        let socket = base.join("w/socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let text = |path: &str| base.join(path).to_str().unwrap().to_owned();
        let (link, file, missing) = (text("link"), text("h/file"), text("missing"));
        let (inside, socket) = (text("w/sub"), text("w/socket"));
        let list = arguments(&[
            "--ro-bind",
            "/",
            "/",
            "--dev-bind",
            "/dev",
            "/dev",
            "--bind",
            &link,
            "/x",
            "--bind",
            &file,
            &file,
            "--bind-try",
            &missing,
            "/y",
            "--bind",
            &socket,
            &socket,
        ]);
        let view = View::new(&list, &base.join("w/sub"), &[]);
        assert_eq!(view.writable, [base.join("w"), base.join("h/file")]);
        assert_eq!(view.regions, [base.join("w"), base.join("h")]);
        assert_eq!((view.root.clone(), view.unserved, view.devices), (base.join("w"), false, true));
        assert_eq!(view.kept, [base.join("w/socket")]);
        assert!(has(&view.words, &["--bind", &text("w"), "/x"]), "{:?}", view.words);
        let wide = arguments(&["--bind", "/", "/", "--", "true"]);
        let view = View::new(&wide, &base.join("w"), &[]);
        assert!(view.unserved && view.gaps(&wide).contains(&Gap::UnservedBinds));
        assert_eq!(view.regions, [base.join("w")]);
        let nested = arguments(&["--bind", &inside, &inside]);
        assert_eq!(View::new(&nested, &base, &[]).root, base.join("w/sub"));
    }

    #[test]
    fn without_anything_to_write_the_directory_is_served_and_own_directories_are_hidden() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (here, own) = (base.join("w"), base.join("state"));
        std::fs::create_dir(&here).unwrap();
        std::fs::create_dir(&own).unwrap();
        let own_text = own.to_str().unwrap();
        let list = arguments(&["--ro-bind", "/", "/", "--dev", "/dev"]);
        let view = View::new(&list, &here, std::slice::from_ref(&own));
        assert_eq!(view.regions, std::slice::from_ref(&here));
        assert!(has(&view.words, &["--ro-bind", "/", "/", "--dev"]));
        assert!(has(
            &view.words,
            &["--perms", "0000", "--tmpfs", own_text, "--remount-ro", own_text]
        ));
        // Covered by something else, it needs no cover.
        let covered = arguments(&["--ro-bind", "/", "/", "--tmpfs", base.to_str().unwrap()]);
        let view = View::new(&covered, &here, std::slice::from_ref(&own));
        assert!(!has(&view.words, &["--tmpfs", own_text]), "{:?}", view.words);
    }
}
