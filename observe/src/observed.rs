//! What a session has seen of its files (contract O2): for each target `present(version)`, for a missing one `absent`.
//!
//! The file system says what it sees and asks before content is lost; both are answered from memory. The recorder's
//! thread writes what is new into the session's log, in tables that the chain doesn't cover, since they are changed and
//! not appended to. What memory doesn't hold is looked up there, which happens before a loss alone: a resumed session,
//! or another process of the same session, has seen it.
//!
//! - `I1` An entry leaves memory only once it is committed.
//! - `I2` What isn't known is `Unseen`: forgetting, or a log that can't be read, refuses more and never less.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Error, Result};
use crate::event::{Key, Version};
use crate::store::Store;

/// Entries that memory keeps although they are committed.
const KEPT: usize = 200_000;

/// What a session knows of content that is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It has seen just this.
    Fresh,
    /// It has never seen it.
    Unseen,
    /// It has seen something else there, or that there was nothing.
    Stale,
}

/// The state of an existing target in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    Present(Version),
    /// If the log has the one version for it, then it is the other one now: our own doing.
    Carried {
        from: Version,
        to: Version,
    },
}

/// A name in a directory, whose key is the first part.
type NameKey = (Key, Box<[u8]>);

#[derive(Debug)]
struct Slot<V> {
    value: V,
    dirty: bool,
}

#[derive(Debug)]
struct Memory<K, V> {
    slots: HashMap<K, Slot<V>>,
    dirty: Vec<K>,
}

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self { slots: HashMap::new(), dirty: Vec::new() }
    }
}

impl<K: Hash + Eq + Clone, V: PartialEq + Clone> Memory<K, V> {
    fn set(&mut self, key: K, value: V) {
        match self.slots.entry(key) {
            Entry::Occupied(mut slot) => {
                let known = slot.get();
                if known.value == value {
                    return;
                }
                if !known.dirty {
                    self.dirty.push(slot.key().clone());
                }
                slot.insert(Slot { value, dirty: true });
            }
            Entry::Vacant(slot) => {
                self.dirty.push(slot.key().clone());
                slot.insert(Slot { value, dirty: true });
            }
        }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.slots.get(key).map(|slot| &slot.value)
    }

    /// Takes what isn't written yet.
    fn take(&mut self) -> Vec<(K, V)> {
        let mut taken = Vec::with_capacity(self.dirty.len());
        for key in std::mem::take(&mut self.dirty) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.dirty = false;
                taken.push((key, slot.value.clone()));
            }
        }
        taken
    }

    /// Says that what was taken couldn't be written.
    fn put_back(&mut self, taken: Vec<(K, V)>) {
        for (key, _) in taken {
            if let Some(slot) = self.slots.get_mut(&key)
                && !slot.dirty
            {
                slot.dirty = true;
                self.dirty.push(key);
            }
        }
    }

    fn trim(&mut self) {
        if self.slots.len() > KEPT {
            self.slots.retain(|_, slot| slot.dirty);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    things: Memory<Key, Thing>,
    /// Whether there was nothing under a name (`true`), or something.
    names: Memory<NameKey, bool>,
}

/// What one session has seen. Every mount of a run tells and asks the same one.
#[derive(Debug)]
pub struct Observed {
    dir: PathBuf,
    state: Mutex<State>,
    reader: Mutex<Option<Connection>>,
}

/// What is to be written; [`Observed::put_back`] if it can't be.
pub(crate) struct Fresh {
    things: Vec<(Key, Thing)>,
    names: Vec<(NameKey, bool)>,
}

impl Observed {
    /// Returns what the session of this directory has seen. Nothing is opened or read before it is needed.
    #[must_use]
    pub fn new(session_dir: &Path) -> Arc<Self> {
        Arc::new(Self {
            dir: session_dir.to_owned(),
            state: Mutex::default(),
            reader: Mutex::new(None),
        })
    }

    /// Says that a file's content is known in this version, under a name in a directory.
    pub fn present(&self, key: Key, version: Version, place: Option<(Key, &OsStr)>) {
        let mut state = self.state.lock();
        state.things.set(key, Thing::Present(version));
        if let Some((parent, name)) = place {
            state.names.set((parent, name.as_bytes().into()), false);
        }
    }

    /// Says that there is nothing under a name.
    pub fn absent(&self, parent: Key, name: &OsStr) {
        self.state.lock().names.set((parent, name.as_bytes().into()), true);
    }

    /// Says that the session put something under a name.
    pub fn filled(&self, parent: Key, name: &OsStr) {
        self.state.lock().names.set((parent, name.as_bytes().into()), false);
    }

    /// Says that the session itself took a file from one version to another without looking at its content: if the one
    /// was known, the other is.
    pub fn carried(&self, key: Key, from: Version, to: Version) {
        if from == to {
            return;
        }
        let mut state = self.state.lock();
        let next = match state.things.get(&key) {
            Some(Thing::Present(known)) if *known == from => Thing::Present(to),
            Some(Thing::Carried { from: first, to: known }) if *known == from => {
                Thing::Carried { from: *first, to }
            }
            Some(Thing::Present(_) | Thing::Carried { .. }) => return,
            None => Thing::Carried { from, to },
        };
        state.things.set(key, next);
    }

    /// Tells what the session knows of a file that has this version, and stands at this name.
    #[must_use]
    pub fn look(&self, key: Key, version: Version, place: Option<(Key, &OsStr)>) -> Freshness {
        let (thing, name) = {
            let state = self.state.lock();
            let name = place.is_some_and(|(key, name)| {
                state.names.get(&(key, name.as_bytes().into())).is_some()
            });
            (state.things.get(&key).copied(), name)
        };
        if thing == Some(Thing::Present(version)) {
            return Freshness::Fresh;
        }
        // The slow path: before a loss of what this process hasn't seen.
        let stored = self.stored(key);
        let known = match (thing, stored) {
            (Some(Thing::Carried { from, to }), Some(stored)) if stored == from => Some(to),
            (_, stored) => stored,
        };
        if known == Some(version) {
            return Freshness::Fresh;
        }
        let was_seen = known.is_some()
            || matches!(thing, Some(Thing::Present(_)))
            || name
            || place.is_some_and(|(parent, name)| self.name_stored(parent, name));
        if was_seen { Freshness::Stale } else { Freshness::Unseen }
    }

    fn stored(&self, key: Key) -> Option<Version> {
        self.ask(|conn| {
            conn.prepare_cached(
                "SELECT size, mtime, ctime FROM observed WHERE ino = ? AND dev = ? AND generation = ?",
            )?
            .query_row(
                [key.ino, key.dev, key.generation].map(u64::cast_signed),
                |row| {
                    Ok(Version {
                        size: row.get::<_, i64>(0)?.cast_unsigned(),
                        mtime: row.get(1)?,
                        ctime: row.get(2)?,
                    })
                },
            )
            .optional()
        })
    }

    fn name_stored(&self, parent: Key, name: &OsStr) -> bool {
        self.ask(|conn| {
            conn.prepare_cached(
                "SELECT 1 FROM observed_name WHERE ino = ? AND dev = ? AND generation = ? AND name = ?",
            )?
            .query_row(
                params![
                    parent.ino.cast_signed(),
                    parent.dev.cast_signed(),
                    parent.generation.cast_signed(),
                    name.as_bytes()
                ],
                |_| Ok(()),
            )
            .optional()
        })
        .is_some()
    }

    /// Asks the log. There may be none yet, and one from before there were these tables; then nothing is known.
    fn ask<T>(&self, query: impl Fn(&Connection) -> rusqlite::Result<Option<T>>) -> Option<T> {
        let mut reader = self.reader.lock();
        if reader.is_none() {
            *reader = Store::open_read_only(&self.dir).ok().map(|store| store.conn);
        }
        query(reader.as_ref()?).ok().flatten()
    }

    pub(crate) fn take(&self) -> Option<Fresh> {
        let mut state = self.state.lock();
        if state.things.dirty.is_empty() && state.names.dirty.is_empty() {
            return None;
        }
        Some(Fresh { things: state.things.take(), names: state.names.take() })
    }

    pub(crate) fn put_back(&self, fresh: Fresh) {
        let mut state = self.state.lock();
        state.things.put_back(fresh.things);
        state.names.put_back(fresh.names);
    }

    /// What was taken is committed.
    pub(crate) fn written(&self, fresh: &Fresh) {
        let mut state = self.state.lock();
        for (key, thing) in &fresh.things {
            let Thing::Carried { from, to } = *thing else { continue };
            // The log has the later version now, or never had the earlier one.
            match state.things.slots.get_mut(key).map(|slot| &mut slot.value) {
                Some(known) if known == thing => {
                    state.things.slots.remove(key);
                }
                Some(Thing::Carried { from: first, .. }) if *first == from => *first = to,
                Some(_) | None => {}
            }
        }
        state.things.trim();
        state.names.trim();
    }
}

impl Fresh {
    /// Writes it into the log, all or nothing.
    pub(crate) fn write(&self, conn: &Connection) -> Result<()> {
        self.try_write(conn).map_err(Error::sql("write what was seen"))
    }

    fn try_write(&self, conn: &Connection) -> rusqlite::Result<()> {
        let tx =
            rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut set =
                tx.prepare_cached("INSERT OR REPLACE INTO observed VALUES (?,?,?,?,?,?)")?;
            let mut carry = tx.prepare_cached(
                "UPDATE observed SET size = ?4, mtime = ?5, ctime = ?6 \
                 WHERE ino = ?1 AND dev = ?2 AND generation = ?3 AND size = ?7 AND mtime = ?8 AND ctime = ?9",
            )?;
            for (key, thing) in &self.things {
                let [ino, dev, generation] =
                    [key.ino, key.dev, key.generation].map(u64::cast_signed);
                match thing {
                    Thing::Present(version) => set.execute(params![
                        ino,
                        dev,
                        generation,
                        version.size.cast_signed(),
                        version.mtime,
                        version.ctime
                    ])?,
                    Thing::Carried { from, to } => carry.execute(params![
                        ino,
                        dev,
                        generation,
                        to.size.cast_signed(),
                        to.mtime,
                        to.ctime,
                        from.size.cast_signed(),
                        from.mtime,
                        from.ctime
                    ])?,
                };
            }
            let mut name =
                tx.prepare_cached("INSERT OR REPLACE INTO observed_name VALUES (?,?,?,?,?)")?;
            for ((parent, bytes), absent) in &self.names {
                name.execute(params![
                    parent.ino.cast_signed(),
                    parent.dev.cast_signed(),
                    parent.generation.cast_signed(),
                    bytes,
                    absent
                ])?;
            }
        }
        tx.commit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Key = Key { dev: 1, ino: 2, generation: 3 };

    fn key(ino: u64) -> Key {
        Key { dev: u64::MAX, ino, generation: u64::MAX - 1 }
    }

    fn version(at: i64) -> Version {
        Version { size: 5, mtime: at, ctime: at + 1 }
    }

    fn flush(observed: &Observed) {
        let store = Store::create_or_open(&observed.dir).unwrap();
        if let Some(fresh) = observed.take() {
            fresh.write(&store.conn).unwrap();
            observed.written(&fresh);
        }
    }

    #[test]
    fn what_was_seen_is_fresh_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let observed = Observed::new(dir.path());
        let name = OsStr::from_bytes(b"n\xff");
        let place = Some((DIR, name));
        assert_eq!(observed.look(key(1), version(1), place), Freshness::Unseen);
        observed.present(key(1), version(1), place);
        assert_eq!(observed.look(key(1), version(1), place), Freshness::Fresh);
        assert_eq!(observed.look(key(1), version(2), place), Freshness::Stale);
        // Another file under the name that was looked at: what was seen there is gone.
        assert_eq!(observed.look(key(2), version(1), place), Freshness::Stale);
        assert_eq!(observed.look(key(2), version(1), None), Freshness::Unseen);
        observed.absent(DIR, OsStr::new("gap"));
        let place = Some((DIR, OsStr::new("gap")));
        assert_eq!(observed.look(key(3), version(1), place), Freshness::Stale);
        let place = Some((key(9), OsStr::new("gap")));
        assert_eq!(observed.look(key(3), version(1), place), Freshness::Unseen);
    }

    #[test]
    fn own_changes_of_metadata_keep_known_what_was_known_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let first = Observed::new(dir.path());
        first.present(key(1), version(1), None);
        first.carried(key(1), version(1), version(2));
        assert_eq!(first.look(key(1), version(2), None), Freshness::Fresh);
        first.carried(key(1), version(7), version(8));
        assert_eq!(first.look(key(1), version(8), None), Freshness::Stale);
        first.carried(key(2), version(1), version(2));
        assert_eq!(first.look(key(2), version(2), None), Freshness::Unseen);
        flush(&first);
        // A resumed session: the same, without having read anything.
        let second = Observed::new(dir.path());
        second.carried(key(1), version(2), version(3));
        flush(&second);
        let taken = {
            second.carried(key(1), version(3), version(6));
            second.take().unwrap()
        };
        // While that is being written, it goes on.
        second.carried(key(1), version(6), version(4));
        taken.write(&Store::create_or_open(dir.path()).unwrap().conn).unwrap();
        second.written(&taken);
        second.carried(key(2), version(2), version(3));
        assert_eq!(second.look(key(1), version(4), None), Freshness::Fresh);
        assert_eq!(second.look(key(2), version(3), None), Freshness::Unseen);
        flush(&second);
        let third = Observed::new(dir.path());
        assert_eq!(third.look(key(1), version(4), None), Freshness::Fresh);
        assert_eq!(third.look(key(1), version(2), None), Freshness::Stale);
    }

    #[test]
    fn a_resumed_session_knows_what_it_saw_and_another_session_does_not() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let observed = Observed::new(dir.path());
        observed.present(key(1), version(1), Some((DIR, OsStr::new("a"))));
        observed.absent(DIR, OsStr::new("b"));
        flush(&observed);
        let resumed = Observed::new(dir.path());
        let place = |name| Some((DIR, OsStr::new(name)));
        assert_eq!(resumed.look(key(1), version(1), place("a")), Freshness::Fresh);
        assert_eq!(resumed.look(key(5), version(1), place("a")), Freshness::Stale);
        assert_eq!(resumed.look(key(5), version(1), place("b")), Freshness::Stale);
        assert_eq!(resumed.look(key(5), version(1), place("c")), Freshness::Unseen);
        let stranger = Observed::new(other.path());
        assert_eq!(stranger.look(key(1), version(1), place("a")), Freshness::Unseen);
    }

    #[test]
    fn what_could_not_be_written_is_kept_and_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let observed = Observed::new(dir.path());
        observed.present(key(1), version(1), None);
        let fresh = observed.take().unwrap();
        observed.present(key(2), version(1), None);
        observed.put_back(fresh);
        flush(&observed);
        assert!(observed.take().is_none());
        let resumed = Observed::new(dir.path());
        for ino in [1, 2] {
            assert_eq!(resumed.look(key(ino), version(1), None), Freshness::Fresh);
        }
    }

    #[test]
    fn a_log_of_the_first_format_learns_to_remember() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create_or_open(dir.path()).unwrap();
        let old = "DROP TABLE observed; DROP TABLE observed_name; PRAGMA user_version = 100";
        store.conn.execute_batch(old).unwrap();
        drop(store);
        let observed = Observed::new(dir.path());
        assert_eq!(observed.look(key(1), version(1), None), Freshness::Unseen);
        observed.present(key(1), version(1), None);
        flush(&observed);
        let resumed = Observed::new(dir.path());
        assert_eq!(resumed.look(key(1), version(1), None), Freshness::Fresh);
        assert_eq!(Store::open_read_only(dir.path()).unwrap().verify(None).unwrap().problem, None);
    }
}
