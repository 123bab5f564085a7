//! Tables of blocks by their contents: a question about a long prompt looks a thousand hashes up.

use std::hash::Hash;

use foldhash::fast::FixedState;
use indexmap::IndexMap;
pub(crate) use indexmap::map::Entry;

/// Values by keys that are looked up, one by one, and never gone through in an order that a decision could go by.
/// It is the same table in every process, and is written in the order of its keys, whatever came first.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V>(IndexMap<K, V, FixedState>);

// === impl Table ===

impl<K: Hash + Eq, V> Table<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    pub(crate) fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        self.0.entry(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.0.swap_remove(key)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        self.0.retain(|_, value| keep(value));
    }

    /// The values, in no order.
    #[cfg(feature = "serde")]
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values()
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(IndexMap::default())
    }
}

#[cfg(feature = "serde")]
mod written {
    use std::collections::BTreeMap;
    use std::hash::Hash;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Table;

    impl<K: Serialize + Ord, V: Serialize> Serialize for Table<K, V> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let in_order: BTreeMap<&K, &V> = self.0.iter().collect();
            in_order.serialize(serializer)
        }
    }

    impl<'de, K, V> Deserialize<'de> for Table<K, V>
    where
        K: Deserialize<'de> + Ord + Hash,
        V: Deserialize<'de>,
    {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let in_order = BTreeMap::deserialize(deserializer)?;
            Ok(Self(in_order.into_iter().collect()))
        }
    }
}
