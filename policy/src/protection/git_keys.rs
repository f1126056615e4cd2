//! Which settings of a repository make git run a program, trust somebody else or read another configuration.
//!
//! A configuration is judged as a change: what was there may stay or go, and nothing of the kind may appear or get
//! another value. So a repository whose owner set `core.hooksPath` goes on working, and every everyday command
//! (`init`, `clone`, `remote add`, `checkout -b --track`, `submodule update --init`, `sparse-checkout`) passes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::git_config::{Entry, parse};
use super::git_file::resolve;
use crate::pattern::components;

/// A setting that may not be made, or a text that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedKey(String);

impl RefusedKey {
    /// Returns the setting's name, or what is wrong with the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RefusedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl std::error::Error for RefusedKey {}

/// Judges the new content of a repository's configuration.
///
/// # Errors
/// The first setting that makes git run a program or read another configuration and that `old` didn't have with the
/// same values, or the line that can't be read.
pub fn git_config_change(old: Option<&[u8]>, new: &[u8]) -> Result<(), RefusedKey> {
    change(None, old, new)
}

/// The same for the configuration at `path`, which may be a submodule's.
pub(crate) fn config_change_at(
    path: &[u8],
    old: Option<&[u8]>,
    new: &[u8],
) -> Result<(), RefusedKey> {
    change(Some(Path::new(OsStr::from_bytes(path))), old, new)
}

/// Returns the directory that a configuration names with `core.hooksPath`: what is protected there in place of
/// `.git/hooks`. The last value counts.
#[must_use]
pub fn hooks_path(config: &[u8]) -> Option<Vec<u8>> {
    let entries = parse(config).ok()?;
    entries
        .into_iter()
        .rev()
        .find(|entry| {
            entry.subsection.is_none() && entry.section == b"core" && entry.name == b"hookspath"
        })?
        .value
}

type Settings = BTreeMap<String, Vec<Option<Vec<u8>>>>;

fn change(path: Option<&Path>, old: Option<&[u8]>, new: &[u8]) -> Result<(), RefusedKey> {
    let new = parse(new).map_err(|error| RefusedKey(error.to_string()))?;
    let new = dangerous(path, &new);
    if new.is_empty() {
        return Ok(());
    }
    // An old text that can't be read vouches for nothing.
    let old = old.and_then(|old| parse(old).ok()).unwrap_or_default();
    let old = dangerous(path, &old);
    new.into_iter()
        .find(|(key, values)| old.get(key) != Some(values))
        .map_or(Ok(()), |(key, _)| Err(RefusedKey(key)))
}

fn dangerous(path: Option<&Path>, entries: &[Entry]) -> Settings {
    let mut settings = Settings::new();
    for entry in entries {
        let here = match (entry.section.as_slice(), entry.name.as_slice()) {
            (b"core", b"worktree") if entry.subsection.is_none() => {
                !path.is_some_and(|path| submodule_worktree(path, entry))
            }
            _ => runs_code(entry),
        };
        if here {
            settings.entry(entry.key()).or_default().push(entry.value.clone());
        }
    }
    settings
}

/// Tells whether `core.worktree` of a submodule's repository leads to a place in the superproject, as
/// `git submodule update` writes it.
fn submodule_worktree(path: &Path, entry: &Entry) -> bool {
    let inner = || {
        let directory = path.parent()?;
        let top = directory
            .ancestors()
            .filter(|above| above.file_name().is_some_and(|name| name.eq_ignore_ascii_case(".git")))
            .last()?;
        let mut inside = directory.strip_prefix(top).ok()?.iter();
        let modules = inside.any(|part| part.eq_ignore_ascii_case("modules"));
        let value = entry.value.as_deref().filter(|value| value.first() != Some(&b'/'))?;
        let target = resolve(directory, value)?;
        let below = target.strip_prefix(top.parent()?).ok()?;
        let bytes = below.as_os_str().as_bytes();
        let plain = !components(bytes).any(|part| part.eq_ignore_ascii_case(b".git"));
        Some(modules && inside.next().is_some() && !bytes.is_empty() && plain)
    };
    inner().unwrap_or(false)
}

/// Tells whether a setting makes git run a program, weakens how it checks others, or leads it to another
/// configuration.
fn runs_code(entry: &Entry) -> bool {
    let name = entry.name.as_slice();
    let value = entry.value.as_deref();
    let sub = entry.subsection.as_deref();
    // Names that say it themselves, also those that extensions and later versions bring.
    let telling = [&b"command"[..], b"cmd", b"program", b"hook", b"helper", b"driver", b"askpass"];
    if telling.iter().any(|end| name.ends_with(end)) {
        return value != Some(b"");
    }
    match entry.section.as_slice() {
        b"alias" | b"browser" | b"man" | b"hook" | b"include" | b"includeif" | b"instaweb"
        | b"imap" | b"safe" | b"sendemail" | b"gitcvs" | b"svn" => {
            // `browser.tool.path` and the like; `man.viewer` chooses one.
            true
        }
        b"core" => match name {
            b"fsmonitor" => !is_boolean(value),
            b"protecthfs" | b"protectntfs" => !is_true(value),
            _ => [
                &b"hookspath"[..],
                b"sshcommand",
                b"editor",
                b"pager",
                b"gitproxy",
                b"attributesfile",
                b"worktree",
                b"virtualfilesystem",
            ]
            .contains(&name),
        },
        b"sequence" => name == b"editor",
        b"pager" => !is_boolean(value),
        b"filter" => matches!(name, b"clean" | b"smudge" | b"process"),
        b"diff" => matches!(name, b"external" | b"textconv"),
        b"mergetool" | b"difftool" | b"guitool" => name == b"path",
        b"interactive" => name == b"difffilter",
        b"init" => name == b"templatedir",
        b"help" => matches!(name, b"browser" | b"htmlpath"),
        b"web" => name == b"browser",
        b"remote" => match name {
            b"uploadpack" | b"receivepack" | b"vcs" | b"proxy" => true,
            b"url" | b"pushurl" => value.is_none_or(runs_transport),
            _ => name.starts_with(b"annex-"),
        },
        b"url" => matches!(name, b"insteadof" | b"pushinsteadof"),
        b"protocol" => name != b"version",
        b"ssh" => name == b"variant",
        b"submodule" => match name {
            b"update" => value.is_some_and(|value| value.starts_with(b"!")),
            b"url" => value.is_none_or(runs_transport),
            b"gitdir" => !value.is_some_and(|value| {
                value.starts_with(b".git/modules/") && !components(value).any(|part| part == b"..")
            }),
            _ => false,
        },
        b"http" => !matches!(
            name,
            b"postbuffer"
                | b"lowspeedlimit"
                | b"lowspeedtime"
                | b"version"
                | b"maxrequests"
                | b"minsessions"
                | b"useragent"
                | b"extraheader"
        ),
        b"https" => true,
        b"rebase" => name == b"instructionformat",
        b"annex" => name.ends_with(b"-options"),
        b"gitflow" => sub == Some(b"path") && name == b"hooks",
        b"lfs" => {
            matches!(name, b"standalonetransferagent" | b"clean" | b"smudge")
                || (name == b"path" && sub.is_some_and(|sub| sub.starts_with(b"customtransfer.")))
        }
        b"svn-remote" => name == b"authorsprog",
        _ => false,
    }
}

/// Tells whether an address names a transport that runs a command, or is one that ssh would take for an option.
fn runs_transport(address: &[u8]) -> bool {
    let lower = address.to_ascii_lowercase();
    lower.starts_with(b"ext::") || lower.starts_with(b"fd::") || lower.starts_with(b"-")
}

/// Git's booleans. A name without a value is true.
fn is_boolean(value: Option<&[u8]>) -> bool {
    is_true(value)
        || value.is_some_and(|value| {
            [&b""[..], b"false", b"no", b"off", b"0"]
                .iter()
                .any(|word| value.eq_ignore_ascii_case(word))
        })
}

fn is_true(value: Option<&[u8]>) -> bool {
    value.is_none_or(|value| {
        [&b"true"[..], b"yes", b"on", b"1"].iter().any(|word| value.eq_ignore_ascii_case(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_code_is_refused_when_it_appears() {
        let rows = [
            ("[core]\n\thooksPath = x", "core.hookspath"),
            ("[CORE]\n\tHOOKSPATH = x", "core.hookspath"),
            ("[core] fsmonitor = ./evil", "core.fsmonitor"),
            ("[core] sshCommand = evil", "core.sshcommand"),
            ("[core] editor = evil", "core.editor"),
            ("[core] pager = evil", "core.pager"),
            ("[core] askPass = evil", "core.askpass"),
            ("[core] gitProxy = evil", "core.gitproxy"),
            ("[core] attributesFile = evil", "core.attributesfile"),
            ("[core] worktree = /", "core.worktree"),
            ("[core] alternateRefsCommand = evil", "core.alternaterefscommand"),
            ("[core] protectHFS = false", "core.protecthfs"),
            ("[pager] log = evil", "pager.log"),
            ("[sequence] editor = evil", "sequence.editor"),
            ("[alias] st = !evil", "alias.st"),
            ("[alias \"st\"] command = !evil", "alias.st.command"),
            ("[filter \"x\"] clean = evil", "filter.x.clean"),
            ("[filter \"x\"] smudge = evil", "filter.x.smudge"),
            ("[filter \"x\"] process = evil", "filter.x.process"),
            ("[filter.x] process = evil", "filter.x.process"),
            ("[diff] external = evil", "diff.external"),
            ("[diff \"x\"] command = evil", "diff.x.command"),
            ("[diff \"x\"] textconv = evil", "diff.x.textconv"),
            ("[merge \"x\"] driver = evil", "merge.x.driver"),
            ("[mergetool \"x\"] cmd = evil", "mergetool.x.cmd"),
            ("[mergetool \"x\"] path = evil", "mergetool.x.path"),
            ("[difftool \"x\"] cmd = evil", "difftool.x.cmd"),
            ("[guitool \"x\"] cmd = evil", "guitool.x.cmd"),
            ("[credential] helper = evil", "credential.helper"),
            ("[credential \"https://x\"] helper = !evil", "credential.https://x.helper"),
            ("[gpg] program = evil", "gpg.program"),
            ("[gpg \"ssh\"] program = evil", "gpg.ssh.program"),
            ("[gpg \"ssh\"] defaultKeyCommand = evil", "gpg.ssh.defaultkeycommand"),
            ("[include] path = evil", "include.path"),
            ("[includeIf \"gitdir:x\"] path = evil", "includeif.gitdir:x.path"),
            ("[remote \"o\"] uploadpack = evil", "remote.o.uploadpack"),
            ("[remote \"o\"] receivepack = evil", "remote.o.receivepack"),
            ("[remote \"o\"] vcs = evil", "remote.o.vcs"),
            ("[remote \"o\"] proxy = evil", "remote.o.proxy"),
            ("[remote \"o\"] url = ext::sh -c evil", "remote.o.url"),
            ("[url \"evil\"] insteadOf = x", "url.evil.insteadof"),
            ("[url \"evil\"] pushInsteadOf = x", "url.evil.pushinsteadof"),
            ("[uploadpack] packObjectsHook = evil", "uploadpack.packobjectshook"),
            ("[gc] recentObjectsHook = evil", "gc.recentobjectshook"),
            ("[protocol \"ext\"] allow = always", "protocol.ext.allow"),
            ("[ssh] variant = simple", "ssh.variant"),
            ("[submodule \"s\"] update = !evil", "submodule.s.update"),
            ("[submodule \"s\"] gitdir = ../evil", "submodule.s.gitdir"),
            ("[trailer \"t\"] command = evil", "trailer.t.command"),
            ("[trailer \"t\"] cmd = evil", "trailer.t.cmd"),
            ("[sendemail] smtpServer = /evil", "sendemail.smtpserver"),
            ("[browser \"x\"] cmd = evil", "browser.x.cmd"),
            ("[man \"x\"] path = evil", "man.x.path"),
            ("[help] browser = evil", "help.browser"),
            ("[web] browser = evil", "web.browser"),
            ("[interactive] diffFilter = evil", "interactive.difffilter"),
            ("[init] templateDir = evil", "init.templatedir"),
            ("[safe] directory = *", "safe.directory"),
            ("[http] proxy = evil", "http.proxy"),
            ("[http \"https://x\"] cookieFile = evil", "http.https://x.cookiefile"),
            ("[http] sslVerify = false", "http.sslverify"),
            ("[tar \"x\"] command = evil", "tar.x.command"),
            ("[imap] tunnel = evil", "imap.tunnel"),
            ("[hook \"x\"] command = evil", "hook.x.command"),
            ("[lfs \"customtransfer.x\"] path = evil", "lfs.customtransfer.x.path"),
            ("[core]\n\tbare = false\n\thooksPath \\\n= x", "line 3 can't be read"),
        ];
        for (text, key) in rows {
            let refused = git_config_change(None, text.as_bytes()).map_err(|key| key.to_string());
            assert_eq!(refused, Err(key.to_owned()), "{text}");
            let old = text.replace("evil", "good").replace("false", "true");
            if old != text {
                assert!(
                    git_config_change(Some(old.as_bytes()), text.as_bytes()).is_err(),
                    "{text}"
                );
            }
            if !key.contains("line") {
                assert_eq!(git_config_change(Some(text.as_bytes()), text.as_bytes()), Ok(()));
                assert_eq!(git_config_change(Some(text.as_bytes()), b"[core]\n"), Ok(()));
            }
        }
    }

    #[test]
    fn what_git_writes_every_day_passes() {
        let rows = [
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n",
            "[remote \"origin\"]\n\turl = git@host:a/b.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
            "[branch \"x\"]\n\tremote = origin\n\tmerge = refs/heads/x\n\trebase = true\n",
            "[submodule \"s\"]\n\tactive = true\n\turl = https://host/s.git\n\tupdate = rebase\n",
            "[user]\n\tname = A\n\temail = a@b\n\tsigningKey = k\n[commit]\n\tgpgSign = true\n",
            "[core]\n\tsparseCheckout = true\n[extensions]\n\tworktreeConfig = true\n",
            "[core]\n\tfsmonitor = true\n[pager]\n\tlog = false\n",
            "[core] fsmonitor\n",
            "[credential] helper =\n",
            "[protocol] version = 2\n",
            "[http] postBuffer = 1000\n",
            "[lfs]\n\trepositoryformatversion = 0\n[lfs \"https://h/info/lfs\"]\n\taccess = basic\n",
            "[maintenance]\n\tauto = false\n\tstrategy = incremental\n[gc]\n\tauto = 0\n",
            "[pull]\n\trebase = true\n[merge]\n\tconflictStyle = zdiff3\n[diff]\n\talgorithm = histogram\n",
            "",
        ];
        for text in rows {
            assert_eq!(git_config_change(None, text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn another_order_or_another_count_of_values_is_a_change() {
        let old = b"[credential]\n\thelper =\n\thelper = a\n\thelper = b\n";
        for new in [
            "[credential]\n\thelper = b\n\thelper = a\n",
            "[credential]\n\thelper = a\n",
            "[credential]\n\thelper = a\n\thelper = b\n\thelper = a\n",
        ] {
            assert!(git_config_change(Some(old), new.as_bytes()).is_err(), "{new}");
        }
    }

    #[test]
    fn an_unreadable_old_text_vouches_for_nothing() {
        let old = b"[core]\n\thooksPath = x\n[";
        assert!(git_config_change(Some(old), b"[core]\n\thooksPath = x\n").is_err());
    }

    #[test]
    fn a_submodule_names_its_working_tree() {
        for (path, value, expected) in [
            ("/w/.git/modules/a/config", "../../../a", true),
            ("/w/.git/modules/a/b/config", "../../../../a/b", true),
            ("/w/.git/modules/a/modules/b/config", "../../../../../a/b", true),
            ("/w/.git/modules/a/config", "../../../../a", false),
            ("/w/.git/modules/a/config", "../../..", false),
            ("/w/.git/modules/a/config", "../../hooks", false),
            ("/w/.git/modules/a/config", "/w/a", false),
            ("/w/.git/modules/a/config", "../../../a/../..", false),
            ("/w/.git/modules/config", "../../a", false),
            ("/w/.git/config", "../a", false),
        ] {
            let text = format!("[core]\n\tworktree = {value}\n");
            let judged = config_change_at(path.as_bytes(), None, text.as_bytes());
            assert_eq!(judged.is_ok(), expected, "{path} {value}");
        }
    }

    #[test]
    fn the_hooks_path_is_the_last_one() {
        let config =
            b"[core]\n\thooksPath = a\n\thookspath = .husky\n[core \"x\"]\n\thooksPath = b\n";
        assert_eq!(hooks_path(config), Some(b".husky".to_vec()));
        assert_eq!(hooks_path(b"[core]\n\tbare = true\n"), None);
    }
}
