//! A map that forgets what wasn't used lately, so that memory stays bounded.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Two generations: a full young one becomes the old one, whose unused entries are then dropped.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    limit: usize,
}

impl<K: Hash + Eq, V: Clone> Recent<K, V> {
    /// Makes a map that holds between `limit` and twice as many entries.
    pub(crate) fn new(limit: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), limit }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.limit {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_size_is_bounded() {
        let mut map = Recent::new(10);
        map.insert(usize::MAX, 7);
        for at in 0..1000 {
            map.insert(at, at);
            assert_eq!(map.get(&usize::MAX), Some(7), "after {at}");
            assert!(map.young.len() + map.old.len() <= 20);
        }
        assert_eq!(map.get(&3), None);
    }
}
