//! The models that a server has loaded, and the orders to load and unload them.
//!
//! A request whose model is not loaded has it loaded before it goes there, and waits for that as long as loading takes:
//! routers of llama.cpp load and unload, Ollama too, and vLLM puts its model to sleep and wakes it. Other
//! servers, and those that do not tell what is loaded, are left to themselves.
//!
//! # Room
//! A server takes one order at a time. Before a model is loaded where as many are as may be, the one leaves that has
//! been idle for the longest time. No model is told to leave while it runs a request of ours, by whichever name: while
//! requests of ours run by a name that is not listed as loaded, none is, since their weights may be those of one that
//! looks idle, and the server makes room by itself. A request that comes by such a name when the order has been sent
//! is not waited for.
//!
//! A model is idle since its last request of ours, or since it was loaded: whoever had it loaded needs it. The only
//! model of a server is so by all of its names.
//!
//! # Loads of others
//! A model that the server is loading already gets no second order, whoever gave the first: another host, the server
//! itself, or a request of ours whose client has left. Requests wait for it as for a load of ours.

mod orders;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use pointsman_events::Availability;
use pointsman_notation::Time;
use serde_json::Value;
use tokio::sync::Mutex as Turn;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::asker::PATIENCE;
use crate::client::ServerClient;
use crate::findings::Findings;

use orders::refuse_failed;
pub(crate) use orders::{Loaded, Orders, has_failed, loaded_by_router};

/// The time between two looks at a model that is being loaded or unloaded.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The terms of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidencyTerms {
    /// Most models that may be loaded; absent: as many as the server says.
    pub(crate) models_max: Option<u32>,
    /// The longest time in which a model is loaded.
    pub(crate) load_timeout: Duration,
    /// The time after which a model without requests of ours is unloaded; absent: never.
    pub(crate) unload_after: Option<Duration>,
}

/// The way to a server, and the terms on which it is given orders.
#[derive(Clone, Debug)]
pub(crate) struct ModelAccess {
    pub(crate) client: ServerClient,
    pub(crate) terms: ResidencyTerms,
}

/// The models of one server.
#[derive(Debug)]
pub(crate) struct Residency {
    // Immutable.
    executor: String,
    // Owned.
    /// The way to the server, which operators change while it serves.
    reach: Mutex<ModelAccess>,
    known: Mutex<Known>,
    /// Held by whoever gives the server an order.
    turn: Turn<()>,
}

/// The server as far as it is known.
#[derive(Debug, Default)]
struct Known {
    /// The orders that it takes; absent: none.
    orders: Option<Orders>,
    /// The most models that it has loaded at once, by its own word; absent: it does not say.
    models_max: Option<u32>,
    models: BTreeMap<String, Resident>,
    /// The model that is being unloaded. Whoever wants it has it loaded again.
    leaving: Option<String>,
}

/// A model at the server.
#[derive(Debug)]
struct Resident {
    state: LoadState,
    /// Requests of ours, those included that wait for the model.
    ours: u32,
    /// Requests of ours that wait until it is loaded.
    waiting: u32,
    /// The time since which there are none, or since which it is loaded, whichever is later.
    idle_since: Instant,
}

/// The state of a model, as far as the server tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadState {
    /// The server has told nothing of it.
    Untold,
    Unloaded,
    /// The server is loading it, on whoever's order.
    Loading,
    Loaded,
    /// It is ready for requests, and the server does not list it.
    Unlisted,
}

/// The unloading of a model, until it is dropped.
struct Leaving<'a>(&'a Residency);

/// The wait of a request for its model, which is over when it is dropped.
struct Waiting<'a> {
    residency: &'a Residency,
    model: &'a str,
}

/// A request of ours for a model, until it is dropped.
#[derive(Debug)]
pub(crate) struct Attendance {
    residency: Arc<Residency>,
    model: String,
}

// === impl Known ===

impl Known {
    /// The model of this name, which may be new.
    fn resident(&mut self, model: &str) -> &mut Resident {
        self.models.entry(model.to_owned()).or_default()
    }

    /// True while requests of ours run that may need the weights of a model that looks idle: the name that they use is
    /// not listed as loaded, or the server has one model by all of its names.
    fn hides_use(&self, orders: Orders) -> bool {
        let mut running = self.models.values().filter(|it| it.ours > it.waiting);
        running.any(|it| orders.has_one_model() || it.state != LoadState::Loaded)
    }

    /// The time since which a server's only model is idle by all of its names; absent: it has several models.
    fn only_idle_since(&self, orders: Orders) -> Option<Instant> {
        let since = self.models.values().map(|it| it.idle_since);
        since.max().filter(|_| orders.has_one_model())
    }
}

// === impl Residency ===

impl Residency {
    pub(crate) fn new(executor: String, reach: ModelAccess) -> Arc<Self> {
        Arc::new(Self {
            executor,
            reach: Mutex::new(reach),
            known: Mutex::default(),
            turn: Turn::new(()),
        })
    }

    /// Reaches the server in this way from now on.
    pub(crate) fn describe(&self, reach: ModelAccess) {
        *self.reach() = reach;
    }

    /// Forgets what is loaded: another server is there. Requests of ours stay counted.
    pub(crate) fn forget(&self) {
        let mut known = self.known();
        known.orders = None;
        known.models_max = None;
        known.models.retain(|_, resident| resident.ours > 0);
        for resident in known.models.values_mut() {
            resident.state = LoadState::Untold;
        }
    }

    /// Takes note of what a round of questions found. A server that takes nothing now keeps what it had.
    pub(crate) fn found(&self, findings: &Findings) {
        if findings.availability != Availability::Open {
            return;
        }
        let models = findings.models.iter().flat_map(|models| models.iter());
        let models: Vec<&str> = models.map(|model| &*model.name).collect();
        let orders = findings.software.and_then(Orders::of);
        self.known().models_max = findings.models_max;
        self.take_note(orders, &models, findings.loaded.as_ref());
    }

    fn take_note(&self, orders: Option<Orders>, models: &[&str], loaded: Option<&Loaded>) {
        let mut known = self.known();
        known.orders = orders.filter(|_| loaded.is_some());
        let Some(loaded) = loaded else { return };
        known.models.retain(|name, resident| {
            resident.ours > 0 || loaded.state(name).is_some() || models.contains(&&**name)
        });
        for name in models.iter().copied().chain(loaded.all()) {
            known.resident(name).take_note(loaded.state(name));
        }
    }

    /// The models that are loaded, or need not be; absent: the server does not tell.
    pub(crate) fn loaded(&self) -> Option<Vec<String>> {
        let known = self.known();
        let models = known.models.iter();
        let loaded = models.filter(|(_, resident)| resident.state.is_ready());
        let names = loaded.map(|(name, _)| name.clone()).collect();
        known.orders.map(|_| names)
    }

    /// Counts a request for a model, until what is returned is dropped.
    pub(crate) fn attend(self: &Arc<Self>, model: &str) -> Attendance {
        let mut known = self.known();
        known.resident(model).ours += 1;
        Attendance {
            residency: Arc::clone(self),
            model: model.to_owned(),
        }
    }

    /// The models that requests of ours are for.
    pub(crate) fn attended(&self) -> BTreeSet<String> {
        let known = self.known();
        let attended = known
            .models
            .iter()
            .filter(|(_, resident)| resident.ours > 0);
        attended.map(|(name, _)| name.clone()).collect()
    }

    /// Waits until a model is loaded, and has it loaded. A server that takes no orders is ready.
    ///
    /// # Errors
    /// If the server cannot load it, or not in time, with the reason.
    ///
    /// # Cancellation
    /// The server goes on loading.
    async fn bring(&self, model: &str) -> Result<(), String> {
        if self.lacks(model).is_none() {
            return Ok(());
        }
        let limit = self.terms().load_timeout;
        let waiting = Waiting::new(self, model);
        let brought = async {
            let _turn = self.turn.lock().await;
            // Dropped before the turn: to whoever has the turn next, this request is one that runs.
            let _waiting = waiting;
            self.bring_now(model).await
        };
        let brought = timeout(limit, brought).await;
        brought.unwrap_or_else(|_elapsed| {
            let limit = Time(limit);
            Err(format!("`{model}` was not loaded in {limit}"))
        })
    }

    async fn bring_now(&self, model: &str) -> Result<(), String> {
        // Somebody else may have had it loaded meanwhile, or the server by itself.
        self.look().await?;
        while let Some(orders) = self.lacks(model) {
            if self.is_loading(model) {
                sleep(LOOK_EVERY).await;
                refuse_failed(&self.look().await?, model)?;
                continue;
            }
            let Some(idle) = self.in_the_way() else {
                let executor = &*self.executor;
                info!(executor, model, "a model is loaded");
                return self.order(orders, (model, Wanted::Loaded)).await;
            };
            self.unload(orders, &idle).await?;
        }
        Ok(())
    }

    /// Unloads the models that have been idle for long. Where an order is under way, that is left to the next call.
    pub(crate) async fn unload_idle(self: Arc<Self>) {
        let Some(after) = self.terms().unload_after else {
            return;
        };
        let Ok(_turn) = self.turn.try_lock() else {
            return;
        };
        while let Some((orders, model)) = self.take_due(after) {
            let unloaded = timeout(self.terms().load_timeout, self.unload(orders, &model)).await;
            if let Ok(Err(why)) = unloaded {
                warn!(
                    executor = self.executor,
                    model, why, "a model is not unloaded"
                );
                return;
            }
        }
    }

    async fn unload(&self, orders: Orders, model: &str) -> Result<(), String> {
        // It leaves since `take_idle` chose it.
        let _leaving = Leaving(self);
        info!(executor = self.executor, model, "a model is unloaded");
        self.order(orders, (model, Wanted::Gone)).await
    }

    /// The orders by which a model is to be loaded; absent: it is, or the server loads it by itself.
    fn lacks(&self, model: &str) -> Option<Orders> {
        let known = self.known();
        let state = known.models.get(model)?.state;
        let orders = known.orders?;
        let goes_with = |leaving: &str| leaving == model || orders.has_one_model();
        let leaves = known.leaving.as_deref().is_some_and(goes_with);
        (leaves || state.is_lacking()).then_some(orders)
    }

    /// True while the server loads a model, on whoever's order.
    fn is_loading(&self, model: &str) -> bool {
        let known = self.known();
        let resident = known.models.get(model);
        resident.is_some_and(|it| it.state == LoadState::Loading)
    }

    /// A model that has to leave before another is loaded; absent: none has to, or none can.
    fn in_the_way(&self) -> Option<String> {
        let max = self.terms().models_max.or(self.known().models_max)?;
        let max = usize::try_from(max).ok()?;
        let is_loaded = |it: &&Resident| it.state == LoadState::Loaded;
        if self.known().models.values().filter(is_loaded).count() < max {
            return None;
        }
        let (_, model) = self.take_idle(|_since| true)?;
        Some(model)
    }

    /// The model that has been idle for the longest time, if that is so long, as [`Residency::take_idle`] has it.
    fn take_due(&self, after: Duration) -> Option<(Orders, String)> {
        self.take_idle(|since| since.elapsed() >= after)
    }

    /// The loaded model without requests of ours that has been so for the longest time, if `is_due` by the time since
    /// which it is idle; absent too while it cannot be told which one that is. It leaves from now on, and counts as
    /// unloaded, so that requests that come now have it loaded again.
    fn take_idle(&self, is_due: impl Fn(Instant) -> bool) -> Option<(Orders, String)> {
        let known = &mut *self.known();
        let orders = known.orders?;
        if known.hides_use(orders) {
            return None;
        }
        let only_since = known.only_idle_since(orders);
        let idle = known.models.iter_mut();
        let idle = idle.filter(|(_, it)| it.state == LoadState::Loaded && it.ours == 0);
        let (name, longest) = idle.min_by_key(|(_, it)| it.idle_since)?;
        if !is_due(only_since.unwrap_or(longest.idle_since)) {
            return None;
        }
        longest.state = LoadState::Unloaded;
        known.leaving = Some(name.clone());
        Some((orders, name.clone()))
    }

    fn client(&self) -> ServerClient {
        self.reach().client.clone()
    }

    fn terms(&self) -> ResidencyTerms {
        self.reach().terms
    }

    fn reach(&self) -> MutexGuard<'_, ModelAccess> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of a model that an order is to bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Loaded,
    Gone,
}

// === impl Residency: at the server ===

impl Residency {
    /// Gives an order, and waits until it is carried out.
    async fn order(&self, orders: Orders, (model, wanted): (&str, Wanted)) -> Result<(), String> {
        let (path, body) = match wanted {
            Wanted::Loaded => orders.load(model),
            Wanted::Gone => orders.unload(model),
        };
        let mut headers = HeaderMap::new();
        let body = body.map_or_else(Bytes::new, |body| {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
            body.to_string().into()
        });
        let call = (Method::POST, path);
        let ModelAccess { client, terms } = self.reach().clone();
        let sent = client.ask(call, (headers, body), terms.load_timeout).await;
        let (status, answer) = sent.map_err(|error| error.to_string())?;
        if wanted == Wanted::Loaded && orders.is_ready(status, &answer) {
            // The next look tells if it is listed.
            self.known().resident(model).state = LoadState::Unlisted;
            return Ok(());
        }
        // It may have become so by itself.
        if !status.is_success() && status != StatusCode::BAD_REQUEST {
            return Err(format!("{path} answers {status}"));
        }
        let refused = (!status.is_success()).then(|| String::from_utf8_lossy(&answer).into_owned());
        loop {
            let answer = self.look().await?;
            if self.is(model, wanted) {
                return Ok(());
            }
            // One that is being loaded already is refused, and comes all the same.
            if let Some(refused) = refused.as_ref().filter(|_| !self.is_loading(model)) {
                return Err(format!("{path} answers {status}: {refused}"));
            }
            refuse_failed(&answer, model)?;
            sleep(LOOK_EVERY).await;
        }
    }

    /// Looks at what is loaded, and returns the answer.
    async fn look(&self) -> Result<Value, String> {
        let (orders, models) = {
            let known = self.known();
            let models: Vec<String> = known.models.keys().cloned().collect();
            (known.orders, models)
        };
        let Some(orders) = orders else {
            return Ok(Value::Null);
        };
        let path = orders.look_path();
        let asked = self.client().json(path, PATIENCE).await;
        let answer = asked
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let models: Vec<&str> = models.iter().map(|name| &**name).collect();
        let loaded = orders.loaded_in(&answer, &models);
        self.take_note(Some(orders), &models, loaded.as_ref());
        Ok(answer)
    }

    /// True if there is nothing to wait for: the model is as it is wanted, nothing is told of it any more, or it is to
    /// go and requests have come that may need it.
    fn is(&self, model: &str, wanted: Wanted) -> bool {
        let known = self.known();
        let resident = known.models.get(model);
        let is_so = match resident.map_or(LoadState::Untold, |it| it.state) {
            LoadState::Untold | LoadState::Unlisted => true,
            LoadState::Loaded => wanted == Wanted::Loaded,
            LoadState::Unloaded | LoadState::Loading => wanted == Wanted::Gone,
        };
        let hides_use = || known.orders.is_some_and(|orders| known.hides_use(orders));
        known.orders.is_none() || is_so || (wanted == Wanted::Gone && hides_use())
    }
}

// === impl Resident ===

impl Resident {
    /// Takes note of the state that the server tells; absent: it lists the model as neither loaded nor being loaded.
    fn take_note(&mut self, told: Option<LoadState>) {
        let state = told.unwrap_or(self.state.not_listed());
        if state == LoadState::Loaded && self.state != LoadState::Loaded {
            self.idle_since = Instant::now();
        }
        self.state = state;
    }
}

impl Default for Resident {
    fn default() -> Self {
        Self {
            state: LoadState::Untold,
            ours: 0,
            waiting: 0,
            idle_since: Instant::now(),
        }
    }
}

// === impl LoadState ===

impl LoadState {
    /// True if a request for the model needs no order before it.
    fn is_ready(self) -> bool {
        match self {
            LoadState::Loaded | LoadState::Unlisted => true,
            LoadState::Untold | LoadState::Unloaded | LoadState::Loading => false,
        }
    }

    /// True if a request for the model has to wait until it is loaded.
    fn is_lacking(self) -> bool {
        match self {
            LoadState::Unloaded | LoadState::Loading => true,
            LoadState::Untold | LoadState::Loaded | LoadState::Unlisted => false,
        }
    }

    /// The state after an answer that lists the model as neither loaded nor being loaded, which is no news of one that
    /// was not listed when it was ready.
    fn not_listed(self) -> Self {
        match self {
            LoadState::Unlisted => LoadState::Unlisted,
            LoadState::Untold | LoadState::Unloaded | LoadState::Loading | LoadState::Loaded => {
                LoadState::Unloaded
            }
        }
    }
}

// === impl Leaving ===

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.known().leaving = None;
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    fn new(residency: &'a Residency, model: &'a str) -> Self {
        residency.known().resident(model).waiting += 1;
        Self { residency, model }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut known = self.residency.known();
        if let Some(resident) = known.models.get_mut(self.model) {
            resident.waiting = resident.waiting.saturating_sub(1);
        }
    }
}

// === impl Attendance ===

impl Attendance {
    /// True if the model has to be loaded first.
    pub(crate) fn is_lacking(&self) -> bool {
        self.residency.lacks(&self.model).is_some()
    }

    /// Waits until the model is loaded, as [`Residency::bring`] does.
    pub(crate) async fn loaded(&self) -> Result<(), String> {
        self.residency.bring(&self.model).await
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let mut known = self.residency.known();
        if let Some(resident) = known.models.get_mut(&self.model) {
            resident.ours = resident.ours.saturating_sub(1);
            resident.idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
