//! Dynamo's router: its selector alone, and its scheduler with the index of cached blocks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, RoutingConstraints, StorageTier,
    WorkerConfigLike, WorkerId, WorkerWithDpRank,
};
use dynamo_kv_router::scheduling::policy_config::PolicyProfile;
use dynamo_kv_router::scheduling::{OverlapSignals, ScheduleMode, ScheduleRequest};
use dynamo_kv_router::{
    ActiveSequencesMultiWorker, DefaultWorkerSelector, KvRouterConfig, LocalScheduler,
    NoopSequencePublisher, RadixTree, RouterQueuePolicy, SchedulingRequest, SequenceRequest,
    WorkerLoadProjection, WorkerSelectionInput, WorkerSelectionPolicy, WorkerSelector,
};
use rustc_hash::FxHashMap;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Contender;
use crate::fleet::{self, BLOCKS, PROMPT_TOKENS, SHARED_BLOCKS, TOKENS_PER_BLOCK};

/// A worker, all alike.
#[derive(Clone, Debug, Default, PartialEq)]
struct Worker {
    taints: HashSet<String>,
}

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }

    fn data_parallel_size(&self) -> u32 {
        1
    }

    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }

    fn total_kv_blocks(&self) -> Option<u64> {
        Some(1_000_000)
    }

    fn taints(&self) -> &HashSet<String> {
        &self.taints
    }
}

fn workers(n: u64) -> HashMap<WorkerId, Worker> {
    (0..n).map(|worker| (worker, Worker::default())).collect()
}

/// The cached blocks of a prompt, by worker.
fn overlap(blocks: impl Iterator<Item = (WorkerWithDpRank, u32)>) -> OverlapSignals {
    let mut overlap = OverlapSignals {
        tier_overlap_blocks: Default::default(),
        effective_overlap_blocks: FxHashMap::default(),
        effective_cached_tokens: FxHashMap::default(),
    };
    for (worker, blocks) in blocks {
        let tokens = blocks as usize * TOKENS_PER_BLOCK as usize;
        overlap
            .effective_overlap_blocks
            .insert(worker, f64::from(blocks));
        overlap.effective_cached_tokens.insert(worker, tokens);
    }
    overlap
}

/// The selector alone: it is given the loads and the cached blocks of all workers.
pub(crate) struct Selector {
    selector: DefaultWorkerSelector,
    workers: HashMap<WorkerId, Worker>,
    request: SchedulingRequest,
}

impl Selector {
    pub(crate) fn new(n: u64) -> Self {
        let load = |worker: u64| {
            let requests = fleet::running(worker) as usize;
            let load = WorkerLoadProjection {
                active_prefill_tokens: requests * PROMPT_TOKENS as usize,
                active_decode_blocks: requests * BLOCKS as usize,
                active_requests: requests,
                ..Default::default()
            };
            (WorkerWithDpRank::from_worker_id(worker), load)
        };
        Self {
            selector: DefaultWorkerSelector::new(Some(config()), "decode"),
            workers: workers(n),
            request: SchedulingRequest {
                mode: ScheduleMode::QueryOnly { request_id: None },
                token_seq: None,
                isl_tokens: PROMPT_TOKENS as usize,
                lora_name: None,
                expected_output_tokens: Some(64),
                affinity_target: None,
                pinned_worker: None,
                allowed_worker_ids: None,
                routing_constraints: RoutingConstraints::default(),
                router_config_override: None,
                track_prefill_tokens: true,
                priority_jump: 0.0,
                strict_priority: 0,
                policy_class: None,
                session_context: None,
                overlap: overlap(std::iter::empty()),
                kv_transfer_candidates: None,
                retain_kv_transfer_chain: false,
                shared_cache_hits: None,
                worker_loads: (0..n).map(load).collect(),
                resp_tx: None,
            },
        }
    }
}

fn config() -> KvRouterConfig {
    KvRouterConfig {
        router_queue_threshold: None,
        ..KvRouterConfig::default()
    }
}

impl Contender for Selector {
    fn name(&self) -> &str {
        "dynamo-kv-router, selector alone"
    }

    fn route(&mut self, request: u64) -> Result<(Duration, u64)> {
        let n = self.workers.len() as u64;
        let holders = fleet::holders(request % fleet::GROUPS, n);
        let held = |worker| {
            (
                WorkerWithDpRank::from_worker_id(worker),
                SHARED_BLOCKS as u32,
            )
        };
        self.request.overlap = overlap(holders.map(held));
        let changed = WorkerWithDpRank::from_worker_id(request % n);
        let load = self.request.worker_loads.get_mut(&changed);
        load.context("a worker has a load")?.active_decode_blocks += 1;
        let start = Instant::now();
        let selected = self
            .selector
            .select_worker(WorkerSelectionInput::configured(
                &self.workers,
                &self.request,
                self.request.eligibility(),
                TOKENS_PER_BLOCK,
            ));
        let took = start.elapsed();
        let selected = selected.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        Ok((took, selected.worker.worker_id))
    }
}

/// The scheduler of one router: index, loads of all workers, selector, and the booking of the request.
pub(crate) struct Scheduler {
    runtime: Runtime,
    tree: RadixTree,
    scheduler: LocalScheduler<NoopSequencePublisher, Worker>,
    /// Ends the tasks of the scheduler.
    cancel: CancellationToken,
    _workers: watch::Sender<HashMap<WorkerId, Worker>>,
}

impl Scheduler {
    pub(crate) fn new(n: u64) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let cancel = CancellationToken::new();
        let ranks = (0..n).map(|worker| (worker, (0, 1))).collect();
        let (sender, receiver) = watch::channel(workers(n));
        let _guard = runtime.enter();
        let slots = Arc::new(ActiveSequencesMultiWorker::new(
            NoopSequencePublisher,
            TOKENS_PER_BLOCK as usize,
            ranks,
            false,
            0,
            "decode",
        ));
        let scheduler = LocalScheduler::new(
            slots,
            receiver,
            PolicyProfile::synthetic(None, RouterQueuePolicy::Fcfs),
            TOKENS_PER_BLOCK,
            WorkerSelectionPolicy::reference(config(), "decode"),
            None,
            None,
            None,
            None,
            Duration::from_secs(3600),
            true,
            cancel.clone(),
            "decode",
            false,
        );
        drop(_guard);
        let mut this = Self {
            runtime,
            tree: RadixTree::new(),
            scheduler,
            cancel,
            _workers: sender,
        };
        this.occupy(n)?;
        for group in 0..fleet::GROUPS {
            for worker in fleet::holders(group, n) {
                this.store(group, worker)?;
            }
        }
        Ok(this)
    }

    fn occupy(&mut self, n: u64) -> Result<()> {
        for worker in 0..n {
            for at in 0..fleet::running(worker) {
                let request = 10_000_000 + worker * 8 + u64::from(at);
                let booked = self.scheduler.add_request(SequenceRequest {
                    request_id: format!("running-{request}"),
                    token_sequence: Some(fleet::hashes(request).collect()),
                    track_prefill_tokens: true,
                    expected_output_tokens: Some(64),
                    prefill_load_hint: None,
                    worker: WorkerWithDpRank::from_worker_id(worker),
                    lora_name: None,
                });
                self.runtime.block_on(booked)?;
            }
        }
        Ok(())
    }

    fn store(&mut self, group: u64, worker: u64) -> Result<()> {
        let block = |hash| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(hash),
            tokens_hash: LocalBlockHash(hash),
            mm_extra_info: None,
        };
        let event = KvCacheEvent {
            event_id: group,
            data: KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: None,
                start_position: None,
                blocks: fleet::shared(group).map(block).collect(),
            }),
            dp_rank: 0,
        };
        let event = RouterEvent::with_storage_tier(worker, event, StorageTier::Device);
        let applied = self.tree.apply_event(event);
        applied.map_err(|error| anyhow::anyhow!("{error:?}"))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Contender for Scheduler {
    fn name(&self) -> &str {
        "dynamo-kv-router, index, loads, selector and booking"
    }

    fn route(&mut self, request: u64) -> Result<(Duration, u64)> {
        let id = format!("request-{request}");
        let hashes: Vec<u64> = fleet::hashes(request).collect();
        let local = hashes.iter().copied().map(LocalBlockHash).collect();
        let mode = ScheduleMode::Tracked {
            request_id: id.clone(),
        };
        let start = Instant::now();
        let found = self.tree.find_matches(local, false);
        let scheduled = self.scheduler.schedule_request(ScheduleRequest {
            mode,
            token_seq: Some(hashes),
            block_hashes: None,
            isl_tokens: PROMPT_TOKENS as usize,
            lora_name: None,
            expected_output_tokens: Some(64),
            affinity_target: None,
            pinned_worker: None,
            allowed_worker_ids: None,
            routing_constraints: RoutingConstraints::default(),
            router_config_override: None,
            priority_jump: 0.0,
            strict_priority: 0,
            policy_class: None,
            session_context: None,
            overlap: overlap(found.scores.into_iter()),
            kv_transfer_candidates: None,
            retain_kv_transfer_chain: false,
            shared_cache_hits: None,
        });
        let scheduled = self.runtime.block_on(scheduled);
        let took = start.elapsed();
        let scheduled = scheduled.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        self.runtime.block_on(self.scheduler.free(&id))?;
        Ok((took, scheduled.best_worker.worker_id))
    }
}
