//! A server on a real socket, behind which the test plays the driver.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::task::Waker;

use pointsman_admin::KeptExecutors;
use pointsman_config::{Config, Flags};
use pointsman_core::rows::ExecutorKind;
use pointsman_core::{DeviceId, Outcome, RefusedWhy, fixture};
use pointsman_driver::catalog::{Catalog, ExecutorEntry, ModelEntry};
use pointsman_driver::clock::SystemClock;
use pointsman_driver::fleet::Fleet;
use pointsman_driver::message::{
    Control, Inbox, Load, Message, Submission, Submitted, TicketId, channels,
};
use pointsman_driver::operator::{Operator, Overview};
use pointsman_executor::delivery::{Authorship, End, Piece, Placement, StopReason};
use pointsman_executor::job::JobState;
use pointsman_executor::server::ServerConfig;
use pointsman_model::files::ModelFiles;
use pointsman_policy::PolicyStatus;
use pointsman_text::ModelText;

use pointsman_driver::metrics::Metrics;
use pointsman_driver::provider::{
    ExecutorConfig, ExecutorTerms, ModelConfig, PreparedExecutor, Provider, ServeModelError,
    ServedModel,
};
use pointsman_http::{App, Audience, Endpoint, Front, ServerPhase, Transport, Watched, serve};
use pointsman_lifecycle::order::orders;
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_server::routes;
use pointsman_server::settings::{access_rules, http_settings};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::Client;

/// The demo model's text side; loaded once.
pub(crate) static TEXT: LazyLock<Arc<ModelText>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo-model");
    Arc::new(ModelText::load(&ModelFiles::Folder(folder)).unwrap())
});

/// A server under test.
pub(crate) struct Stage {
    pub(crate) addr: SocketAddr,
    pub(crate) phase: watch::Sender<ServerPhase>,
    pub(crate) metrics: Arc<Metrics>,
    fleet: Arc<Fleet>,
    inbox: Inbox,
    server: JoinHandle<io::Result<()>>,
    /// The sender of reports, kept so that their channel stays open.
    _reconciler: watch::Sender<Arc<ReconcilerReport>>,
}

/// A request that the test answers.
pub(crate) struct Played(Submitted);

impl Stage {
    pub(crate) async fn open() -> Self {
        Self::with(|_| ()).await
    }

    /// A server whose configuration is not quite the default one.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::keeping(Arc::default(), change).await
    }

    /// The same, with executors that operators have added.
    pub(crate) async fn keeping(
        kept: Arc<KeptExecutors>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::load(&Flags::default()).unwrap();
        change(&mut config);
        let (driver, inbox) = channels(config.http.requests_max);
        let (phase, phases) = watch::channel(ServerPhase::Serving);
        let (_reconciler, reconciler) = watch::channel(Arc::default());
        let metrics = Arc::new(Metrics::default());
        let (_rules, rules) = watch::channel(Arc::new(access_rules(&config)));
        let front = Front::new(http_settings(&config), phases, Arc::clone(&metrics));
        let watched = Watched {
            rules,
            quotas: Arc::default(),
            reconciler,
            orders: orders(Waker::noop().clone()).0,
            clock: SystemClock::start(),
            spans: None,
        };
        let fleet = Arc::new(Fleet::new(Arc::new(Nowhere), driver.clone()));
        fleet.show(catalog(&["demo"]));
        front.open(App::new(
            &front,
            routes::table(kept),
            Arc::clone(&fleet),
            driver,
            watched,
        ));
        let endpoint = Endpoint {
            sockets: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            audience: Audience::Everybody,
            transport: Transport::Plain,
        };
        Self {
            addr: endpoint.sockets.local_addr().unwrap(),
            phase,
            metrics,
            fleet,
            inbox,
            server: tokio::spawn(serve(endpoint, Arc::new(front))),
            _reconciler,
        }
    }

    /// Serves models of these names, each on executors of its own, in the place of the demo model.
    pub(crate) fn serve_models(&self, names: &[&str]) {
        self.fleet.show(catalog(names));
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// Waits for the next request handed to the driver.
    pub(crate) async fn submitted(&mut self) -> Played {
        match self.inbox.requests.recv().await.unwrap() {
            Message::Submit(submitted) => Played(*submitted),
            other @ (Message::Depart(_) | Message::Answered(_)) => {
                panic!("nothing is submitted, but {other:?}")
            }
        }
    }

    /// Waits for the next request that its client has left.
    pub(crate) async fn departed(&mut self) -> TicketId {
        match self.inbox.requests.recv().await.unwrap() {
            Message::Depart(ticket) => ticket,
            other @ (Message::Submit(_) | Message::Answered(_)) => {
                panic!("nobody departs, but {other:?}")
            }
        }
    }

    /// Checks that nothing was said to the driver.
    pub(crate) fn expect_silence(&mut self) {
        assert!(self.inbox.requests.try_recv().is_err());
    }

    /// Answers the driver's next two questions, in any order.
    pub(crate) async fn answer(&mut self, load: Load, policies: Vec<PolicyStatus>) {
        for _ in 0..2 {
            self.answer_one(&load, &policies).await;
        }
    }

    /// Answers the driver's next question.
    pub(crate) async fn answer_one(&mut self, load: &Load, policies: &[PolicyStatus]) {
        match self.question().await {
            Control::Load(answer) => answer.send(load.clone()).unwrap(),
            Control::Policies(answer) => answer.send(policies.to_vec()).unwrap(),
            Control::Operator(Operator::Overview(answer)) => {
                let load = load.clone();
                let overview = Overview {
                    load,
                    ..Overview::default()
                };
                answer.send(overview).unwrap();
            }
            Control::Operator(Operator::Loads(answer)) => answer.send(Vec::new()).unwrap(),
            Control::Operator(Operator::Shadows(answer)) => answer.send(Vec::new()).unwrap(),
            question @ (Control::Handover(..)
            | Control::Commit(..)
            | Control::Brief(..)
            | Control::Operator(_)
            | Control::Stop) => panic!("{question:?}"),
        }
    }

    /// The driver's next question.
    pub(crate) async fn question(&mut self) -> Control {
        self.inbox.control.recv().await.unwrap()
    }

    /// Drops the driver's inbox.
    pub(crate) fn end_driver(&mut self) {
        self.inbox = channels(1).1;
    }

    /// Waits until the server has ended.
    pub(crate) async fn ended(self) {
        self.server.await.unwrap().unwrap();
    }
}

/// A provider that has no device, and whose servers elsewhere the test plays.
#[derive(Debug)]
struct Nowhere;

impl Provider for Nowhere {
    fn load(&self, _: &ModelConfig) -> Result<ServedModel, ServeModelError> {
        Err(ServeModelError::DoesNotFit("there is no device".to_owned()))
    }

    fn executor(
        &self,
        _: &[ServedModel],
        _: &ExecutorConfig,
    ) -> Result<PreparedExecutor, ServeModelError> {
        Err(ServeModelError::DoesNotFit("there is no device".to_owned()))
    }

    fn server(
        &self,
        config: &ServerConfig,
        _: ExecutorTerms,
    ) -> Result<PreparedExecutor, ServeModelError> {
        Ok(PreparedExecutor {
            spec: fixture::executor_spec(&config.executor_name(), DeviceId(0)),
            device: None,
            models: Vec::new(),
            server: Some(config.url.clone()),
            spawn: Box::new(|_executor, _models| Err(io::ErrorKind::Unsupported.into())),
        })
    }
}

/// An executor of a model on a device.
fn executor(device: &str, model: &str) -> ExecutorEntry {
    ExecutorEntry {
        name: format!("{device}/{model}"),
        device: device.to_owned(),
        kind: ExecutorKind::Cpu,
        models: vec![model.to_owned()],
        tokens_per_block: Some(16),
    }
}

/// Models of these names, all with the demo model's text side.
fn catalog(names: &[&str]) -> Catalog {
    let model = |name: &&str| ModelEntry {
        name: (*name).to_owned(),
        text: Some(Arc::clone(&*TEXT) as _),
        context_tokens: Some(2048),
        contexts: Arc::default(),
        created: 1_700_000_000,
    };
    let executors = |name: &&str| ["cpu0", "cpu1"].map(|device| executor(device, name));
    Catalog {
        models: names.iter().map(model).collect(),
        executors: names.iter().flat_map(executors).collect(),
        engines: Vec::new(),
    }
}

impl Played {
    pub(crate) fn ticket(&self) -> TicketId {
        self.0.ticket
    }

    pub(crate) fn submission(&self) -> &Submission {
        &self.0.submission
    }

    pub(crate) fn placed(&self, executor: &str, reason: &str) {
        self.0.sink.placed(Arc::new(Placement {
            executor: executor.to_owned(),
            model: "demo".to_owned(),
            by: Authorship {
                policy: "memory-aware".to_owned(),
                decision: "7.1".to_owned(),
                reason: reason.to_owned(),
            },
            cached_tokens: 0,
        }));
    }

    /// A piece of text that took so many tokens.
    pub(crate) fn text(&self, text: &str, tokens: u32) {
        let Submitted {
            submission, sink, ..
        } = &self.0;
        let mut sequence = JobState::new(Arc::clone(&submission.job), sink.clone());
        let text = text.to_owned();
        sequence.unsent = Piece {
            text,
            tokens,
            logprobs: Vec::new(),
        };
        sequence.deliver(None);
    }

    /// Ends the request with this embedding.
    pub(crate) fn embed(self, numbers: Vec<f32>) {
        let Submitted {
            submission, sink, ..
        } = &self.0;
        let sequence = JobState::new(Arc::clone(&submission.job), sink.clone());
        sequence.deliver_embedding(numbers);
        self.finish(StopReason::Stop);
    }

    /// True if the request's client is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.sink.is_gone()
    }

    pub(crate) fn finish(self, stop: StopReason) {
        self.0.closing.end(End {
            outcome: Outcome::Finished { output_tokens: 0 },
            stop: Some(stop),
            refused_by: None,
        });
    }

    /// Has `policy` refuse the request for this reason.
    pub(crate) fn refuse(self, why: RefusedWhy, policy: &str, reason: &str) {
        self.0.closing.end(End {
            outcome: Outcome::Refused(why),
            stop: None,
            refused_by: Some(Authorship {
                policy: policy.to_owned(),
                decision: "7".to_owned(),
                reason: reason.to_owned(),
            }),
        });
    }

    pub(crate) fn end(self, outcome: Outcome) {
        self.0.closing.end(End {
            outcome,
            stop: None,
            refused_by: None,
        });
    }
}
