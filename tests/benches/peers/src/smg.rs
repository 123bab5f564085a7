//! The tree by which SMG's `cache_aware` policy finds the workers that hold a prompt.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kv_index::TokenTree;

use crate::Contender;
use crate::fleet;

/// The tree alone. Its policy, which compares loads besides, is in a crate that needs a newer compiler.
pub(crate) struct Tree {
    tree: TokenTree,
}

impl Tree {
    pub(crate) fn new(workers: u64) -> Self {
        let tree = TokenTree::new();
        for group in 0..fleet::GROUPS {
            for worker in fleet::holders(group, workers) {
                tree.insert_tokens(&fleet::shared_tokens(group), &worker.to_string());
            }
        }
        Self { tree }
    }
}

impl Contender for Tree {
    fn name(&self) -> &str {
        "kv-index (SMG), tree alone"
    }

    fn route(&mut self, request: u64) -> Result<(Duration, u64)> {
        let tokens = fleet::tokens(request);
        let start = Instant::now();
        let found = self.tree.match_prefix_with_counts(&tokens);
        self.tree.insert_tokens(&tokens, &found.tenant);
        let took = start.elapsed();
        let worker = found
            .tenant
            .parse()
            .context("somebody holds the group's blocks")?;
        Ok((took, worker))
    }
}
