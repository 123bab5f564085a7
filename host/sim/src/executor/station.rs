//! An executor with all that is around its work: the models it loads, the news of its cache that are
//! under way, and its lives.

use std::collections::{BTreeMap, VecDeque};

use pointsman_core::{
    BlockHash, BlockKind, DeviceId, ExecutorId, Incarnation, KvReport, Micros, ModelId,
    PrefixEvent, RequestId,
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
    /// The counts of blocks that it told last in this life.
    told: Option<KvReport>,
    /// Tokens in a block.
    pub(crate) tokens_per_block: u32,
    /// The time for which it has computed, and since when it does so again.
    busy: Micros,
    busy_since: Option<Micros>,
    pub(crate) is_down: bool,
}

/// The models of an executor.
#[derive(Debug)]
struct Loader {
    takes: Micros,
    models_max: usize,
    /// The models that are loaded, the one that was asked for last at the end.
    loaded: Vec<ModelId>,
    /// The models of the sequences that are at work. None of them is unloaded.
    used: BTreeMap<RequestId, ModelId>,
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
            told: work.kv(),
            work,
            loader: Loader {
                takes: plan.model_load,
                models_max: plan.models_max.map_or(usize::MAX, |max| max as usize),
                loaded: Vec::new(),
                used: BTreeMap::new(),
                loading: None,
                held: VecDeque::new(),
                swaps: 0,
            },
            news: VecDeque::new(),
            news_delay: plan.cache_news_delay,
            kv: plan.kv,
            tokens_per_block: plan.tokens_per_block.max(1),
            busy: Micros(0),
            busy_since: None,
            is_down: false,
        }
    }

    /// The time for which it has computed by now.
    pub(crate) fn busy(&self, now: Micros) -> Micros {
        let lasting = self.busy_since.map(|since| now.since(since));
        self.busy.after(lasting.unwrap_or_default())
    }

    /// Notes the beginning or the end of a time in which it computes.
    fn note_busy(&mut self, now: Micros) {
        match (self.busy_since, self.work.ends_at()) {
            (None, Some(_)) => self.busy_since = Some(now),
            (Some(_), None) => {
                self.busy = self.busy(now);
                self.busy_since = None;
            }
            (None, None) | (Some(_), Some(_)) => {}
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
            Some(_) | None => self.take_up(start),
        }
    }

    /// Takes up a sequence whose model is there.
    fn take_up(&mut self, start: Start) {
        self.loader.begin_use(&start);
        self.work.start(start);
    }

    /// Stops a sequence. True if it has left at once.
    pub(crate) fn stop(&mut self, now: Micros, request: RequestId) -> bool {
        let held = &mut self.loader.held;
        let idx = held
            .iter()
            .position(|start| start.order.sequence.request == request);
        if let Some(idx) = idx {
            return held.remove(idx).is_some();
        }
        let has_left = self.work.stop(request);
        if has_left {
            self.loader.used.remove(&request);
        }
        self.note_busy(now);
        has_left
    }

    /// Takes a sequence out, as a failure does. False if it is not at work.
    pub(crate) fn fail(&mut self, now: Micros, request: RequestId) -> bool {
        let was_there = self.work.fail(request);
        if was_there {
            self.loader.used.remove(&request);
        }
        self.note_busy(now);
        was_there
    }

    /// Loads the model of the first sequence that waits for one, unless another is being loaded or
    /// all that are there are at work.
    fn load(&mut self, now: Micros) {
        let loader = &mut self.loader;
        if loader.loading.is_some() {
            return;
        }
        let wanted = loader.held.front().and_then(|start| start.order.model);
        if let Some(model) = wanted
            && loader.make_room()
        {
            loader.loading = Some((model, now.after(loader.takes)));
        }
    }

    /// Lets everything happen that is due, and writes down what came of it.
    pub(crate) fn end(&mut self, now: Micros, report: &mut Report) {
        if self.work.ends_at().is_some_and(|at| at <= now) {
            self.work.end(now, report);
            self.note_busy(now);
            self.hear(now, std::mem::take(&mut report.cache));
            self.loader.end_uses(report);
            self.tell_kv(report);
        }
        if let Some((model, at)) = self.loader.loading
            && at <= now
        {
            self.loader.loading = None;
            self.loader.loaded.push(model);
            for start in self.loader.take_held(model) {
                self.take_up(start);
            }
            self.load(now);
        }
    }

    /// Begins a spell, if there is work.
    pub(crate) fn begin(&mut self, now: Micros, report: &mut Report) {
        if self.is_down {
            return;
        }
        self.work.begin(now, report);
        self.note_busy(now);
        self.loader.end_uses(report);
        self.load(now);
        self.tell_kv(report);
    }

    /// Notes the counts of blocks that it tells. A server that has become idle tells them at once: until
    /// it has work again it tells no others.
    fn tell_kv(&mut self, report: &mut Report) {
        let is_idle = self.work.is_idle() && self.loader.held.is_empty();
        if report.kv.is_none() && is_idle {
            report.kv = self.work.kv().filter(|kv| self.told != Some(*kv));
        }
        self.told = report.kv.or(self.told);
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
    pub(crate) fn die(&mut self, now: Micros) {
        self.work.die();
        self.note_busy(now);
        self.told = None;
        self.news.clear();
        self.loader.held.clear();
        self.loader.loading = None;
        self.loader.loaded.clear();
        self.loader.used.clear();
        self.incarnation = Incarnation(self.incarnation.0 + 1);
    }
}

impl Loader {
    fn has(&self, model: ModelId) -> bool {
        self.loaded.contains(&model)
    }

    /// Notes that a sequence uses its model, if that was loaded for it.
    fn begin_use(&mut self, start: &Start) {
        let model = start.order.model;
        let place = self.loaded.iter().position(|it| Some(*it) == model);
        if let Some(place) = place {
            let model = self.loaded.remove(place);
            self.loaded.push(model);
            self.used.insert(start.order.sequence.request, model);
        }
    }

    /// Notes that sequences have ended.
    fn end_uses(&mut self, report: &Report) {
        let finished = report.finished.iter().map(|finished| &finished.request);
        for request in finished.chain(&report.left).chain(&report.failed) {
            self.used.remove(request);
        }
    }

    /// Unloads the model that was asked for longest ago of those that no sequence uses, if there is no
    /// room for another. False if all are in use.
    fn make_room(&mut self) -> bool {
        if self.loaded.len() < self.models_max {
            return true;
        }
        let is_used = |model: &ModelId| self.used.values().any(|used| used == model);
        let Some(place) = self.loaded.iter().position(|model| !is_used(model)) else {
            return false;
        };
        self.loaded.remove(place);
        self.swaps += 1;
        true
    }

    fn take_held(&mut self, model: ModelId) -> Vec<Start> {
        let (ready, held): (Vec<Start>, Vec<Start>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|start| start.order.model == Some(model));
        self.held = held.into();
        ready
    }
}
