//! An executor with all that is around its work: the models it loads, the news of its cache that are
//! under way, and its lives.

use std::collections::{BTreeMap, VecDeque};

use pointsman_core::{
    BlockHash, BlockKind, DeviceId, ExecutorId, Incarnation, Micros, ModelId, PrefixEvent,
    RequestId,
};

use super::{Batched, CacheNews, Each, Hosted, Report, Start, Work};
use crate::fleet::{ExecutorPlan, KvKeeper};
use crate::latency::LatencyProfile;

/// One executor of a simulation.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) id: ExecutorId,
    pub(crate) device: DeviceId,
    pub(crate) incarnation: Incarnation,
    pub(crate) work: Box<dyn Work>,
    loader: Loader,
    /// News of the cache by the time at which the host hears them.
    news: VecDeque<(Micros, PrefixEvent)>,
    news_delay: Micros,
    /// The keeper of the KV blocks: only [`KvKeeper::Server`] tells what it has cached.
    kv: KvKeeper,
    /// Tokens in a block.
    pub(crate) tokens_per_block: u32,
    /// The time for which it has computed.
    pub(crate) busy: Micros,
    pub(crate) is_down: bool,
}

/// The models of an executor.
#[derive(Debug)]
struct Loader {
    takes: Micros,
    models_max: usize,
    /// The models that are loaded, the one that came last at the end.
    loaded: Vec<ModelId>,
    /// The model that is being loaded, and the time at which it is there.
    loading: Option<(ModelId, Micros)>,
    /// Sequences whose model is not loaded.
    held: VecDeque<Start>,
    swaps: u64,
}

impl Station {
    pub(crate) fn new((id, device): (ExecutorId, DeviceId), plan: &ExecutorPlan) -> Self {
        let work: Box<dyn Work> = match (plan.kv, &plan.profile) {
            (KvKeeper::Host, _) => Box::new(Hosted::new(plan)),
            (KvKeeper::Server | KvKeeper::UntoldServer, LatencyProfile::Each(cost)) => {
                Box::new(Each::new(plan, *cost))
            }
            (KvKeeper::Server | KvKeeper::UntoldServer, _) => Box::new(Batched::new(plan)),
        };
        Self {
            id,
            device,
            incarnation: Incarnation(0),
            work,
            loader: Loader {
                takes: plan.model_load,
                models_max: plan.models_max.map_or(usize::MAX, |max| max as usize),
                loaded: Vec::new(),
                loading: None,
                held: VecDeque::new(),
                swaps: 0,
            },
            news: VecDeque::new(),
            news_delay: plan.cache_news_delay,
            kv: plan.kv,
            tokens_per_block: plan.tokens_per_block.max(1),
            busy: Micros(0),
            is_down: false,
        }
    }

    /// The number of times that a model was loaded in another one's place.
    pub(crate) fn swaps(&self) -> u64 {
        self.loader.swaps
    }

    /// The time of the next event: the end of a spell, a model that is loaded, news that arrive.
    pub(crate) fn next_at(&self) -> Option<Micros> {
        let loading = self.loader.loading.map(|(_, at)| at);
        let news = self.news.front().map(|(at, _)| *at);
        [self.work.ends_at(), loading, news]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn start(&mut self, now: Micros, start: Start) {
        match start.order.model {
            Some(model) if self.loader.takes > Micros(0) && !self.loader.has(model) => {
                self.loader.held.push_back(start);
                self.load(now);
            }
            Some(_) | None => self.work.start(start),
        }
    }

    /// Stops a sequence. True if it has left at once.
    pub(crate) fn stop(&mut self, request: RequestId) -> bool {
        let held = &mut self.loader.held;
        let idx = held
            .iter()
            .position(|start| start.order.sequence.request == request);
        match idx {
            Some(idx) => held.remove(idx).is_some(),
            None => self.work.stop(request),
        }
    }

    /// Loads the model of the first sequence that waits for one, unless another is being loaded.
    fn load(&mut self, now: Micros) {
        let loader = &mut self.loader;
        if loader.loading.is_some() {
            return;
        }
        let wanted = loader.held.front().and_then(|start| start.order.model);
        if let Some(model) = wanted {
            if loader.loaded.len() >= loader.models_max {
                loader.loaded.remove(0);
                loader.swaps += 1;
            }
            loader.loading = Some((model, now.after(loader.takes)));
        }
    }

    /// Lets everything happen that is due, and writes down what came of it.
    pub(crate) fn end(&mut self, now: Micros, report: &mut Report) {
        if self.work.ends_at().is_some_and(|at| at <= now) {
            self.work.end(now, report);
            self.hear(now, std::mem::take(&mut report.cache));
        }
        if let Some((model, at)) = self.loader.loading
            && at <= now
        {
            self.loader.loading = None;
            self.loader.loaded.push(model);
            for start in self.loader.take_held(model) {
                self.work.start(start);
            }
            self.load(now);
        }
    }

    /// Begins a spell, if there is work.
    pub(crate) fn begin(&mut self, now: Micros, report: &mut Report) {
        if self.is_down {
            return;
        }
        let before = self.work.ends_at();
        self.work.begin(now, report);
        if let (None, Some(ends)) = (before, self.work.ends_at()) {
            self.busy = self.busy.after(ends.since(now));
        }
    }

    /// The news of the cache that have arrived.
    pub(crate) fn take_news(&mut self, now: Micros) -> Option<PrefixEvent> {
        let (at, _) = self.news.front()?;
        if *at > now {
            return None;
        }
        self.news.pop_front().map(|(_, event)| event)
    }

    fn hear(&mut self, now: Micros, news: CacheNews) {
        if self.kv != KvKeeper::Server {
            return;
        }
        let at = now.after(self.news_delay);
        // What was given up is told first: there may be room for no more.
        for (changed, event) in [
            (news.removed, PrefixEvent::Removed as fn(_, _) -> _),
            (news.stored, PrefixEvent::Stored as fn(_, _) -> _),
        ] {
            let mut by_model: BTreeMap<Option<ModelId>, Vec<BlockHash>> = BTreeMap::new();
            for contents in changed {
                by_model
                    .entry(contents.model)
                    .or_default()
                    .push(contents.hash);
            }
            for (model, hashes) in by_model {
                let kind = BlockKind {
                    model,
                    adapter: None,
                    tokens_per_block: self.tokens_per_block,
                };
                self.news.push_back((at, event(kind, hashes)));
            }
        }
    }

    /// Ends a life: all that ran here is lost, and what was cached.
    pub(crate) fn die(&mut self) {
        self.work.die();
        self.news.clear();
        self.loader.held.clear();
        self.loader.loading = None;
        self.loader.loaded.clear();
        self.incarnation = Incarnation(self.incarnation.0 + 1);
    }
}

impl Loader {
    fn has(&self, model: ModelId) -> bool {
        self.loaded.contains(&model)
    }

    fn take_held(&mut self, model: ModelId) -> Vec<Start> {
        let (ready, held): (Vec<Start>, Vec<Start>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|start| start.order.model == Some(model));
        self.held = held.into();
        ready
    }
}
