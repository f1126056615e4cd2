//! From what was asked to the complete [`Policy`] of one call (contract P2–P6).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stockade_policy::{
    Guard, Hardlinks, Mode, ModeSource, Network, ObserveLevel, Policy, Publish, fold_roots,
};

use crate::config::real;
use crate::error::{Code, Failure};
use crate::worktree;

/// What a caller asks for. Paths may be relative to the working directory.
#[derive(Clone, Debug)]
pub struct Request {
    /// The mode and where it comes from.
    pub mode: (Mode, ModeSource),
    /// The directory that the run works in.
    pub workspace: PathBuf,
    /// The session, if there is one already.
    pub session: Option<String>,
    /// More directories, or single files, that may be written; or globs of names in a directory that is there.
    pub writable: Vec<PathBuf>,
    /// The same, left out where they don't exist.
    pub writable_if_there: Vec<PathBuf>,
    /// Files of the operator's that can't be written, whatever else says so.
    pub protected: Vec<PathBuf>,
    /// Directories that are served besides, those that don't exist left out; `/` stands for those below it.
    pub observed: Vec<PathBuf>,
    /// See [`Policy::deny_read`].
    pub deny_read: Vec<String>,
    /// See [`Policy::deny_write`].
    pub deny_write: Vec<String>,
    /// See [`Policy::allow_write`].
    pub allow_write: Vec<String>,
    /// See [`Guard`].
    pub guard: Guard,
    /// See [`Publish`].
    pub publish: Publish,
    /// See [`Policy::publish_direct`].
    pub publish_direct: Vec<String>,
    /// See [`Policy::durable`].
    pub durable: bool,
    /// See [`Network`].
    pub network: Network,
    /// See [`Hardlinks`].
    pub hardlinks: Hardlinks,
    /// See [`ObserveLevel`].
    pub observe: ObserveLevel,
}

impl Request {
    /// Asks for a mode in a workspace, everything else at its default.
    #[must_use]
    pub fn new(mode: Mode, workspace: PathBuf) -> Self {
        Self {
            mode: (mode, ModeSource::Default),
            workspace,
            session: None,
            writable: Vec::new(),
            writable_if_there: Vec::new(),
            protected: Vec::new(),
            observed: Vec::new(),
            deny_read: Vec::new(),
            deny_write: Vec::new(),
            allow_write: Vec::new(),
            guard: Guard::default(),
            publish: Publish::default(),
            publish_direct: Vec::new(),
            durable: false,
            network: Network::default(),
            hardlinks: Hardlinks::default(),
            observe: ObserveLevel::default(),
        }
    }
}

/// What the platform adds.
#[derive(Clone, Debug)]
pub struct Places {
    /// `/tmp` and the platform's directory for temporary files; those that don't exist are left out.
    pub temporary: Vec<PathBuf>,
    /// Directories of Stockade's own that the command must not see.
    pub own: Vec<PathBuf>,
}

impl Places {
    /// Looks at the environment; `own` are Stockade's directories.
    #[must_use]
    pub fn of_this_machine(own: Vec<PathBuf>) -> Self {
        let named = std::env::temp_dir();
        let mut temporary = vec![PathBuf::from("/tmp")];
        temporary.extend(Some(named).filter(|named| is_for_temporary_files(named)));
        Self { temporary, own }
    }
}

/// Returns the platform's directory for temporary files where it is taken for none.
#[must_use]
pub fn other_temporary() -> Option<PathBuf> {
    let named = std::env::temp_dir();
    (named.is_dir() && !is_for_temporary_files(&named)).then_some(named)
}

/// Tells whether a directory can be one for temporary files: everybody's (with the sticky bit), or one of the caller's own, which
/// for root is one that nobody else can look into or that lies below everybody's. A variable doesn't make `/etc` writable, nor
/// the home; `--writable` does.
fn is_for_temporary_files(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(directory) = fs::canonicalize(directory) else { return false };
    let Ok(metadata) = fs::metadata(&directory) else { return false };
    let user = rustix::process::geteuid();
    let private = metadata.mode() & 0o077 == 0;
    let home = std::env::var_os("HOME").and_then(|home| fs::canonicalize(home).ok());
    let above_home = home.is_some_and(|home| home.starts_with(&directory));
    let is_everybodys = |metadata: &fs::Metadata| metadata.mode() & 0o1002 == 0o1002;
    let below = || {
        let mut above = directory.ancestors().skip(1);
        above.any(|above| fs::metadata(above).is_ok_and(|metadata| is_everybodys(&metadata)))
    };
    let own = metadata.uid() == user.as_raw() && (!user.is_root() || private || below());
    is_everybodys(&metadata) || own && !above_home
}

/// Resolves a request: every path canonical, every root a directory that can be confined.
///
/// # Errors
/// A path doesn't exist, isn't a directory, or can't be made a root.
pub fn resolve(request: &Request, places: &Places) -> Result<Policy, Failure> {
    let root = canonical_directory(&request.workspace, "workspace", "--workspace")?;
    let mut policy = Policy::new(request.mode.0, root);
    policy.source = request.mode.1;
    policy.session.clone_from(&request.session);
    for path in &request.writable {
        match names_in(path)? {
            Some((place, glob)) => {
                let place = canonical_directory(&place, "directory of", "--writable")?;
                policy.extra_names.push(names(&place, &glob)?);
            }
            None => policy.extra_roots.push(canonical(path, "writable path", "--writable")?),
        }
    }
    // Best effort: what isn't there is no root.
    for path in &request.writable_if_there {
        let there = |path: &Path| fs::canonicalize(path).ok();
        match names_in(path)? {
            Some((place, glob)) => {
                if let Some(place) = there(&place).filter(|place| place.is_dir()) {
                    policy.extra_names.push(names(&place, &glob)?);
                }
            }
            None => {
                let there = there(path).filter(|path| path.is_dir() || path.is_file());
                policy.extra_roots.extend(there);
            }
        }
    }
    let temporary = places.temporary.iter().filter_map(|path| fs::canonicalize(path).ok());
    let own = |path: &PathBuf| places.own.iter().any(|own| path.starts_with(own));
    policy.extra_roots.extend(temporary.filter(|path| path.is_dir() && !own(path)));
    policy.observed_roots = request.observed.iter().flat_map(|path| observed(path)).collect();
    policy.deny_read.clone_from(&request.deny_read);
    policy.deny_write.clone_from(&request.deny_write);
    policy.allow_write.clone_from(&request.allow_write);
    policy.guard = request.guard;
    policy.publish = request.publish;
    policy.publish_direct.clone_from(&request.publish_direct);
    policy.durable = request.durable;
    policy.network = request.network;
    policy.hardlinks = request.hardlinks;
    policy.observe = request.observe;
    policy.own_paths.clone_from(&places.own);
    for path in request.protected.iter().filter_map(|path| std::path::absolute(path).ok()) {
        policy.own_paths.extend([real(&path), path]);
    }
    worktree::share(&mut policy);
    policy.add_aliases(&|path| fs::canonicalize(path).ok());
    if policy.mode != Mode::DangerFullAccess {
        // Outside of the regions they are hidden by a mount of their own.
        policy.hidden_paths.clone_from(&places.own);
        for region in regions(&policy) {
            if let Some(own) = places.own.iter().find(|own| region.starts_with(own)) {
                return Err(invalid_region(
                    &region,
                    format!("it is or lies in a directory of Stockade's own, `{}`", own.display()),
                ));
            }
        }
    }
    for region in regions(&policy) {
        check_region(&region)?;
    }
    Ok(policy)
}

/// Returns the canonical form of a directory to work in.
///
/// # Errors
/// It isn't a directory, or can't be confined.
pub fn workspace(path: &Path) -> Result<PathBuf, Failure> {
    let root = canonical_directory(path, "workspace", "--workspace")?;
    check_region(&root)?;
    Ok(root)
}

/// Returns the directories that the file system serves, folded.
///
/// These are every writable root and the workspace, so that what is written there is decided and recorded. In
/// `read-only` the temporary directories are served too, though nothing in them may be written: a socket can't be
/// reached through our file system, and that is where many are. Directories that a `deny_read` rule outside of all of
/// them is about are served as well, so that the rule holds for files made later and every attempt is recorded.
#[must_use]
pub fn regions(policy: &Policy) -> Vec<PathBuf> {
    let mut all = vec![policy.root.clone()];
    if policy.mode != Mode::DangerFullAccess {
        all.extend(policy.extra_roots.iter().map(|root| match root.parent() {
            // A single file is served in its directory, of which nothing else may be written.
            Some(parent) if root.is_file() => parent.to_owned(),
            Some(_) | None => root.clone(),
        }));
    }
    if policy.mode == Mode::WorkspaceWrite {
        all.extend(policy.writable_names().iter().filter_map(|name| place_of(name)));
    }
    all.extend(policy.observed_roots.iter().cloned());
    all.extend(policy.deny_read.iter().filter_map(|pattern| place_of(pattern)));
    fold_roots(&all)
}

/// Tells whether a rule denies reading something that isn't there, and that no region can hold if it comes to be: the
/// command can't make it, but could read what the host makes.
#[must_use]
pub fn denies_what_may_come(policy: &Policy) -> bool {
    policy.deny_read.iter().any(|pattern| comes_below_the_top(pattern))
}

/// Tells whether a pattern is about one path, of which nothing exists but `/`.
fn comes_below_the_top(pattern: &str) -> bool {
    let path = Path::new(pattern);
    let glob = pattern.bytes().any(|byte| b"*?[{\\".contains(&byte));
    path.is_absolute()
        && !glob
        && path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok())
            == Some(Path::new("/"))
        && path != Path::new("/")
}

/// Returns the directories to serve where one is to be observed: itself, or those below it where it is `/`. The kernel's
/// can't be served, `/run` is the run's own, and what the caller can't look into isn't reached by the command either.
fn observed(path: &Path) -> Vec<PathBuf> {
    let usable = |path: &PathBuf| {
        let outside = KERNEL.iter().chain(&["/run"]).all(|kernel| path != Path::new(kernel));
        let access = rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK;
        outside && path.is_dir() && rustix::fs::access(path, access).is_ok()
    };
    let Ok(path) = fs::canonicalize(path) else { return Vec::new() };
    if path != Path::new("/") {
        return Some(path).filter(usable).into_iter().collect();
    }
    let entries = fs::read_dir(&path).into_iter().flatten().flatten();
    // What a link leads to is met under its own name.
    let real = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut found: Vec<PathBuf> = real.map(|entry| entry.path()).filter(usable).collect();
    found.sort();
    found
}

/// Returns the directory that a pattern is about, for one that starts at `/`: the longest part without glob characters
/// that is a directory.
fn place_of(pattern: &str) -> Option<PathBuf> {
    let whole = Path::new(pattern);
    if !whole.is_absolute() || comes_below_the_top(pattern) {
        return None;
    }
    let plain: PathBuf = if whole.exists() {
        whole.to_owned()
    } else {
        whole
            .components()
            .take_while(|part| {
                !part.as_os_str().as_encoded_bytes().iter().any(|byte| b"*?[{\\".contains(byte))
            })
            .collect()
    };
    let mut place = fs::canonicalize(plain.ancestors().find(|path| path.exists())?).ok()?;
    if !place.is_dir() {
        place.pop();
    }
    Some(place)
}

/// Takes a writable path apart that is a glob: a directory, and what the names in it are like. A path that exists means
/// itself.
fn names_in(path: &Path) -> Result<Option<(PathBuf, String)>, Failure> {
    let globs = |name: &OsStr| name.as_encoded_bytes().iter().any(|byte| b"*?[{".contains(byte));
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if !globs(absolute.as_os_str()) || absolute.symlink_metadata().is_ok() {
        return Ok(None);
    }
    let invalid = |why: &str| {
        let what = format!("can't use the writable path `{}`: {why}", path.display());
        Err(Failure::new(Code::PolicyInvalid, what).help("name a directory, or DIRECTORY/GLOB"))
    };
    let Some((place, name)) = absolute.parent().zip(absolute.file_name()) else { return Ok(None) };
    if !globs(name) || (globs(place.as_os_str()) && place.symlink_metadata().is_err()) {
        return invalid("only its last part may be a glob");
    }
    match name.to_str() {
        Some("**") => invalid("`**` is the directory itself"),
        Some(glob) => Ok(Some((place.to_owned(), glob.to_owned()))),
        None => invalid("the glob isn't UTF-8"),
    }
}

/// Returns the glob for names in a canonical directory.
fn names(place: &Path, glob: &str) -> Result<String, Failure> {
    let place = place.to_str().ok_or_else(|| {
        let what = format!("can't use globs in `{}`: its name isn't UTF-8", place.display());
        Failure::new(Code::PolicyInvalid, what).help("name a directory that may be written")
    })?;
    Ok(format!("{}/{glob}", escape_glob(place.trim_end_matches('/'))))
}

/// Makes a path stand for itself alone where a glob is expected.
pub(crate) fn escape_glob(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for character in path.chars() {
        if "*?[]{}!\\".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn canonical_directory(path: &Path, what: &str, option: &str) -> Result<PathBuf, Failure> {
    let found = canonical(path, what, option)?;
    if !found.is_dir() {
        return Err(unusable(path, what, io::ErrorKind::NotADirectory.into())
            .help(format!("name the directory that holds it with {option}")));
    }
    Ok(found)
}

/// Returns the canonical form of a directory or a regular file.
fn canonical(path: &Path, what: &str, option: &str) -> Result<PathBuf, Failure> {
    let found = fs::canonicalize(path).map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        let failure = unusable(path, what, error);
        if missing {
            failure.help(format!("create it first, or name another with {option}"))
        } else {
            failure
        }
    })?;
    if found.is_dir() || found.is_file() {
        return Ok(found);
    }
    Err(unusable(path, what, io::Error::other("it is neither a directory nor a regular file")))
}

fn unusable(path: &Path, what: &str, error: io::Error) -> Failure {
    Failure::new(Code::PolicyInvalid, format!("can't use the {what} `{}`", path.display()))
        .because(error)
}

/// Directories of the kernel's, which can neither lie in a region nor contain one.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Tells whether the file system can serve a directory.
pub(crate) fn servable(directory: &Path) -> bool {
    check_region(directory).is_ok()
}

fn invalid_region(region: &Path, why: String) -> Failure {
    Failure::new(
        Code::PolicyInvalid,
        format!("`{}` can't be a workspace or a writable root: {why}", region.display()),
    )
    .help("choose a directory with --workspace DIR or --writable DIR")
}

fn check_region(region: &Path) -> Result<(), Failure> {
    let invalid = |why: String| Err(invalid_region(region, why));
    // The one place below /dev that ordinary programs write files to.
    if region == Path::new("/dev/shm") {
        return Ok(());
    }
    for kernel in KERNEL.map(Path::new) {
        if kernel.starts_with(region) {
            return invalid(format!("it contains `{}`", kernel.display()));
        }
        if region.starts_with(kernel) {
            return invalid(format!("it lies in `{}`", kernel.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(temporary: &[&Path]) -> Places {
        Places { temporary: temporary.iter().map(|path| path.to_path_buf()).collect(), own: vec![] }
    }

    #[test]
    fn roots_are_canonical_and_folded_and_missing_temporary_directories_are_none() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        for directory in ["w", "t", "t/inner", "x"] {
            fs::create_dir(base.join(directory)).unwrap();
        }
        std::os::unix::fs::symlink(base.join("t"), base.join("tmp")).unwrap();
        let mut request = Request::new(Mode::WorkspaceWrite, base.join("x/../w"));
        request.writable = vec![base.join("t/inner")];
        let policy =
            resolve(&request, &places(&[&base.join("tmp"), &base.join("missing")])).unwrap();
        assert_eq!(policy.root, base.join("w"));
        assert_eq!(policy.writable_roots(), [base.join("w"), base.join("t")]);
        assert_eq!(regions(&policy), policy.writable_roots());
        request.mode.0 = Mode::ReadOnly;
        request.writable.clear();
        let policy = resolve(&request, &places(&[&base.join("tmp")])).unwrap();
        assert!(policy.writable_roots().is_empty());
        assert_eq!(regions(&policy), [base.join("w"), base.join("t")]);
        request.mode.0 = Mode::DangerFullAccess;
        let policy = resolve(&request, &places(&[&base.join("tmp")])).unwrap();
        assert_eq!(regions(&policy), [base.join("w")]);
    }

    #[test]
    fn what_a_deny_rule_outside_is_about_is_served() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        for directory in ["w", "home/.ssh", "home/app/[id]"] {
            fs::create_dir_all(base.join(directory)).unwrap();
        }
        fs::write(base.join("home/.netrc"), "").unwrap();
        let at = |path: &str| base.join(path).to_str().unwrap().to_owned();
        let rows = [
            (at("home/.ssh"), Some(base.join("home/.ssh"))),
            (at("home/.netrc"), Some(base.join("home"))),
            (at("home/missing/later"), Some(base.join("home"))),
            (at("home/**/*.pem"), Some(base.join("home"))),
            (at("home/app/[id]"), Some(base.join("home/app/[id]"))),
            (at("w/.env"), None),
            (".env".to_owned(), None),
        ];
        for (pattern, place) in rows {
            let mut request = Request::new(Mode::WorkspaceWrite, base.join("w"));
            request.deny_read = vec![pattern.clone()];
            let policy = resolve(&request, &places(&[])).unwrap();
            let expected: Vec<_> = std::iter::once(base.join("w")).chain(place).collect();
            assert_eq!(regions(&policy), expected, "{pattern}");
        }
    }

    #[test]
    fn the_kernels_directories_are_no_regions() {
        for path in ["/", "/proc", "/sys/fs", "/dev"] {
            let failure = resolve(&Request::new(Mode::WorkspaceWrite, path.into()), &places(&[]))
                .unwrap_err();
            assert_eq!(failure.code(), Code::PolicyInvalid, "{path}");
        }
        let base = tempfile::tempdir().unwrap();
        let request = Request::new(Mode::WorkspaceWrite, base.path().to_owned());
        let failure = resolve(&request, &places(&[Path::new("/")])).unwrap_err();
        assert_eq!(failure.code(), Code::PolicyInvalid);
        assert!(resolve(&request, &places(&[Path::new("/dev/shm")])).is_ok());
    }

    #[test]
    fn own_directories_are_hidden_whatever_their_names_look_like() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        let own = base.join("st*te[1]{x}!");
        fs::create_dir(&own).unwrap();
        let request = Request::new(Mode::WorkspaceWrite, base.clone());
        let places = Places { temporary: vec![], own: vec![own.clone()] };
        let policy = resolve(&request, &places).unwrap();
        let rules = stockade_policy::Rules::compile(&policy).unwrap();
        assert!(rules.zone(&own.join("log.db")).read.is_some());
        assert!(rules.zone(&base.join("stxte1x")).read.is_none());
    }

    #[test]
    fn a_file_is_no_workspace() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let request = Request::new(Mode::ReadOnly, file.path().to_owned());
        assert_eq!(resolve(&request, &places(&[])).unwrap_err().code(), Code::PolicyInvalid);
    }
}
