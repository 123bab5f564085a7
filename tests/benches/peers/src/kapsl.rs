//! The pool of kapsl-scheduler, under its strategy that goes by load and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use kapsl_engine_api::{
    BinaryTensorPacket, EngineError, EngineMetrics, InferenceRequest, OpenAiWireEndpoint,
    OpenAiWireFormat, OpenAiWireRequest, OpenAiWireResponse, OpenAiWireResponseHead,
};
use kapsl_scheduler::{PoolStrategy, Priority, ReplicaPool, ReplicaScheduler};
use tokio::runtime::Runtime;

use crate::Contender;
use crate::fleet::{self, BLOCKS};

/// A replica that answers at once, and notes that it was chosen.
struct Replica {
    number: u64,
    depth: AtomicUsize,
    chosen: Arc<AtomicU64>,
}

#[async_trait]
impl ReplicaScheduler for Replica {
    fn get_queue_depth(&self) -> (usize, usize) {
        (self.depth.load(Ordering::Relaxed), 0)
    }

    fn is_healthy(&self) -> bool {
        true
    }

    fn get_metrics(&self) -> EngineMetrics {
        let used = self.depth.load(Ordering::Relaxed) * BLOCKS as usize;
        EngineMetrics {
            kv_cache_blocks_total: 1_000_000,
            kv_cache_blocks_free: 1_000_000 - used,
            ..EngineMetrics::default()
        }
    }

    async fn infer(
        &self,
        _: &InferenceRequest,
        _: Priority,
        _: bool,
    ) -> Result<BinaryTensorPacket, EngineError> {
        Err(EngineError::backend("not asked for"))
    }

    async fn infer_openai_wire(
        &self,
        _: OpenAiWireRequest,
        _: Priority,
        _: bool,
    ) -> Result<OpenAiWireResponse, EngineError> {
        self.chosen.store(self.number, Ordering::Relaxed);
        Ok(OpenAiWireResponse {
            head: OpenAiWireResponseHead::new(200, Vec::new())?,
            body: Vec::new(),
        })
    }

    async fn infer_stream(
        &self,
        _: InferenceRequest,
        _: Priority,
        _: bool,
    ) -> Result<
        std::pin::Pin<
            Box<dyn futures::Stream<Item = Result<BinaryTensorPacket, EngineError>> + Send>,
        >,
        EngineError,
    > {
        Err(EngineError::backend("not asked for"))
    }
}

/// The pool.
pub(crate) struct Pool {
    runtime: Runtime,
    pool: ReplicaPool<Replica>,
    replicas: Vec<Arc<Replica>>,
    chosen: Arc<AtomicU64>,
}

impl Pool {
    pub(crate) fn new(n: u64) -> Result<Self> {
        let pool = ReplicaPool::new(PoolStrategy::LeastLoaded);
        let chosen = Arc::new(AtomicU64::new(u64::MAX));
        let mut replicas = Vec::new();
        for number in 0..n {
            let replica = Arc::new(Replica {
                number,
                depth: AtomicUsize::new(fleet::running(number) as usize),
                chosen: chosen.clone(),
            });
            pool.add_replica(u32::try_from(number)?, replica.clone());
            replicas.push(replica);
        }
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread().build()?,
            pool,
            replicas,
            chosen,
        })
    }
}

impl Contender for Pool {
    fn name(&self) -> &str {
        "kapsl-scheduler, pool"
    }

    fn route(&mut self, request: u64) -> Result<(Duration, u64)> {
        let changed = request % self.replicas.len() as u64;
        let depth = &self.replicas[changed as usize].depth;
        depth.store(
            fleet::running(changed + request) as usize,
            Ordering::Relaxed,
        );
        let asked = OpenAiWireRequest::new(
            OpenAiWireEndpoint::ChatCompletions,
            OpenAiWireFormat::Json,
            Vec::new(),
        );
        let start = Instant::now();
        let answer = self
            .pool
            .infer_openai_wire(asked, Priority::Throughput, false);
        let answer = self.runtime.block_on(answer);
        let took = start.elapsed();
        answer.map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok((took, self.chosen.load(Ordering::Relaxed)))
    }
}
