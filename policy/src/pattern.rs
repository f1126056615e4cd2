//! Lists of paths and globs, compiled for asking once per name that comes into view (contract P10).
//!
//! | written | means |
//! |---|---|
//! | `/a/b` | that path and everything below it |
//! | `/a/*.key` | the paths that match, and everything below them |
//! | `a/b`, `./a`, `a/*.key` | the same, below the session's root |
//! | `.env`, `*.pem`, `secrets/` | `**/…`: a name at any depth below the root or a writable root |
//! | `**/a/b` | likewise, with several components |
//!
//! Invariants:
//! - I1: a miss allocates nothing.
//! - I2: a pattern with glob characters also means the path that is spelled like that (`app/[id]`), so a deny rule
//!   never fails because of how a name is spelled.
//! - I3: names above or equal to the session's root are never matched by a pattern without an anchor: a workspace
//!   called `build` isn't refused by `build`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{Denial, PolicyError, Rule};

/// Returns the components of a path, without empty ones and `.`.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Returns what follows `prefix` in `path` (without the separator), if `path` is `prefix` or lies below it.
pub(crate) fn strip<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix.strip_suffix(b"/").unwrap_or(prefix))?;
    match rest.split_first() {
        None => Some(rest),
        Some((b'/', rest)) => Some(rest),
        Some(_) => None,
    }
}

/// Where patterns without an anchor begin to match.
#[derive(Clone, Debug)]
pub(crate) struct Scopes {
    root: PathBuf,
    roots: Vec<PathBuf>,
}

impl Scopes {
    /// `roots` are folded: none lies below another.
    pub(crate) fn new(root: PathBuf, roots: Vec<PathBuf>) -> Self {
        Self { root, roots }
    }

    /// Returns the part of `path` below the root or the writable root that holds it, without any name that the
    /// session's root itself is made of (I3). `None` outside all of them.
    pub(crate) fn below<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = self.roots.iter().find_map(|root| strip(path, root.as_os_str().as_bytes()))?;
        let shared = shared_prefix(path, self.root.as_os_str().as_bytes());
        let start = shared.max(path.len() - rest.len()).min(path.len());
        Some(path.get(start..).unwrap_or_default())
    }

    /// Returns the part of `path` below the session's root.
    pub(crate) fn below_root<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        strip(path, self.root.as_os_str().as_bytes())
    }
}

/// Returns the length of the longest run of whole components that both paths begin with, separator included.
fn shared_prefix(path: &[u8], root: &[u8]) -> usize {
    let mut boundary = 0;
    for (index, (a, b)) in path.iter().zip(root).enumerate() {
        if a != b {
            return boundary;
        }
        if *a == b'/' {
            boundary = index + 1;
        }
    }
    match (path.len(), root.len()) {
        (a, b) if a == b => a,
        (a, b) if a > b && path.get(b) == Some(&b'/') => b + 1,
        (a, b) if b > a && root.get(a) == Some(&b'/') => a,
        _ => boundary,
    }
}

/// Exact paths as a tree of components.
#[derive(Clone, Debug, Default)]
struct Trie {
    children: HashMap<Box<[u8]>, Trie>,
    rule: Option<usize>,
}

impl Trie {
    fn insert(&mut self, path: &[u8], rule: usize) {
        let mut node = self;
        for part in components(path) {
            node = node.children.entry(part.into()).or_default();
        }
        node.rule.get_or_insert(rule);
    }

    /// Returns the rule of the path or of its nearest marked ancestor.
    fn covering(&self, path: &[u8]) -> Option<usize> {
        let mut node = self;
        if node.rule.is_some() {
            return node.rule;
        }
        for part in components(path) {
            node = node.children.get(part)?;
            if node.rule.is_some() {
                return node.rule;
            }
        }
        None
    }

    /// Returns the rule of some marked path that lies strictly below `path`.
    fn within(&self, path: &[u8]) -> Option<usize> {
        let mut node = self;
        for part in components(path) {
            node = node.children.get(part)?;
        }
        node.children.values().filter_map(Self::first).min()
    }

    fn first(&self) -> Option<usize> {
        self.rule.into_iter().chain(self.children.values().filter_map(Self::first)).min()
    }

    fn paths(&self, at: &mut PathBuf, found: &mut Vec<(PathBuf, usize)>) {
        if let Some(rule) = self.rule {
            found.push((at.clone(), rule));
        }
        for (name, child) in &self.children {
            at.push(OsStr::from_bytes(name));
            child.paths(at, found);
            at.pop();
        }
    }
}

/// Globs, each with the index of the rule it belongs to.
#[derive(Clone, Debug, Default)]
struct Globs {
    set: GlobSet,
    rules: Vec<usize>,
}

impl Globs {
    fn hit(&self, text: &[u8]) -> Option<usize> {
        if self.rules.is_empty() {
            return None;
        }
        let candidate = Candidate::from_bytes(text);
        if !self.set.is_match_candidate(&candidate) {
            return None;
        }
        let hits = self.set.matches_candidate(&candidate);
        hits.into_iter().filter_map(|index| self.rules.get(index)).min().copied()
    }
}

/// A list of globs being collected.
#[derive(Default)]
struct GlobList {
    globs: Vec<Glob>,
    rules: Vec<usize>,
}

impl GlobList {
    fn push(&mut self, pattern: &str, text: &str, rule: usize) -> Result<(), PolicyError> {
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|source| PolicyError::Glob { pattern: pattern.to_owned(), source })?;
        self.globs.push(glob);
        self.rules.push(rule);
        Ok(())
    }

    /// Adds a glob and everything below what it matches.
    fn push_tree(&mut self, pattern: &str, text: &str, rule: usize) -> Result<(), PolicyError> {
        self.push(pattern, text, rule)?;
        self.push(pattern, &format!("{text}/**"), rule)
    }

    /// Adds the globs of the directories that may hold matches further down.
    fn push_parents(&mut self, pattern: &str, text: &str, rule: usize) -> Result<(), PolicyError> {
        for (end, _) in text.match_indices('/') {
            let Some(parent) = text.get(..end) else { continue };
            // A leading `**` leads through every directory, and whichever is renamed the names below it go on matching.
            if components(parent.as_bytes()).all(|part| part == b"**") {
                continue;
            }
            if self.push(pattern, parent, rule).is_err() {
                // A separator inside braces: every directory from the brace on may lead to a match.
                let plain = parent.find('{').and_then(|at| parent.get(..at)).unwrap_or_default();
                return self
                    .push(pattern, &format!("{plain}*/**"), rule)
                    .and_then(|()| self.push(pattern, &format!("{plain}*"), rule));
            }
        }
        Ok(())
    }

    fn build(self, patterns: &[String]) -> Result<Globs, PolicyError> {
        let mut set = GlobSetBuilder::new();
        for glob in self.globs {
            set.add(glob);
        }
        let set = set
            .build()
            .map_err(|source| PolicyError::Glob { pattern: patterns.join(", "), source })?;
        Ok(Globs { set, rules: self.rules })
    }
}

/// A list of exact paths, directories and globs, each with the refusal it makes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathRules {
    /// Exact absolute paths.
    exact: Trie,
    /// Names at any depth.
    names: HashMap<Box<[u8]>, usize>,
    /// Globs for one name at any depth.
    name_globs: Globs,
    /// Globs of several names at any depth, matched on what lies below the scope.
    deep_globs: Globs,
    /// Globs below the session's root.
    root_globs: Globs,
    /// Globs of absolute paths.
    absolute_globs: Globs,
    /// Directories whose renaming would carry names out of `root_globs`, `absolute_globs` and `deep_globs`.
    root_parents: Globs,
    absolute_parents: Globs,
    deep_parents: Globs,
    denials: Vec<Arc<Denial>>,
}

/// What one pattern means.
enum Meaning {
    Absolute(String),
    Root(String),
    Name(String),
    Deep(String),
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{', '\\'])
}

/// Splits a pattern into its anchor and the rest, without `.` and repeated separators.
fn meaning(pattern: &str, root: &Path) -> Result<Meaning, PolicyError> {
    let invalid = |reason| Err(PolicyError::Pattern { pattern: pattern.to_owned(), reason });
    if pattern.starts_with('!') {
        return invalid("patterns can't be negated; use allow-write to lift a protection");
    }
    if pattern.contains('\0') {
        return invalid("a path can't hold a NUL");
    }
    let mut parts: Vec<&str> =
        pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if pattern.starts_with('/') {
        if parts.contains(&"..") {
            return invalid("`..` means something only on the file system");
        }
        return Ok(Meaning::Absolute(format!("/{}", parts.join("/"))));
    }
    // `.` alone is the root; an empty pattern means nothing and is a mistake.
    if pattern.is_empty() {
        return invalid("it is empty");
    }
    let ups = parts.iter().take_while(|part| **part == "..").count();
    if ups > 0 {
        parts.drain(..ups);
        let (Some(above), false) = (root.ancestors().nth(ups), parts.contains(&"..")) else {
            return invalid("`..` means something only on the file system");
        };
        let Some(above) = above.to_str() else {
            return invalid("the directory that `..` leads to isn't UTF-8");
        };
        let above = above.trim_end_matches('/');
        return Ok(Meaning::Absolute(format!("{above}/{}", parts.join("/"))));
    }
    if parts.contains(&"..") {
        return invalid("`..` means something only on the file system");
    }
    let bare = !pattern.trim_end_matches('/').contains('/');
    match parts.as_slice() {
        [name] if bare => Ok(Meaning::Name((*name).to_owned())),
        ["**", name] if *name != "**" => Ok(Meaning::Name((*name).to_owned())),
        ["**", ..] => Ok(Meaning::Deep(parts.join("/"))),
        _ => Ok(Meaning::Root(parts.join("/"))),
    }
}

impl PathRules {
    pub(crate) fn compile(
        root: &Path,
        patterns: &[String],
        rule: Rule,
        option: &str,
    ) -> Result<Self, PolicyError> {
        let mut exact = Trie::default();
        let mut names = HashMap::new();
        let mut denials = Vec::new();
        let [mut name_globs, mut deep, mut rooted, mut absolute]: [GlobList; 4] =
            Default::default();
        let [mut root_up, mut absolute_up, mut deep_up]: [GlobList; 3] = Default::default();
        for (index, pattern) in patterns.iter().enumerate() {
            denials.push(Arc::new(Denial::new(rule, format!("{option} {pattern}"))));
            match meaning(pattern, root)? {
                Meaning::Absolute(path) => {
                    exact.insert(path.as_bytes(), index);
                    if is_glob(&path) {
                        absolute.push_tree(pattern, &path, index)?;
                        absolute_up.push_parents(pattern, &path, index)?;
                    }
                }
                Meaning::Root(path) => {
                    let mut literal = root.as_os_str().as_bytes().to_vec();
                    literal.push(b'/');
                    literal.extend_from_slice(path.as_bytes());
                    exact.insert(&literal, index);
                    if is_glob(&path) {
                        rooted.push_tree(pattern, &path, index)?;
                        root_up.push_parents(pattern, &path, index)?;
                    }
                }
                Meaning::Name(name) => {
                    if is_glob(&name) {
                        name_globs.push(pattern, &name, index)?;
                    }
                    names.entry(name.into_bytes().into_boxed_slice()).or_insert(index);
                }
                Meaning::Deep(path) => {
                    deep.push_tree(pattern, &path, index)?;
                    deep_up.push_parents(pattern, &path, index)?;
                }
            }
        }
        Ok(Self {
            exact,
            names,
            name_globs: name_globs.build(patterns)?,
            deep_globs: deep.build(patterns)?,
            root_globs: rooted.build(patterns)?,
            absolute_globs: absolute.build(patterns)?,
            root_parents: root_up.build(patterns)?,
            absolute_parents: absolute_up.build(patterns)?,
            deep_parents: deep_up.build(patterns)?,
            denials,
        })
    }

    /// Makes a list of exact paths that one refusal covers.
    pub(crate) fn exact(paths: &[PathBuf], denial: Denial) -> Self {
        let mut exact = Trie::default();
        for path in paths {
            exact.insert(path.as_os_str().as_bytes(), 0);
        }
        let denials = if paths.is_empty() { Vec::new() } else { vec![Arc::new(denial)] };
        Self { exact, denials, ..Self::default() }
    }

    /// Adds exact paths that another refusal covers.
    pub(crate) fn and_exact(mut self, paths: &[PathBuf], denial: Denial) -> Self {
        if !paths.is_empty() {
            let index = self.denials.len();
            self.denials.push(Arc::new(denial));
            for path in paths {
                self.exact.insert(path.as_os_str().as_bytes(), index);
            }
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.denials.is_empty()
    }

    /// Returns the refusal that covers `path`.
    pub(crate) fn hit(&self, path: &[u8], scopes: &Scopes) -> Option<&Arc<Denial>> {
        if self.denials.is_empty() {
            return None;
        }
        self.index(path, scopes).and_then(|index| self.denials.get(index))
    }

    fn index(&self, path: &[u8], scopes: &Scopes) -> Option<usize> {
        if let Some(index) = self.exact.covering(path) {
            return Some(index);
        }
        if !self.names.is_empty() || !self.deep_globs.rules.is_empty() {
            let below = scopes.below(path).unwrap_or_default();
            for name in components(below) {
                if let Some(&index) = self.names.get(name) {
                    return Some(index);
                }
                if let Some(index) = self.name_globs.hit(name) {
                    return Some(index);
                }
            }
            if let Some(index) = self.deep_globs.hit(below) {
                return Some(index);
            }
        }
        if !self.root_globs.rules.is_empty()
            && let Some(index) = scopes.below_root(path).and_then(|rest| self.root_globs.hit(rest))
        {
            return Some(index);
        }
        self.absolute_globs.hit(path)
    }

    /// Returns a refusal that would no longer cover names below the directory `path` if it were renamed: an exact
    /// path below it, or an anchored glob that leads through it.
    pub(crate) fn anchored_within(&self, path: &[u8], scopes: &Scopes) -> Option<&Arc<Denial>> {
        if self.denials.is_empty() {
            return None;
        }
        let index = self
            .exact
            .within(path)
            .or_else(|| scopes.below_root(path).and_then(|rest| self.root_parents.hit(rest)))
            .or_else(|| self.absolute_parents.hit(path))
            .or_else(|| scopes.below(path).and_then(|rest| self.deep_parents.hit(rest)))?;
        self.denials.get(index)
    }

    /// Tells whether an exact path lies below `path`.
    pub(crate) fn exact_within(&self, path: &[u8]) -> bool {
        self.exact.within(path).is_some()
    }

    /// Returns the exact paths, sorted.
    pub(crate) fn exact_paths(&self) -> Vec<(PathBuf, Arc<Denial>)> {
        let mut found = Vec::new();
        self.exact.paths(&mut PathBuf::from("/"), &mut found);
        let mut paths: Vec<_> = found
            .into_iter()
            .filter_map(|(path, index)| Some((path, self.denials.get(index)?.clone())))
            .collect();
        paths.sort_by(|a, b| a.0.cmp(&b.0));
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(patterns: &[&str]) -> PathRules {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        PathRules::compile(Path::new("/home/u/w"), &patterns, Rule::ReadDenied, "deny-read")
            .unwrap()
    }

    fn scopes() -> Scopes {
        Scopes::new("/home/u/w".into(), vec!["/home/u/w".into(), "/tmp".into()])
    }

    #[test]
    fn the_table_of_patterns() {
        #[rustfmt::skip]
        let rows: &[(&str, &str, bool)] = &[
            (".env", "/home/u/w/.env", true),
            (".env", "/home/u/w/a/b/.env", true),
            (".env", "/home/u/w/a/.env/x", true),
            (".env", "/tmp/x/.env", true),
            (".env", "/etc/.env", false),
            (".env", "/home/u/w/.envx", false),
            ("**/.env", "/home/u/w/.env", true),
            ("**/.env", "/tmp/.env", true),
            ("*.pem", "/home/u/w/a/k.pem", true),
            ("*.pem", "/home/u/w/a.pem/x", true),
            ("*.pem", "/home/u/w/pem", false),
            ("secrets/", "/home/u/w/a/secrets/x", true),
            ("a/b", "/home/u/w/a/b/c", true),
            ("a/b", "/home/u/w/x/a/b", false),
            ("a/b", "/tmp/a/b", false),
            ("./x", "/home/u/w/x", true),
            ("./x", "/home/u/w/a/x", false),
            ("**/a/b", "/home/u/w/x/a/b/c", true),
            ("**/a/b", "/tmp/a/b", true),
            ("a/*.key", "/home/u/w/a/1.key", true),
            ("a/*.key", "/home/u/w/a/b/1.key", false),
            ("a/**/c", "/home/u/w/a/x/y/c", true),
            ("a/{x,y}", "/home/u/w/a/y/z", true),
            ("/etc/ssl", "/etc/ssl/private/k", true),
            ("/etc/ssl", "/etc/sslx", false),
            ("/opt/*/k", "/opt/a/k", true),
            ("/opt/*/k", "/opt/a/b/k", false),
            ("app/[id]", "/home/u/w/app/[id]/page", true),
            ("app/[id]", "/home/u/w/app/i", true),
            ("../other/x", "/home/u/other/x", true),
            ("../w2", "/home/u/w2/a", true),
            ("w", "/home/u/w/a", false),
            ("home", "/home/u/w/a", false),
            ("home", "/home/u/w/home", true),
            ("/", "/anything", true),
            ("**", "/home/u/w/a", true),
            ("*", "/home/u/w/a/b", true),
            ("*", "/home/u/w", false),
        ];
        for &(pattern, path, expected) in rows {
            let hit = rules(&[pattern]).hit(path.as_bytes(), &scopes()).is_some();
            assert_eq!(hit, expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_matched_as_bytes() {
        let rules = rules(&["*.pem", "a/*/k"]);
        assert!(rules.hit(b"/home/u/w/\xff\xfe.pem", &scopes()).is_some());
        assert!(rules.hit(b"/home/u/w/a/\xff/k", &scopes()).is_some());
        assert!(rules.hit(b"/home/u/w/\xff\xfe.pex", &scopes()).is_none());
    }

    #[test]
    fn a_root_with_glob_characters_or_odd_bytes_anchors_literally() {
        let root = PathBuf::from(OsStr::from_bytes(b"/w/[a]\xff"));
        let rules = PathRules::compile(
            &root,
            &["x/*.key".into(), "y".into(), "./z".into()],
            Rule::ReadDenied,
            "deny-read",
        )
        .unwrap();
        let scopes = Scopes::new(root.clone(), vec![root]);
        for (path, expected) in [
            (&b"/w/[a]\xff/x/1.key"[..], true),
            (b"/w/[a]\xff/q/y", true),
            (b"/w/[a]\xff/z", true),
            (b"/w/a\xff/z", false),
            (b"/w/a/x/1.key", false),
        ] {
            assert_eq!(rules.hit(path, &scopes).is_some(), expected, "{path:?}");
        }
    }

    #[test]
    fn a_pattern_that_can_never_hold_is_refused() {
        let root = Path::new("/w");
        for pattern in ["", "!x", "/a/../b", "a/../../b", "../../..", "a\0b", "a["] {
            let made = PathRules::compile(root, &[pattern.into()], Rule::ReadDenied, "deny-read");
            let error = made.unwrap_err().to_string();
            assert!(error.contains(&format!("`{pattern}`")), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_directory_that_leads_to_an_anchored_rule_is_known() {
        let rules = rules(&["a/b/secret", "c/*/k", "/tmp/t/**/z", ".env", "e/{q/r,s}/t", "**/f/g"]);
        for (path, expected) in [
            ("/home/u/w/a", true),
            ("/home/u/w/a/b", true),
            ("/home/u/w/c", true),
            ("/home/u/w/c/x", true),
            ("/home/u/w/c/x/y", false),
            ("/tmp/t", true),
            ("/tmp/t/q/r", true),
            ("/home/u/w/d", false),
            ("/tmp", true),
            ("/home/u/w/e", true),
            ("/home/u/w/x/f", true),
            ("/home/u/w/x/g", false),
            ("/home/u/w/e/q", true),
        ] {
            let found = rules.anchored_within(path.as_bytes(), &scopes()).is_some();
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn the_shared_prefix_ends_at_a_component() {
        for (path, root, expected) in [
            ("/home/u/w", "/home/u/w", 9),
            ("/home/u/w/a", "/home/u/w", 10),
            ("/home/u/wx", "/home/u/w", 8),
            ("/home/u", "/home/u/w", 7),
            ("/etc", "/home", 1),
        ] {
            assert_eq!(shared_prefix(path.as_bytes(), root.as_bytes()), expected, "{path} {root}");
        }
    }
}
