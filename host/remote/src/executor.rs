//! The task of one server: takes commands, runs each request in a task of its own, has the server asked,
//! and tells the driver.

mod configure;
mod room;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pointsman_events::{
    Availability, ExecutorId, Incarnation, Progress, RequestId, RetryClass, SequenceRef, StepReport,
};
use pointsman_executor::contract::{Command, Event, Events, ServerChange, Start};
use pointsman_executor::delivery::StopReason;
use pointsman_executor::handle::{EngineHandle, EngineWork, FoundModel};
use pointsman_executor::job::JobState;
use pointsman_executor::relay::BrokenStream;
use pointsman_executor::server::{BrokenStreams, ServerConfig, ServerLoad};
use pointsman_executor::stats::EngineStats;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use crate::asker::unheard;
use crate::client::{Connections, ServerClient};
use crate::findings::Findings;
use crate::open::OpenCall;
use crate::poll::{self, AskedRound, Poll};
use crate::residency::{ModelAccess, Residency, ResidencyTerms};
use crate::sequence::{Sequence, SequenceEnd, Timeouts};
use crate::watch::Usage;

/// Commands that may wait for the task. Those that find no room wait with the driver.
const COMMANDS_MAX: usize = 256;
/// News of requests that may wait for the task.
const NEWS_MAX: usize = 256;
/// The time between two reports of tokens.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// The time for which a load counts that somebody has told: long enough for one who tells it every few
/// seconds, and not much longer than he is there.
const TOLD_FOR: Duration = Duration::from_secs(10);

/// The parts of an executor elsewhere, put together by the server.
pub struct RemoteSpec {
    /// The executor's id in the machine.
    pub executor: ExecutorId,
    /// The executor's first life.
    pub incarnation: Incarnation,
    /// The server.
    pub server: ServerConfig,
    /// Most models that it may have loaded where it takes orders; absent: it decides.
    pub models_max: Option<u32>,
    /// The connections by which it is reached.
    pub connections: Connections,
    /// The channel for events. The task waits where it has no room.
    pub events: mpsc::Sender<Events>,
}

/// News of the tasks of an executor.
#[derive(Debug)]
pub(crate) enum News {
    /// The first bytes of a response have come.
    Began(SequenceRef),
    /// The prompt of a request whose answer comes as a whole is taken to be read.
    TakenAsRead(SequenceRef),
    /// The server was given orders for a request's model, and other models may be loaded.
    Swapped,
    /// A request has ended at the server.
    Ended(SequenceRef, SequenceEnd, Option<Box<BrokenStream>>),
}

/// The part of what was heard that the driver is told.
enum Heard {
    Nothing,
    /// These events, or that the server was heard.
    News(Vec<Event>),
}

/// The task of an executor elsewhere.
struct Remote {
    // Immutable, but for a new description.
    spec: RemoteSpec,
    client: ServerClient,
    // Immutable.
    name: String,
    runtime: Handle,
    stats: Arc<EngineStats>,
    found: watch::Sender<Arc<[FoundModel]>>,
    residency: Arc<Residency>,
    poll: Arc<Poll>,
    news: mpsc::Sender<News>,
    // Owned.
    /// The findings of the task that asks the server, which ends with this.
    findings: mpsc::Receiver<AskedRound>,
    running: BTreeMap<RequestId, OpenCall>,
    standing: Standing,
}

/// The server as it was told last.
#[derive(Debug, Default)]
struct Standing {
    availability: Option<Availability>,
    /// The load that counts: as it was told, else as it was found.
    load: ServerLoad,
    /// The load that was found by asking.
    found_load: ServerLoad,
    /// The load that somebody has told, and the end of its time.
    told: Option<(ServerLoad, Instant)>,
    slots: Option<u32>,
    /// The models that it has loaded; absent: it does not tell.
    loaded_models: Option<Vec<String>>,
    /// Requests that the server was found to take at once; absent: as many as it says.
    learned: Option<u32>,
    /// The last pause of a server that had no room, or took no connection; zero: it has served since.
    busy_pause: Duration,
    models_max: ModelsMax,
}

/// The most models that a server has loaded at once; absent: there is no bound.
#[derive(Clone, Copy, Debug, Default)]
struct ModelsMax {
    /// By its own word.
    found: Option<u32>,
    /// As the driver has it.
    told: Option<u32>,
}

/// Starts the task of an executor elsewhere on `runtime`. It ends when the driver drops its commands.
#[must_use]
pub fn spawn(runtime: &Handle, spec: RemoteSpec) -> EngineHandle {
    let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
    let (news, news_inbox) = mpsc::channel(NEWS_MAX);
    let stats = Arc::new(EngineStats::default());
    let (found, found_seen) = watch::channel(Arc::from([]));
    let client = ServerClient::new(spec.connections.clone(), &spec.server);
    let poll = Arc::new(Poll::default());
    let name = spec.server.executor_name();
    let residency = Residency::new(name.clone(), spec.reach(&client));
    let remote = Remote {
        findings: poll::start(runtime, &spec.server, (&client, &residency, &poll)),
        runtime: runtime.clone(),
        name,
        client,
        stats: Arc::clone(&stats),
        found,
        residency,
        poll,
        news,
        running: BTreeMap::new(),
        standing: Standing {
            models_max: ModelsMax {
                found: None,
                told: spec.models_max,
            },
            ..Standing::default()
        },
        spec,
    };
    runtime.spawn(remote.run(inbox, news_inbox));
    EngineHandle {
        commands,
        stats,
        work: EngineWork::Task,
        found: Some(found_seen),
    }
}

// === impl RemoteSpec ===

impl RemoteSpec {
    /// The way to the server's models.
    fn reach(&self, client: &ServerClient) -> ModelAccess {
        ModelAccess {
            client: client.clone(),
            terms: ResidencyTerms {
                models_max: self.models_max,
                load_timeout: self.server.load_timeout,
                unload_after: self.server.unload_after,
            },
        }
    }
}

// === impl Heard ===

impl Heard {
    fn of(events: Vec<Event>) -> Self {
        if events.is_empty() {
            Heard::Nothing
        } else {
            Heard::News(events)
        }
    }
}

// === impl Remote ===

impl Remote {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, mut news: mpsc::Receiver<News>) {
        self.name_models(&[]);
        if let Some(part) = self.takes_part(BrokenStreams::End) {
            // Without a driver the first command tells.
            drop(self.report(vec![part]).await);
        }
        let mut reports = interval(REPORT_EVERY);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let heard = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => Heard::of(self.command(command)),
                    None => break,
                },
                Some(news) = news.recv() => self.hear(news),
                Some(round) = self.findings.recv() => self.hear_of(round),
                _ = reports.tick(), if !self.running.is_empty() => Heard::of(self.progress()),
            };
            if let Heard::News(events) = heard
                && self.report(events).await.is_err()
            {
                break;
            }
        }
        for running in self.running.values() {
            running.task.abort();
        }
    }

    async fn report(&self, list: Vec<Event>) -> Result<(), mpsc::error::SendError<Events>> {
        let events = Events {
            executor: self.spec.executor,
            incarnation: self.spec.incarnation,
            list,
        };
        self.spec.events.send(events).await
    }

    fn command(&mut self, command: Command) -> Vec<Event> {
        match command {
            Command::Start(start) => self.start(*start),
            Command::Cancel(sequence) | Command::Evict { sequence, .. } => self.leave(sequence),
            // A server elsewhere has no blocks of ours, and makes steps of its own.
            Command::Grant { .. } | Command::SetBudget { .. } | Command::Arrange(_) => Vec::new(),
            Command::Load(told) => self.told(told),
            Command::Configure { server, models_max } => self.configure(*server, models_max),
        }
    }

    /// Passes a request on.
    fn start(&mut self, start: Start) -> Vec<Event> {
        let sequence = start.order.sequence;
        let mut state = Box::new(start.sequence);
        let Some(call) = state.job.call.clone() else {
            let why = "the request cannot be passed on".to_owned();
            return vec![
                Event::Started(sequence),
                failed(sequence, RetryClass::Elsewhere, why, Some(state)),
            ];
        };
        let generated = Arc::new(AtomicU32::new(0));
        let task = Sequence {
            name: sequence,
            executor: self.name.clone(),
            call,
            sink: state.sink.clone(),
            trace: start.trace,
            client: self.client.clone(),
            residency: Arc::clone(&self.residency),
            broken_streams: self.spec.server.broken_streams,
            broken: state.broken.take(),
            timeouts: Timeouts {
                first_byte: self.spec.server.first_byte_timeout,
                stall: self.spec.server.stall_timeout,
            },
            generated: Arc::clone(&generated),
            news: self.news.clone(),
        };
        let task = tokio::spawn(task.run()).abort_handle();
        let url = self.spec.server.url.clone();
        let running = OpenCall::new(&start.order, state, task, generated, url);
        self.running.insert(sequence.request, running);
        self.count_ours();
        vec![Event::Started(sequence)]
    }

    /// Ends a request whose client has left, or which is to go on elsewhere.
    fn leave(&mut self, sequence: SequenceRef) -> Vec<Event> {
        let Some(running) = self.take(sequence) else {
            return Vec::new();
        };
        running.task.abort();
        let counted = running.prompt_counted(Usage::default());
        let left = Event::Left {
            sequence,
            state: running.state,
            swapped_tokens: 0,
        };
        counted.into_iter().chain([left]).collect()
    }

    fn hear(&mut self, news: News) -> Heard {
        match news {
            News::Began(sequence) => Heard::of(self.began(sequence).into_iter().collect()),
            News::TakenAsRead(sequence) => Heard::of(self.read(sequence).into_iter().collect()),
            News::Swapped => Heard::of(self.models_loaded().into_iter().collect()),
            News::Ended(sequence, end, broken) => Heard::of(self.ended(sequence, end, broken)),
        }
    }

    fn hear_of(&mut self, round: AskedRound) -> Heard {
        match round.asked {
            // A request was turned back since: that it answers is all that counts.
            Ok(findings)
                if findings.availability == Availability::Open
                    && self.poll.is_early(round.begun) =>
            {
                Heard::News(Vec::new())
            }
            // That it answers is news, though nothing has changed.
            Ok(findings) => Heard::News(self.asked(findings)),
            Err(error) => {
                // Those count that run there now: it may be long since it was asked.
                let availability = unheard(&error, self.running.len());
                let told = availability.and_then(|it| self.available(it, &error.to_string()));
                Heard::of(told.into_iter().collect())
            }
        }
    }

    fn began(&mut self, sequence: SequenceRef) -> Option<Event> {
        let made = self.open(sequence)?.begin();
        Some(self.stepped(vec![made]))
    }

    fn read(&mut self, sequence: SequenceRef) -> Option<Event> {
        let made = self.open(sequence)?.take_as_read()?;
        Some(self.stepped(vec![made]))
    }

    /// The request of a sequence that is at the server.
    fn open(&mut self, sequence: SequenceRef) -> Option<&mut OpenCall> {
        let running = self.running.get_mut(&sequence.request)?;
        (running.sequence == sequence).then_some(running)
    }

    /// Reports the tokens of all requests since the last report.
    fn progress(&mut self) -> Vec<Event> {
        let made: Vec<Progress> = self
            .running
            .values_mut()
            .filter_map(OpenCall::made)
            .collect();
        if made.is_empty() {
            return Vec::new();
        }
        vec![self.stepped(made)]
    }

    fn stepped(&self, progress: Vec<Progress>) -> Event {
        self.stats.count_step(&progress);
        Event::Stepped(StepReport {
            executor: self.spec.executor,
            incarnation: self.spec.incarnation,
            progress,
        })
    }

    fn ended(
        &mut self,
        sequence: SequenceRef,
        end: SequenceEnd,
        broken: Option<Box<BrokenStream>>,
    ) -> Vec<Event> {
        if end == SequenceEnd::ClientGone {
            // The driver will hear of it, and cancel the request.
            return Vec::new();
        }
        let Some(mut running) = self.take(sequence) else {
            return Vec::new();
        };
        running.state.broken = broken;
        // Of those that are to go on elsewhere nothing was read.
        let unread = running.prompt_counted(Usage::default());
        let name = &*self.name;
        match end {
            SequenceEnd::Served(usage, answer) => {
                self.standing.busy_pause = Duration::ZERO;
                let last = running.last(usage);
                let stepped = last.map(|made| self.stepped(vec![made]));
                let counted = running.prompt_counted(usage);
                let stop = StopReason::Stop;
                let finished = Event::Finished { sequence, stop };
                let told = stepped.into_iter().chain(counted);
                let answered = answer.map(|answer| Event::Answered(sequence, answer));
                told.chain(answered).chain([finished]).collect()
            }
            SequenceEnd::TurnedBack { why, retry_after } => {
                debug!(executor = name, why, "a request was turned back");
                let mut events = self.turned_back(&running.url, retry_after);
                events.extend(unread);
                let state = Some(running.state);
                events.push(failed(sequence, RetryClass::Anywhere, why, state));
                events
            }
            SequenceEnd::Unreachable(why) => {
                // Before the request goes anywhere: it is to find the server silent.
                let told = self.not_reached(&running.url, &why);
                let state = Some(running.state);
                let failed = failed(sequence, RetryClass::Anywhere, why, state);
                told.into_iter().chain(unread).chain([failed]).collect()
            }
            SequenceEnd::TooLong(longer) => {
                let why = "the prompt is too long for it".to_owned();
                debug!(
                    executor = name,
                    why, "a request goes where the context is longer"
                );
                running.state.longer = Some(longer);
                let failed = failed(sequence, RetryClass::Anywhere, why, Some(running.state));
                unread.into_iter().chain([failed]).collect()
            }
            SequenceEnd::Failed(why) => {
                self.poll.nudge.notify_one();
                let failed = failed(sequence, RetryClass::Elsewhere, why, Some(running.state));
                unread.into_iter().chain([failed]).collect()
            }
            SequenceEnd::Interrupted(why) => {
                self.poll.nudge.notify_one();
                let last = running.last(Usage::default());
                let stepped = last.map(|made| self.stepped(vec![made]));
                let state = Some(running.state);
                let failed = failed(sequence, RetryClass::Elsewhere, why, state);
                stepped.into_iter().chain([failed]).collect()
            }
            SequenceEnd::Broken(why, usage) => {
                self.poll.nudge.notify_one();
                let last = running.last(usage);
                let stepped = last.map(|made| self.stepped(vec![made]));
                let failed = failed(sequence, RetryClass::TooLate, why, None);
                stepped.into_iter().chain([failed]).collect()
            }
            SequenceEnd::ClientGone => Vec::new(),
        }
    }

    /// Takes a request out of the books.
    fn take(&mut self, sequence: SequenceRef) -> Option<OpenCall> {
        let running = self.running.get(&sequence.request)?;
        (running.sequence == sequence).then_some(())?;
        let taken = self.running.remove(&sequence.request);
        self.count_ours();
        taken
    }

    fn count_ours(&self) {
        let ours = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        self.poll.ours.store(ours, Ordering::Relaxed);
    }
}

// === impl Remote: the server's state ===

impl Remote {
    /// Takes note of what a round of questions found that the server answered.
    fn asked(&mut self, findings: Findings) -> Vec<Event> {
        let Findings {
            availability,
            why,
            software,
            models,
            loaded: _,
            models_max,
            load,
        } = findings;
        let mut events: Vec<Event> = self.available(availability, &why).into_iter().collect();
        if availability != Availability::Open {
            return events;
        }
        self.poll.pause_as_usual();
        if let Some(models) = models {
            if self.spec.server.models.is_empty() {
                self.found_models(models, software.map(|software| software.as_str()));
            } else {
                self.name_models(&models);
            }
        }
        if self.running.is_empty() {
            self.standing.learned = None;
        }
        self.standing.learned = self.standing.learned.map(|slots| slots.saturating_add(1));
        self.standing.found_load = load;
        self.standing.models_max.found = models_max;
        events.extend(self.models_max());
        events.extend(self.models_loaded());
        events.extend(self.loaded());
        events
    }

    /// The news of other models that the server has loaded; absent: they are the same.
    fn models_loaded(&mut self) -> Option<Event> {
        let loaded = self.residency.loaded();
        if self.standing.loaded_models == loaded {
            return None;
        }
        self.standing.loaded_models.clone_from(&loaded);
        Some(Event::Changed(ServerChange::Loaded(loaded)))
    }

    /// Takes note of the load that somebody has told: it goes before what is found by asking.
    fn told(&mut self, load: ServerLoad) -> Vec<Event> {
        self.standing.told = Some((load, Instant::now() + TOLD_FOR));
        self.loaded()
    }

    /// Brings the load that counts up to date. Returns what has changed.
    fn loaded(&mut self) -> Vec<Event> {
        let told = self
            .standing
            .told
            .filter(|(_, until)| Instant::now() < *until);
        let told = told.map_or_else(ServerLoad::default, |(load, _)| load);
        let load = told.or(self.standing.found_load);
        let before = std::mem::replace(&mut self.standing.load, load);
        let mut events: Vec<Event> = self.slots().into_iter().collect();
        if load.tokens_per_block != before.tokens_per_block {
            let tokens = load.tokens_per_block;
            events.push(Event::Changed(ServerChange::TokensPerBlock(tokens)));
        }
        let changes = load.kv != before.kv;
        if changes || (load.kv.is_some() && !self.running.is_empty()) {
            let told = load.kv.unwrap_or_default();
            events.push(Event::Changed(ServerChange::Kv(told)));
        }
        events
    }

    fn found_models(&self, models: Arc<[FoundModel]>, software: Option<&str>) {
        let names = || -> Vec<&str> { models.iter().map(|model| &*model.name).collect() };
        if *self.found.borrow() != models {
            let (executor, models) = (&*self.name, names().join(", "));
            info!(
                executor,
                software, models, "the models of a server were found"
            );
        }
        self.serve(models);
    }

    /// Has these models served there.
    fn serve(&self, models: Arc<[FoundModel]>) {
        self.found.send_if_modified(|known| {
            let is_new = *known != models;
            *known = models;
            is_new
        });
    }

    /// The news that the server answers in this way now; absent: it is none.
    fn available(&mut self, availability: Availability, why: &str) -> Option<Event> {
        if self.standing.availability == Some(availability) {
            return None;
        }
        let executor = &*self.name;
        match availability {
            Availability::Open => info!(executor, "a server takes requests"),
            Availability::Busy => info!(executor, why, "a server takes nothing now"),
            Availability::Silent => warn!(executor, why, "a server does not answer"),
        }
        self.standing.availability = Some(availability);
        Some(Event::Changed(ServerChange::Availability(availability)))
    }
}

fn failed(
    sequence: SequenceRef,
    retry: RetryClass,
    why: String,
    state: Option<Box<JobState>>,
) -> Event {
    Event::Failed {
        sequence,
        retry,
        why,
        state,
    }
}

impl fmt::Debug for RemoteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSpec")
            .field("executor", &self.executor)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
