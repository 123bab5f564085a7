//! A fleet before a real driver, with a provider that goes on when it is told to.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use pointsman_core::rows::ExecutorKind;
use pointsman_core::{Config, DeviceId, Input, Machine, Micros, fixture};
use pointsman_policy::{Patience, PolicyHost};
use tokio::sync::mpsc;
use tokio::task::JoinHandle as TaskHandle;
use tokio::time::timeout;

use super::*;
use crate::message::{Control, Inbox, channels};
use crate::metrics::Metrics;
use crate::operator::Fate;
use crate::{Driver, Memory};

const AT: Micros = Micros(1);
/// The longest wait for what waits for the driver alone.
const PATIENCE: Duration = Duration::from_secs(60);

/// A provider that tells of each work that it begins, and carries it out once it is told to.
#[derive(Debug)]
struct Slow {
    begins: mpsc::Sender<String>,
    goes_on: Mutex<Receiver<()>>,
}

/// A fleet with the executor `first`, which serves `demo`.
struct Stage {
    fleet: Arc<Fleet>,
    begun: mpsc::Receiver<String>,
    go_on: Sender<()>,
}

impl Slow {
    fn work(&self, work: String) {
        self.begins.blocking_send(work).unwrap();
        self.goes_on.lock().unwrap().recv().unwrap();
    }
}

impl Provider for Slow {
    fn load(&self, model: &ModelConfig) -> Result<ServedModel, ServeModelError> {
        self.work(format!("load {}", model.name));
        Ok(ServedModel {
            source: model.source.clone(),
            entry: ModelEntry {
                name: model.name.clone(),
                text: None,
                context_tokens: Some(64),
                contexts: Arc::default(),
                created: 0,
            },
            weights: Arc::new(()),
        })
    }

    fn executor(
        &self,
        models: &[ServedModel],
        config: &ExecutorConfig,
    ) -> Result<PreparedExecutor, ServeModelError> {
        let name = config.name.as_deref().unwrap();
        self.work(format!("prepare {name}"));
        Ok(prepared(name, models))
    }

    fn server(
        &self,
        config: &ServerConfig,
        _: ExecutorTerms,
    ) -> Result<PreparedExecutor, ServeModelError> {
        let mut server = prepared(&config.executor_name(), &[]);
        server.spec.kind = ExecutorKind::Remote;
        Ok(server)
    }
}

fn prepared(name: &str, models: &[ServedModel]) -> PreparedExecutor {
    let models = models.iter().map(|model| PreparedModel {
        name: model.entry.name.clone(),
        context_tokens: 64,
    });
    PreparedExecutor {
        spec: fixture::executor_spec(name, DeviceId(0)),
        device: None,
        models: models.collect(),
        server: None,
        spawn: Box::new(|_executor, _models| {
            Ok(EngineHandle {
                commands: mpsc::channel(1).0,
                stats: Arc::default(),
                work: EngineWork::Task,
                found: None,
            })
        }),
    }
}

/// Carries out what operators order.
async fn drive(mut driver: Driver, mut inbox: Inbox) {
    while let Some(control) = inbox.control.recv().await {
        match control {
            Control::Operator(operator) => driver.operate(AT, operator),
            Control::Handover(..)
            | Control::Commit(..)
            | Control::Policies(_)
            | Control::Load(_)
            | Control::Brief(..)
            | Control::Stop => panic!("a fleet asks nothing but operators' questions"),
        }
    }
}

/// The result of what waits for the driver alone.
async fn soon<T>(waiting: impl Future<Output = T>) -> T {
    let waited = timeout(PATIENCE, waiting).await;
    waited.expect("it waits for more than the driver")
}

impl Stage {
    async fn start() -> Self {
        let mut machine = Machine::new(Config::default()).unwrap();
        let device = Input::DeviceAttached(fixture::device_spec("cpu0"));
        machine.handle(AT, device).device().unwrap();
        let policies = PolicyHost::new(Patience::default());
        let metrics = Arc::new(Metrics::default());
        let driver = Driver::new(machine, policies, metrics, Memory::default());
        let (handle, inbox) = channels(1);
        task::spawn(drive(driver, inbox));
        let (begins, begun) = mpsc::channel(8);
        let (go_on, goes_on) = channel();
        let goes_on = Mutex::new(goes_on);
        let fleet = Fleet::new(Arc::new(Slow { begins, goes_on }), handle);
        let mut stage = Self {
            fleet: Arc::new(fleet),
            begun,
            go_on,
        };
        let adding = stage.add("demo", "first");
        stage.go_on(2);
        soon(adding).await.unwrap().unwrap();
        stage.begins("load demo").await;
        stage.begins("prepare first").await;
        stage
    }

    /// Begins to add an executor for a model.
    fn add(&self, model: &str, executor: &str) -> TaskHandle<Result<ExecutorRow, AddError>> {
        let addition = Addition {
            models: AddedModels::Loaded(ModelSource::Embedded),
            executor: ExecutorConfig {
                name: Some(executor.to_owned()),
                ..ExecutorConfig::new(model)
            },
        };
        task::spawn(Arc::clone(&self.fleet).add(addition))
    }

    /// Waits until the provider begins this work, and no other before.
    async fn begins(&mut self, work: &str) {
        let begun = soon(self.begun.recv()).await;
        assert_eq!(begun.as_deref(), Some(work));
    }

    /// Lets so many works go on.
    fn go_on(&self, works: usize) {
        for _ in 0..works {
            self.go_on.send(()).unwrap();
        }
    }

    /// The models that clients may name.
    fn models(&self) -> Vec<String> {
        let catalog = Arc::clone(&self.fleet.catalog().borrow());
        let models = catalog.models.iter().map(|model| model.name.clone());
        models.collect()
    }

    /// The executors that clients may name.
    fn executors(&self) -> Vec<String> {
        let catalog = Arc::clone(&self.fleet.catalog().borrow());
        let executors = catalog.executors.iter().map(|it| it.name.clone());
        executors.collect()
    }
}

#[tokio::test]
async fn nothing_but_additions_waits_while_a_model_loads() {
    let mut stage = Stage::start().await;
    let fleet = Arc::clone(&stage.fleet);
    let adding = stage.add("slow", "second");
    stage.begins("load slow").await;

    let drained = soon(fleet.change("first", ExecutorChange::Drain)).await;
    assert_eq!(drained.unwrap().unwrap().fate, Fate::Drains);
    // What is being added is not there yet.
    let removed = soon(fleet.change("second", ExecutorChange::Remove)).await;
    let unknown = ChangeRefused::Unknown {
        name: "second".to_owned(),
        known: "first".to_owned(),
    };
    assert_eq!(removed, Some(Err(unknown)));
    let server = ServerConfig::new("http://far:8000".parse().unwrap());
    let connecting = Arc::clone(&fleet).connect(server.clone(), ExecutorTerms::default());
    let connected = soon(connecting).await.unwrap();
    assert_eq!(connected.name, "far:8000");
    let far = connected.load.id;
    let terms = ExecutorTerms::default();
    // The driver has answered.
    let described = soon(fleet.configure(far, server.clone(), terms)).await;
    assert_eq!(described.map(|row| row.kind), Ok(ExecutorKind::Remote));
    let described = soon(fleet.configure(ExecutorId(0), server, terms)).await;
    let refused = ChangeRefused::NoServer("first".to_owned());
    assert_eq!(described, Err(UpkeepError::Refused(refused)));
    let found = FoundModel {
        name: "theirs".to_owned(),
        context_tokens: None,
    };
    soon(fleet.found_models(far, &[found])).await;
    assert_eq!(stage.models(), ["demo", "theirs"]);
    // The end of the host.
    assert!(soon(fleet.threads()).await.is_empty());

    stage.go_on(2);
    let added = soon(adding).await.unwrap().unwrap();
    assert_eq!(added.name, "second");
    assert_eq!(stage.models(), ["demo", "theirs", "slow"]);
}

#[tokio::test]
async fn of_two_additions_at_once_one_loads_the_model() {
    let mut stage = Stage::start().await;
    let adding = [("slow", "second"), ("slow", "third")];
    let adding = adding.map(|(model, executor)| stage.add(model, executor));
    stage.begins("load slow").await;
    // The other one comes as far as it does.
    for _ in 0..16 {
        task::yield_now().await;
    }
    // As many as there would be if both loaded it.
    stage.go_on(4);
    for added in adding {
        soon(added).await.unwrap().unwrap();
    }
    let mut others: Vec<String> = std::iter::from_fn(|| stage.begun.try_recv().ok()).collect();
    others.sort();
    assert_eq!(others, ["prepare second", "prepare third"]);
}

#[tokio::test]
async fn a_model_that_goes_while_an_executor_of_it_is_added_comes_back_with_that() {
    let mut stage = Stage::start().await;
    let fleet = Arc::clone(&stage.fleet);
    let adding = stage.add("demo", "second");
    stage.begins("prepare second").await;
    let removed = soon(fleet.change("first", ExecutorChange::Remove)).await;
    assert!(removed.is_some_and(|removed| removed.is_ok()));
    assert!(stage.models().is_empty());
    stage.go_on(1);
    soon(adding).await.unwrap().unwrap();
    assert_eq!(stage.models(), ["demo"]);
}

#[tokio::test]
async fn a_model_without_an_engine_is_loaded_again_though_a_server_elsewhere_has_it() {
    let mut stage = Stage::start().await;
    let fleet = Arc::clone(&stage.fleet);
    let server = ServerConfig::new("http://far:8000".parse().unwrap());
    let connecting = Arc::clone(&fleet).connect(server, ExecutorTerms::default());
    let far = soon(connecting).await.unwrap().load.id;
    let demo = FoundModel {
        name: "demo".to_owned(),
        context_tokens: None,
    };
    soon(fleet.found_models(far, &[demo])).await;
    let removed = soon(fleet.change("first", ExecutorChange::Remove)).await;
    assert!(removed.is_some_and(|removed| removed.is_ok()));
    assert_eq!(stage.models(), ["demo"]);

    let adding = stage.add("demo", "second");
    stage.begins("load demo").await;
    stage.go_on(2);
    soon(adding).await.unwrap().unwrap();
    stage.begins("prepare second").await;
}

#[tokio::test]
async fn a_server_that_was_removed_is_not_taken_for_the_next_one_of_its_name() {
    let stage = Stage::start().await;
    let fleet = &stage.fleet;
    let server = ServerConfig::new("http://far:8000".parse().unwrap());
    let connect = || Arc::clone(fleet).connect(server.clone(), ExecutorTerms::default());
    let first = soon(connect()).await.unwrap().load.id;
    let removed = soon(fleet.change("far:8000", ExecutorChange::Remove)).await;
    assert!(removed.is_some_and(|removed| removed.is_ok()));
    let next = soon(connect()).await.unwrap().load.id;
    let theirs = FoundModel {
        name: "theirs".to_owned(),
        context_tokens: None,
    };
    soon(fleet.found_models(next, &[theirs])).await;

    let described = fleet.configure(first, server.clone(), ExecutorTerms::default());
    assert_eq!(soon(described).await, Err(UpkeepError::Removed));
    let taken_back = soon(fleet.take_back(first)).await;
    assert_eq!(taken_back, Err(UpkeepError::Removed));
    assert!(!soon(fleet.withdraw(first)).await);
    soon(fleet.found_models(first, &[])).await;
    assert_eq!(stage.models(), ["demo", "theirs"]);
    let changed = soon(fleet.change("far:8000", ExecutorChange::ShareWeight(2))).await;
    assert_eq!(changed.unwrap().unwrap().fate, Fate::Stays);
    // Nothing runs there: it goes at once, with its models.
    assert!(!soon(fleet.withdraw(next)).await);
    assert_eq!(stage.models(), ["demo"]);
}

#[tokio::test]
async fn a_drained_server_that_the_configuration_is_without_stays_drained() {
    let stage = Stage::start().await;
    let fleet = &stage.fleet;
    let server = ServerConfig::new("http://far:8000".parse().unwrap());
    let connecting = Arc::clone(fleet).connect(server, ExecutorTerms::default());
    let far = soon(connecting).await.unwrap().load.id;
    let theirs = FoundModel {
        name: "theirs".to_owned(),
        context_tokens: None,
    };
    soon(fleet.found_models(far, &[theirs])).await;
    let change =
        async |change: ExecutorChange| soon(fleet.change("far:8000", change)).await.unwrap();
    assert_eq!(
        change(ExecutorChange::Drain).await.unwrap().fate,
        Fate::Drains
    );

    // Nothing runs there.
    for _ in 0..2 {
        assert!(soon(fleet.withdraw(far)).await);
        assert_eq!(stage.models(), ["demo"]);
        // Requests that name no model may go to any server that is there.
        assert_eq!(stage.executors(), ["first"]);
    }
    let refused = ChangeRefused::Withdrawn("far:8000".to_owned());
    assert_eq!(change(ExecutorChange::Resume).await, Err(refused));
    assert_eq!(soon(fleet.take_back(far)).await, Ok(()));
    assert_eq!(stage.models(), ["demo", "theirs"]);
    assert_eq!(stage.executors(), ["first", "far:8000"]);
    let share = change(ExecutorChange::ShareWeight(2)).await;
    assert_eq!(share.unwrap().fate, Fate::Drains);
    assert_eq!(
        change(ExecutorChange::Resume).await.unwrap().fate,
        Fate::Stays
    );

    // No operator has it drain any more.
    assert!(!soon(fleet.withdraw(far)).await);
    assert_eq!(stage.executors(), ["first"]);
}
