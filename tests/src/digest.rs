//! Digests of trees: everything that a program can see of them, names as bytes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// Which facets of an entry a comparison looks at. Names, types, modes, owners, sizes, contents, link targets, link
/// structure and extended attributes always count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facets {
    /// Those that always count.
    Content,
    /// The modification times too.
    Modified,
    /// Modification and change times, and inode numbers: nothing at all was done to the tree.
    Untouched,
}

/// Everything that a program can see of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    /// Size and link count, which file systems choose for themselves in the case of directories.
    size_and_links: Option<(u64, u64)>,
    /// The first name, in order, of the same inode.
    same_as: Vec<u8>,
    device: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
}

/// Every entry of a tree, the top included, by its path relative to the top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest(BTreeMap<Vec<u8>, Entry>);

impl Digest {
    /// Takes the digest of everything at and below `top`.
    ///
    /// # Panics
    /// When something can't be read.
    #[must_use]
    pub fn of(top: &Path) -> Self {
        Self::try_of(top)
            .unwrap_or_else(|error| panic!("failed to digest {}: {error}", top.display()))
    }

    fn try_of(top: &Path) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        let mut pending = vec![Vec::new()];
        while let Some(relative) = pending.pop() {
            let path = if relative.is_empty() {
                top.to_owned()
            } else {
                top.join(OsStr::from_bytes(&relative))
            };
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                for child in readable(fs::read_dir(&path))?.into_iter().flatten() {
                    let mut name = relative.clone();
                    if !name.is_empty() {
                        name.push(b'/');
                    }
                    name.extend(child?.file_name().into_vec());
                    pending.push(name);
                }
            }
            entries.insert(relative, Entry::of(&path, &metadata)?);
        }
        let mut first: HashMap<u64, Vec<u8>> = HashMap::new();
        for (name, entry) in &mut entries {
            entry.same_as = first.entry(entry.inode).or_insert_with(|| name.clone()).clone();
        }
        Ok(Self(entries))
    }

    /// Returns how many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is nothing, not even a top.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Leaves out every entry for which `out` holds.
    #[must_use]
    pub fn without(mut self, out: impl Fn(&[u8]) -> bool) -> Self {
        self.0.retain(|name, _| !out(name));
        self
    }

    /// Keeps the entries for which `loose` holds, but not what they contain (size, bytes, modification time).
    #[must_use]
    pub fn without_content(mut self, loose: impl Fn(&[u8]) -> bool) -> Self {
        for (name, entry) in &mut self.0 {
            if loose(name) && entry.kind == "file" {
                entry.content.clear();
                entry.size_and_links = entry.size_and_links.map(|(_, links)| (0, links));
                entry.modified = (0, 0);
            }
        }
        self
    }

    /// Lists the differences, one a line; none means equal.
    #[must_use]
    pub fn differences(&self, other: &Self, facets: Facets) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, mine) in &self.0 {
            let shown = String::from_utf8_lossy(name);
            match other.0.get(name) {
                None => lines.push(format!("`{shown}` is missing in the second")),
                Some(theirs) => mine.differences(theirs, facets, &shown, &mut lines),
            }
        }
        for name in other.0.keys().filter(|name| !self.0.contains_key(*name)) {
            lines.push(format!("`{}` is missing in the first", String::from_utf8_lossy(name)));
        }
        lines
    }

    /// Fails unless both are equal in the given facets.
    ///
    /// # Panics
    /// With the first differences.
    pub fn assert_same(&self, other: &Self, facets: Facets, what: &str) {
        let lines = self.differences(other, facets);
        assert!(
            lines.is_empty(),
            "{what}: {} differences:\n{}",
            lines.len(),
            lines.iter().take(15).map(String::as_str).collect::<Vec<_>>().join("\n")
        );
    }
}

impl Entry {
    fn of(path: &Path, metadata: &Metadata) -> io::Result<Self> {
        let kind = metadata.file_type();
        let (kind, content) = if kind.is_file() {
            let mut hash = Sha256::new();
            let copied = File::open(path)
                .and_then(|mut file| io::copy(&mut file, &mut HashWriter(&mut hash)));
            (
                "file",
                readable(copied)?
                    .map_or_else(|| b"unreadable".to_vec(), |_| hash.finalize().to_vec()),
            )
        } else if kind.is_dir() {
            ("directory", Vec::new())
        } else if kind.is_symlink() {
            ("symlink", fs::read_link(path)?.into_os_string().into_vec())
        } else if kind.is_fifo() {
            ("fifo", Vec::new())
        } else if kind.is_socket() {
            ("socket", Vec::new())
        } else if kind.is_char_device() {
            ("character device", Vec::new())
        } else {
            ("block device", Vec::new())
        };
        Ok(Self {
            kind,
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            size_and_links: (!metadata.is_dir()).then(|| (metadata.len(), metadata.nlink())),
            same_as: Vec::new(),
            device: metadata.rdev(),
            content,
            xattrs: readable(xattrs(path))?.unwrap_or_default(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
        })
    }

    fn differences(&self, other: &Self, facets: Facets, name: &str, lines: &mut Vec<String>) {
        let mut say = |what: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
            lines.push(format!("`{name}` {what}: {a:?} and {b:?}"));
        };
        if self.kind != other.kind {
            say("type", &self.kind, &other.kind);
        }
        if self.mode != other.mode {
            say("mode", &format_args!("{:o}", self.mode), &format_args!("{:o}", other.mode));
        }
        if self.owner != other.owner {
            say("owner", &self.owner, &other.owner);
        }
        if self.size_and_links != other.size_and_links {
            say("size and links", &self.size_and_links, &other.size_and_links);
        }
        if self.same_as != other.same_as {
            let (a, b) =
                (String::from_utf8_lossy(&self.same_as), String::from_utf8_lossy(&other.same_as));
            say("hard link", &a, &b);
        }
        if self.device != other.device {
            say("device", &self.device, &other.device);
        }
        if self.content != other.content {
            say("content", &short(&self.content), &short(&other.content));
        }
        if self.xattrs != other.xattrs {
            say("extended attributes", &self.xattrs, &other.xattrs);
        }
        if facets != Facets::Content && self.modified != other.modified {
            say("modification time", &self.modified, &other.modified);
        }
        if facets == Facets::Untouched {
            if self.changed != other.changed {
                say("change time", &self.changed, &other.changed);
            }
            if self.inode != other.inode {
                say("inode", &self.inode, &other.inode);
            }
        }
    }
}

/// Returns `None` for what an ordinary user isn't let see, which is then no part of the digest; root sees everything.
fn readable<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && !rustix::process::geteuid().is_root() =>
        {
            Ok(None)
        }
        result => result.map(Some),
    }
}

/// Returns a content's digest, or a link's target, as a short text.
fn short(content: &[u8]) -> String {
    match std::str::from_utf8(content) {
        Ok(text) => text.to_owned(),
        Err(_) => content.iter().take(6).map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut all = BTreeMap::new();
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                all.insert(name.to_vec(), value);
            }
            Err(rustix::io::Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest is what most of the suite rests on: each facet must be seen to matter.
    #[test]
    fn each_change_shows() {
        type Change = fn(&Path);
        let changes: &[(&str, Change)] = &[
            ("content", |top| fs::write(top.join("a"), "b").unwrap()),
            ("size", |top| fs::write(top.join("a"), "longer").unwrap()),
            ("new name", |top| fs::write(top.join(OsStr::from_bytes(b"\xff")), "").unwrap()),
            ("lost name", |top| fs::remove_file(top.join("a")).unwrap()),
            ("mode", |top| {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(top.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
            }),
            ("link", |top| fs::hard_link(top.join("a"), top.join("d/a")).unwrap()),
            ("target", |top| {
                fs::remove_file(top.join("s")).unwrap();
                std::os::unix::fs::symlink("b", top.join("s")).unwrap();
            }),
            ("xattr", |top| {
                rustix::fs::setxattr(
                    top.join("a"),
                    "user.x",
                    b"1",
                    rustix::fs::XattrFlags::empty(),
                )
                .unwrap();
            }),
        ];
        for (name, change) in changes {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let top = dir.path();
            fs::write(top.join("a"), "a").unwrap();
            fs::create_dir(top.join("d")).unwrap();
            std::os::unix::fs::symlink("a", top.join("s")).unwrap();
            let before = Digest::of(top);
            assert_eq!(before.differences(&Digest::of(top), Facets::Untouched), [""; 0], "{name}");
            change(top);
            let lines = before.differences(&Digest::of(top), Facets::Content);
            assert!(!lines.is_empty(), "{name} doesn't show");
        }
    }

    #[test]
    fn times_count_only_where_they_are_asked_for() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::write(dir.path().join("a"), "a").unwrap();
        let before = Digest::of(dir.path());
        File::options()
            .write(true)
            .open(dir.path().join("a"))
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
        let after = Digest::of(dir.path());
        assert!(before.differences(&after, Facets::Content).is_empty());
        assert!(!before.differences(&after, Facets::Modified).is_empty());
    }
}
