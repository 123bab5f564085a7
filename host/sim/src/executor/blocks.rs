//! The KV blocks of a server that keeps its own books: shared by prefix, and given up least recently
//! used first.
//!
//! As in vLLM's block pool, a block that nobody holds goes to the end of one queue of free blocks
//! and keeps its contents until its turn to be reused comes; a hit takes it out of the queue.
//!
//! # Invariants
//! [`Blocks::check`]: the queue has exactly the blocks that nobody holds, and the index exactly those
//! with contents.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pointsman_core::{BlockHash, KvReport, ModelId};

/// No block.
const NONE: u32 = u32::MAX;

/// The blocks of one server.
#[derive(Debug)]
pub(crate) struct Blocks {
    nodes: Vec<Node>,
    /// The queue of blocks that nobody holds, by its ends.
    head: u32,
    tail: u32,
    free: u32,
    /// Free blocks that have contents.
    cached: u32,
    removed_total: u64,
    index: HashMap<Contents, u32, BuildHasherDefault<Folded>>,
    news: CacheNews,
}

/// The contents of a block: the beginning of a prompt, as a model computed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Contents {
    /// Absent: the only model there is.
    pub(crate) model: Option<ModelId>,
    pub(crate) hash: BlockHash,
}

/// Changes of the contents since they were last asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheNews {
    pub(crate) stored: Vec<Contents>,
    pub(crate) removed: Vec<Contents>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    holders: u32,
    prev: u32,
    next: u32,
    contents: Option<Contents>,
}

/// A hasher for numbers that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 ^= u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, _: isize) {}

    fn write_u128(&mut self, number: u128) {
        let bytes = number.to_le_bytes();
        let (low, high) = bytes.split_at(8);
        let word = |half: &[u8]| {
            half.iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        self.0 ^= word(low) ^ word(high);
    }
}

impl Blocks {
    pub(crate) fn new(total: u32) -> Self {
        let mut blocks = Self {
            nodes: Vec::with_capacity(total as usize),
            head: NONE,
            tail: NONE,
            free: 0,
            cached: 0,
            removed_total: 0,
            index: HashMap::default(),
            news: CacheNews::default(),
        };
        for id in 0..total {
            blocks.nodes.push(Node {
                holders: 0,
                prev: NONE,
                next: NONE,
                contents: None,
            });
            blocks.append(id);
        }
        blocks
    }

    pub(crate) fn total(&self) -> u32 {
        crate::numbers::narrow_len(self.nodes.len())
    }

    /// Blocks that nobody holds.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// The leading blocks of a prompt that are there.
    pub(crate) fn hits(&self, prompt: &[Contents]) -> u32 {
        let there = prompt.iter().take_while(|it| self.index.contains_key(it));
        crate::numbers::narrow_len(there.count())
    }

    /// Blocks among the leading `n` of a prompt that nobody holds: taking them takes free blocks.
    pub(crate) fn idle_hits(&self, prompt: &[Contents], n: u32) -> u32 {
        let taken = prompt.iter().take(n as usize);
        let ids = taken.filter_map(|it| self.index.get(it));
        let idle = ids.filter(|id| self.nodes[**id as usize].holders == 0);
        crate::numbers::narrow_len(idle.count())
    }

    /// Takes the leading `n` blocks of a prompt, which are there, into a block table.
    pub(crate) fn share(&mut self, prompt: &[Contents], n: u32, table: &mut Vec<u32>) {
        for it in prompt.iter().take(n as usize) {
            let Some(id) = self.index.get(it).copied() else {
                return;
            };
            if self.nodes[id as usize].holders == 0 {
                self.unlink(id);
            }
            self.nodes[id as usize].holders += 1;
            table.push(id);
        }
    }

    /// Adds empty blocks to a block table until it has `n`. False, and nothing is changed, if there
    /// are too few.
    pub(crate) fn grow(&mut self, table: &mut Vec<u32>, n: u32) -> bool {
        let wanted = (n as usize).saturating_sub(table.len());
        if wanted > self.free as usize {
            return false;
        }
        for _ in 0..wanted {
            let id = self.head;
            self.unlink(id);
            let node = &mut self.nodes[id as usize];
            node.holders = 1;
            if let Some(contents) = node.contents.take() {
                self.index.remove(&contents);
                self.news.removed.push(contents);
                self.removed_total += 1;
            }
            table.push(id);
        }
        true
    }

    /// Notes the contents of a block, unless another one has the same.
    pub(crate) fn publish(&mut self, id: u32, contents: Contents) {
        let node = &mut self.nodes[id as usize];
        if node.contents.is_none() && !self.index.contains_key(&contents) {
            node.contents = Some(contents);
            self.index.insert(contents, id);
            self.news.stored.push(contents);
        }
    }

    /// Gives a block table back: its end first, so that a beginning outlives what follows it.
    pub(crate) fn release(&mut self, table: &mut Vec<u32>) {
        while let Some(id) = table.pop() {
            let node = &mut self.nodes[id as usize];
            node.holders -= 1;
            if node.holders == 0 {
                self.append(id);
            }
        }
    }

    /// The counts, as a server tells them.
    pub(crate) fn report(&self) -> KvReport {
        KvReport {
            block_bytes: 1,
            blocks_total: self.total(),
            blocks_free: self.free - self.cached,
            blocks_cached: self.cached,
            blocks_evicted_total: self.removed_total,
        }
    }

    /// Forgets all contents and holders, as a new process does.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.total());
    }

    /// Takes the changes since the last call: contents that came and went in between are none.
    pub(crate) fn take_news(&mut self) -> CacheNews {
        let CacheNews {
            mut stored,
            mut removed,
        } = std::mem::take(&mut self.news);
        stored.retain(|it| self.index.contains_key(it));
        removed.retain(|it| !self.index.contains_key(it));
        CacheNews { stored, removed }
    }

    fn append(&mut self, id: u32) {
        let tail = std::mem::replace(&mut self.tail, id);
        let node = &mut self.nodes[id as usize];
        (node.prev, node.next) = (tail, NONE);
        match tail {
            NONE => self.head = id,
            tail => self.nodes[tail as usize].next = id,
        }
        self.free += 1;
        self.cached += u32::from(self.nodes[id as usize].contents.is_some());
    }

    fn unlink(&mut self, id: u32) {
        let Node {
            prev,
            next,
            contents,
            ..
        } = self.nodes[id as usize];
        match prev {
            NONE => self.head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        self.free -= 1;
        self.cached -= u32::from(contents.is_some());
    }

    /// Checks the books against each other.
    #[cfg(test)]
    fn check(&self) {
        let mut queued = Vec::new();
        let mut at = self.head;
        while at != NONE {
            queued.push(at);
            at = self.nodes[at as usize].next;
        }
        assert_eq!(queued.len(), self.free as usize);
        queued.sort_unstable();
        let ids = (0..self.total()).filter(|id| self.nodes[*id as usize].holders == 0);
        assert_eq!(queued, ids.collect::<Vec<u32>>());
        let with = self.nodes.iter().filter(|node| node.contents.is_some());
        assert_eq!(with.count(), self.index.len());
        let cached = self.nodes.iter().filter(|node| node.holders == 0);
        let cached = cached.filter(|node| node.contents.is_some()).count();
        assert_eq!(cached, self.cached as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(numbers: &[u128]) -> Vec<Contents> {
        let numbers = numbers.iter().map(|number| Contents {
            model: None,
            hash: BlockHash(*number),
        });
        numbers.collect()
    }

    /// Takes a table of these contents.
    fn take(blocks: &mut Blocks, numbers: &[u128]) -> Vec<u32> {
        let prompt = contents(numbers);
        let mut table = Vec::new();
        let hits = blocks.hits(&prompt);
        blocks.share(&prompt, hits, &mut table);
        assert!(blocks.grow(&mut table, crate::numbers::narrow_len(prompt.len())));
        for (id, it) in table.iter().zip(&prompt) {
            blocks.publish(*id, *it);
        }
        blocks.check();
        table
    }

    #[test]
    fn a_prefix_is_shared_and_outlives_its_holders() {
        let mut blocks = Blocks::new(6);
        let mut first = take(&mut blocks, &[1, 2, 3]);
        let mut second = take(&mut blocks, &[1, 2, 4]);
        assert_eq!(
            (first[..2].to_vec(), blocks.free()),
            (second[..2].to_vec(), 2)
        );
        blocks.release(&mut first);
        assert_eq!((blocks.free(), blocks.cached), (3, 1));
        blocks.release(&mut second);
        blocks.check();
        assert_eq!(blocks.hits(&contents(&[1, 2, 3])), 3);
        assert_eq!(blocks.idle_hits(&contents(&[1, 2, 3]), 2), 2);
    }

    #[test]
    fn the_end_of_what_was_released_first_is_given_up_first() {
        let mut blocks = Blocks::new(4);
        let mut first = take(&mut blocks, &[1, 2]);
        let mut second = take(&mut blocks, &[3, 4]);
        blocks.release(&mut first);
        blocks.release(&mut second);
        drop(blocks.take_news());
        let _third = take(&mut blocks, &[5]);
        let news = blocks.take_news();
        assert_eq!(
            (news.removed, news.stored),
            (contents(&[2]), contents(&[5]))
        );
        assert_eq!(blocks.hits(&contents(&[1, 2])), 1);
        assert_eq!(blocks.hits(&contents(&[3, 4])), 2);
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut blocks = Blocks::new(2);
        let mut table = take(&mut blocks, &[1]);
        assert!(!blocks.grow(&mut table, 3));
        assert_eq!((table.len(), blocks.free()), (1, 1));
        blocks.clear();
        blocks.check();
        assert_eq!((blocks.free(), blocks.hits(&contents(&[1]))), (2, 0));
    }
}
