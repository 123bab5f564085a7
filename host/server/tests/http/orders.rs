//! Orders about executors whose clients leave, or that come at once: what is done of them, what is kept, and
//! what the log says.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use pointsman_admin::KeptExecutors;
use pointsman_config::{LogConfig, LogFormat};
use pointsman_core::rows::ExecutorKind;
use pointsman_core::{ExecutorId, fixture};
use pointsman_driver::message::Control;
use pointsman_driver::operator::{
    Attached, ChangeRefused, ExecutorChange, ExecutorRow, Fate, Operator,
};
use pointsman_executor::handle::{EngineHandle, EngineWork};
use pointsman_server::logging;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::client::post;
use crate::stage::Stage;

/// The file of executors that operators have added, in the state folder.
const FILE: &str = "executors.json";
/// The most looks at what other threads bring about.
const LOOKS: u32 = 1000;
/// The time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// The log of this process.
static LOG: LazyLock<Log> = LazyLock::new(Log::begin);

/// Everything that was logged since the first test that reads it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> Self {
        let config = LogConfig {
            format: LogFormat::Json,
            filter: "info".to_owned(),
            access: false,
        };
        let log = Self::default();
        let kept = log.clone();
        logging::begin_in(&config, move || kept.clone()).unwrap();
        log
    }

    /// The audit line of `order`, which no other test gives.
    fn line_of(&self, order: &str) -> Option<Value> {
        let log = self.0.lock().unwrap();
        let mut lines = log.split(|byte| *byte == b'\n');
        lines.find_map(|line| {
            let line: Value = serde_json::from_slice(line).ok()?;
            (line["target"] == "pointsman::audit" && line["order"] == order).then_some(line)
        })
    }

    /// Waits for that line.
    async fn audited(&self, order: &str) -> Value {
        for _ in 0..LOOKS {
            if let Some(line) = self.line_of(order) {
                return line;
            }
            sleep(LOOK).await;
        }
        panic!("`{order}` has no line");
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes of an order to remove an executor.
fn delete(executor: &str) -> String {
    format!("DELETE /admin/executors/{executor} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// The driver's row of an executor.
fn row(name: &str) -> ExecutorRow {
    ExecutorRow {
        name: name.to_owned(),
        kind: ExecutorKind::Cpu,
        device: "cpu0".to_owned(),
        models: None,
        fate: Fate::Stays,
        group: 0,
        share_weight: 1,
        queue_max: 0,
        preemptible: true,
        models_max: None,
        present: Vec::new(),
        slots_total: 1,
        tokens_max: None,
        tokens_used: 0,
        load: fixture::load(0),
    }
}

/// The order about `executor` that the driver is given next, and the place for its answer.
async fn ordered(
    stage: &mut Stage,
    executor: &str,
) -> (
    ExecutorChange,
    oneshot::Sender<Result<ExecutorRow, ChangeRefused>>,
) {
    let question = stage.question().await;
    let Control::Operator(Operator::Change(name, change, answer)) = question else {
        panic!("another question");
    };
    assert_eq!(name, executor);
    (change, answer)
}

/// Waits until the executors that are kept in `folder` are written down with this text.
async fn written(folder: &Path, text: &str) {
    for _ in 0..LOOKS {
        if fs::read_to_string(folder.join(FILE)).is_ok_and(|file| file.contains(text)) {
            return;
        }
        sleep(LOOK).await;
    }
    panic!("`{text}` is not written");
}

#[tokio::test]
async fn an_order_whose_client_leaves_has_its_line() {
    let log = &*LOG;
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    let (path, body) = (
        "/admin/executors/left/share-weight",
        r#"{"share-weight":3}"#,
    );
    client.send(post(path, body)).await;
    let (change, answer) = ordered(&mut stage, "left").await;
    assert_eq!(change, ExecutorChange::ShareWeight(3));
    drop(client);
    let line = log.audited(&format!("POST {path}")).await;
    assert_eq!(line["status"], Value::Null, "{line}");
    assert_eq!(line["body"], body);
    let why = line["why"].as_str().unwrap();
    assert!(why.starts_with("its client left"), "{line}");
    drop(answer);
    // One that is answered has a status, and no reason for having none.
    let mut client = stage.client().await;
    client.send(post("/admin/executors/asked/drain", "")).await;
    let (_, answer) = ordered(&mut stage, "asked").await;
    answer.send(Ok(row("asked"))).unwrap();
    assert_eq!(client.answer().await.head.status, 200);
    let line = log.audited("POST /admin/executors/asked/drain").await;
    assert_eq!((&line["status"], &line["why"]), (&json!(200), &Value::Null));
}

#[tokio::test]
async fn a_change_whose_client_leaves_is_kept_as_it_was_carried_out() {
    let log = &*LOG;
    let folder = tempfile::tempdir().unwrap();
    let added = json!({"version": 1, "executors": [{"name": "demo", "executor": "kept"}]});
    fs::write(folder.path().join(FILE), added.to_string()).unwrap();
    let kept = Arc::new(KeptExecutors::open(Some(folder.path())));
    let mut stage = Stage::keeping(kept, |_| ()).await;
    let share = "/admin/executors/kept/share-weight";
    let changes = [
        (
            post(share, r#"{"share-weight":7}"#),
            format!("POST {share}"),
            ExecutorChange::ShareWeight(7),
            "\"share-weight\": 7",
        ),
        (
            delete("kept"),
            "DELETE /admin/executors/kept".to_owned(),
            ExecutorChange::Remove,
            "\"executors\": []",
        ),
    ];
    for (request, order, expected, text) in changes {
        let mut client = stage.client().await;
        client.send(request).await;
        let (change, answer) = ordered(&mut stage, "kept").await;
        assert_eq!(change, expected);
        drop(client);
        // The server has noticed, and the driver carries it out only then.
        log.audited(&order).await;
        answer.send(Ok(row("kept"))).unwrap();
        written(folder.path(), text).await;
    }
}

#[tokio::test]
async fn what_could_not_be_kept_is_kept_once_it_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE);
    let added = json!({"version": 1, "executors": [{"name": "demo", "executor": "kept"}]});
    fs::write(&file, added.to_string()).unwrap();
    let kept = Arc::new(KeptExecutors::open(Some(folder.path())));
    let mut stage = Stage::keeping(kept, |_| ()).await;
    // In the way of the file that replaces this one.
    let in_the_way = folder.path().join(format!(".{FILE}.new"));
    fs::create_dir(&in_the_way).unwrap();
    let mut client = stage.client().await;
    let share = "/admin/executors/kept/share-weight";
    client.send(post(share, r#"{"share-weight":7}"#)).await;
    let (change, answer) = ordered(&mut stage, "kept").await;
    assert_eq!(change, ExecutorChange::ShareWeight(7));
    answer.send(Ok(row("kept"))).unwrap();
    assert_eq!(client.answer().await.head.status, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), added.to_string());
    fs::remove_dir(in_the_way).unwrap();
    written(folder.path(), "\"share-weight\": 7").await;
}

#[test]
fn an_executor_that_is_removed_before_it_is_kept_is_not_kept() {
    // One thread writes files, and it is busy.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build();
    runtime.unwrap().block_on(async {
        let (done, busy) = mpsc::channel::<()>();
        let busy = spawn_blocking(move || busy.recv());
        let folder = tempfile::tempdir().unwrap();
        let kept = Arc::new(KeptExecutors::open(Some(folder.path())));
        let mut stage = Stage::keeping(kept, |_| ()).await;
        let mut adds = stage.client().await;
        let server = json!({"url": "http://far:8000", "executor": "far"});
        adds.post("/admin/executors", &server).await;
        let Control::Operator(Operator::Attach(_, answer)) = stage.question().await else {
            panic!("another question");
        };
        let attached = Attached {
            executor: ExecutorId(0),
            row: row("far"),
            engine: EngineHandle {
                commands: tokio::sync::mpsc::channel(1).0,
                stats: Arc::default(),
                work: EngineWork::Task,
                found: None,
            },
        };
        answer.send(Ok(attached)).unwrap();
        let mut removes = stage.client().await;
        removes.send(delete("far")).await;
        let (change, answer) = ordered(&mut stage, "far").await;
        assert_eq!(change, ExecutorChange::Remove);
        answer.send(Ok(row("far"))).unwrap();
        assert_eq!(removes.answer().await.head.status, 202);
        drop(done);
        assert!(busy.await.unwrap().is_err());
        assert_eq!(adds.answer().await.head.status, 201);
        let file = fs::read_to_string(folder.path().join(FILE)).unwrap_or_default();
        assert!(!file.contains("far"), "{file}");
    });
}
