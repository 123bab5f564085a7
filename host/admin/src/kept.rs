//! Executors that operators have added, kept for the next start.
//!
//! Each is kept as the body of the order that added it, under the name that it got. Where the body names its model
//! alone, and that is served already, it is kept with the path of the order that loaded the model, or else as one of a
//! model that is served already. A change of its share is kept, too; that it drains is not, as with the executors of
//! the configuration.
//!
//! # Invariants
//! 1. An executor that was removed stays removed
//!    (`executors_that_operators_added_outlive_a_restart`, in `host/server/tests/running/kept.rs`), though the client
//!    leaves or the addition has just ended (`a_change_whose_client_leaves_is_kept_as_it_was_carried_out` and
//!    `an_executor_that_is_removed_before_it_is_kept_is_not_kept`, in `host/server/tests/http/orders.rs`).
//! 2. Nothing that is kept stops the start: a file that cannot be read is set aside, an executor that cannot be
//!    added is told of, and a name that the configuration has now is the configuration's (there, too).
//! 3. The embedded model is restored under no name under which another one was served
//!    (`an_executor_of_a_model_of_the_configuration_comes_back_with_that_model_alone` and
//!    `an_executor_comes_back_with_the_model_of_the_order_that_loaded_it`, there, too).
//! 4. Orders that could not be written are written once they can be
//!    (`what_could_not_be_kept_is_kept_once_it_can_be`, in `host/server/tests/http/orders.rs`), by one task
//!    (`one_task_at_a_time_tries_again_to_write_the_file`).
//!
//! # Not here
//! The folder, which one server has at a time (`pointsman_state`).

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pointsman_driver::fleet::{AddError, Fleet};
use pointsman_driver::operator::ExecutorRow;
use pointsman_http::error::ApiError;
use pointsman_http::fields::Fields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync;
use tokio::task::{self, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use super::addition::{Added, EXECUTOR, added, loads, specify};
use super::executors::attach;

/// The name of the file in the state folder. It may have keys of servers: it is its owner's alone.
const FILE: &str = "executors.json";
/// The name of a file that could not be understood.
const ASIDE: &str = "executors.damaged";
/// The most bytes of the file.
const BYTES_MAX: u64 = 16 << 20;
/// The edition of the file's form.
const VERSION: u32 = 1;
/// The time after which a file that could not be written is tried again. It doubles with each try.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The most time between two tries.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(10);

/// The body of an order that added an executor, with the executor's name.
type KeptOrder = Map<String, Value>;

/// The file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    version: u32,
    executors: Vec<KeptOrder>,
}

/// The executors that operators have added.
#[derive(Debug, Default)]
pub struct KeptExecutors {
    /// Absent: nothing outlives the server.
    file: Option<PathBuf>,
    /// Locked while the file is written, so that the file has what was last.
    orders: Mutex<KeptOrders>,
    /// Locked while an engine is added and kept, so that the next one finds the order that loaded its model.
    engines: sync::Mutex<()>,
}

/// Orders that are kept.
#[derive(Debug, Default)]
struct KeptOrders {
    /// In the order of their addition.
    list: Vec<KeptOrder>,
    /// True while a task is to write the file, as it could not be written. Other changes may have been written since.
    is_tried_again: bool,
}

/// A reason why a kept executor is not there.
#[derive(Debug, thiserror::Error)]
enum RestoreError {
    #[error(transparent)]
    Order(#[from] ApiError),
    #[error(transparent)]
    Added(#[from] AddError),
}

// === impl KeptExecutors ===

impl KeptExecutors {
    /// The executors that are kept in the state folder; absent: nothing outlives the server. A file that cannot
    /// be understood is set aside, and that is logged.
    #[must_use]
    pub fn open(folder: Option<&Path>) -> Self {
        let Some(folder) = folder else {
            return Self::default();
        };
        let path = folder.join(FILE);
        let orders = match pointsman_files::read(&path, BYTES_MAX) {
            Ok(bytes) => parsed(&bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let orders = orders.or_else(|error| set_aside(folder, &error).map(|()| Vec::new()));
        match orders {
            Ok(list) => Self {
                file: Some(path),
                orders: Mutex::new(KeptOrders {
                    list,
                    is_tried_again: false,
                }),
                ..Self::default()
            },
            Err(error) => {
                let path = path.display();
                warn!(%path, %error, "executors that operators add do not outlive this server");
                Self::default()
            }
        }
    }

    /// Adds the executors that are kept to a fleet which has those of the configuration.
    pub async fn restore(self: &Arc<Self>, fleet: &Arc<Fleet>) {
        let orders = self.orders().list.clone();
        let mut added = 0;
        for order in orders {
            let name = name_of(&order).to_owned();
            if is_in(fleet, &name) {
                warn!(
                    executor = name,
                    "the configuration has an executor of this name: the one that an operator added is forgotten"
                );
                self.forget(&name).await;
            } else if let Err(error) = self.restored(fleet, &order).await {
                warn!(
                    executor = name,
                    %error,
                    "an executor that an operator added is not there; it is tried again at the next start, unless \
                     DELETE /admin/executors/NAME forgets it"
                );
            } else {
                added += 1;
            }
        }
        if added > 0 {
            info!(
                executors = added,
                "executors that operators added are there again"
            );
        }
    }

    async fn restored(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        order: &KeptOrder,
    ) -> Result<(), RestoreError> {
        let body = Value::Object(order.clone()).to_string();
        let added = added(Fields::parse(body.as_bytes())?)?;
        let _turn = self.engines.lock().await;
        // Kept anew, in its place: the configuration may serve its model now.
        let order = self.lasting(fleet, &added, order.clone());
        let name = attach(fleet, added).await?.name;
        let change = move |orders: &mut Vec<KeptOrder>| {
            if let Some(kept) = orders.iter_mut().find(|kept| name_of(kept) == name) {
                *kept = order;
            }
        };
        self.change(change).await;
        Ok(())
    }

    /// Adds the executor of an order with this body to `fleet`, and keeps it.
    pub(super) async fn add(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        added: Added,
        body: &[u8],
    ) -> Result<ExecutorRow, AddError> {
        let is_engine = matches!(added, Added::Engine(_));
        let _turn = if is_engine {
            Some(self.engines.lock().await)
        } else {
            None
        };
        let order: Option<KeptOrder> = serde_json::from_slice(body).ok();
        let order = order.map(|order| self.lasting(fleet, &added, order));
        let row = attach(fleet, added).await?;
        if let Some(order) = order {
            self.keep(fleet, &row.name, order).await;
        }
        Ok(row)
    }

    /// The order as later starts are to carry it out. It is not carried out yet.
    fn lasting(&self, fleet: &Fleet, added: &Added, mut order: KeptOrder) -> KeptOrder {
        if let Some(model) = added.named_alone()
            && is_loaded(fleet, model)
        {
            let orders = self.orders();
            let mut attached = orders.list.iter();
            let loader = attached.find(|kept| is_in(fleet, name_of(kept)) && loads(kept, model));
            specify(&mut order, model, loader);
        }
        order
    }

    /// Keeps the order that added the executor `name` to `fleet`, unless that was removed since. It is the last one,
    /// also where it replaces another: the order that loaded its model comes before it.
    async fn keep(self: &Arc<Self>, fleet: &Arc<Fleet>, name: &str, mut order: KeptOrder) {
        order.insert(EXECUTOR.to_owned(), name.into());
        let (fleet, name) = (Arc::clone(fleet), name.to_owned());
        let change = move |orders: &mut Vec<KeptOrder>| {
            // A removal that finds nothing to forget has taken it out of the catalogue by then.
            if is_in(&fleet, &name) {
                orders.retain(|kept| name_of(kept) != name);
                orders.push(order);
            }
        };
        self.change(change).await;
    }

    /// Keeps another value of a field of the executor `name`, if that is kept.
    pub(super) async fn set(self: &Arc<Self>, name: &str, (field, value): (&str, Value)) {
        let (name, field) = (name.to_owned(), field.to_owned());
        let change = move |orders: &mut Vec<KeptOrder>| {
            let mut orders = orders.iter_mut();
            if let Some(order) = orders.find(|order| name_of(order) == name) {
                order.insert(field, value);
            }
        };
        self.change(change).await;
    }

    /// Forgets the executor `name`. Returns true if it was kept.
    pub(super) async fn forget(self: &Arc<Self>, name: &str) -> bool {
        let is_kept = {
            let orders = self.orders();
            orders.list.iter().any(|order| name_of(order) == name)
        };
        if is_kept {
            let name = name.to_owned();
            let change =
                move |orders: &mut Vec<KeptOrder>| orders.retain(|order| name_of(order) != name);
            self.change(change).await;
        }
        is_kept
    }

    /// Changes the orders, and writes them down on a thread that may wait for a disk.
    ///
    /// # Cancellation
    /// A change that has begun goes on.
    async fn change(self: &Arc<Self>, change: impl FnOnce(&mut Vec<KeptOrder>) + Send + 'static) {
        let kept = Arc::clone(self);
        let changed = spawn_blocking(move || {
            let mut orders = kept.orders();
            let before = orders.list.clone();
            change(&mut orders.list);
            if before != orders.list
                && let Err(error) = kept.write(&orders)
            {
                warn!(
                    %error,
                    "executors that operators added not written yet: until they are, a restart has those before"
                );
                if !mem::replace(&mut orders.is_tried_again, true) {
                    task::spawn(Arc::clone(&kept).write_later());
                }
            }
        });
        if let Err(panic) = changed.await {
            warn!(%panic, "executors that operators added not written: a restart has those before");
        }
    }

    fn write(&self, orders: &KeptOrders) -> io::Result<()> {
        match &self.file {
            Some(file) => write(file, &orders.list),
            None => Ok(()),
        }
    }

    /// Tries to write down what could not be written until it is.
    async fn write_later(self: Arc<Self>) {
        let mut wait = TRY_AGAIN;
        loop {
            sleep(wait).await;
            wait = (wait * 2).min(TRY_AGAIN_MAX);
            let kept = Arc::clone(&self);
            let written = spawn_blocking(move || {
                let mut orders = kept.orders();
                let written = kept.write(&orders);
                orders.is_tried_again = written.is_err();
                written
            });
            match written.await {
                Ok(Ok(())) => return info!("executors that operators added are written"),
                Ok(Err(_full)) => {}
                Err(panic) => {
                    self.orders().is_tried_again = false;
                    return warn!(%panic, "executors that operators added not written");
                }
            }
        }
    }

    fn orders(&self) -> MutexGuard<'_, KeptOrders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_in(fleet: &Fleet, name: &str) -> bool {
    let catalog = fleet.catalog();
    let catalog = catalog.borrow();
    catalog.executors.iter().any(|known| known.name == name)
}

/// True if the model `name` is served as it was loaded here.
fn is_loaded(fleet: &Fleet, name: &str) -> bool {
    let catalog = fleet.catalog();
    let catalog = catalog.borrow();
    let mut models = catalog.models.iter();
    models.any(|model| model.name == name && model.text.is_some())
}

/// The name of a kept executor.
fn name_of(order: &KeptOrder) -> &str {
    order.get(EXECUTOR).and_then(Value::as_str).unwrap_or("")
}

fn parsed(bytes: &[u8]) -> io::Result<Vec<KeptOrder>> {
    let file: KeptFile = serde_json::from_slice(bytes)?;
    if file.version != VERSION {
        let why = format!("version {} where {VERSION} is known", file.version);
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    if file.executors.iter().any(|order| name_of(order).is_empty()) {
        let why = "an executor without a name";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(file.executors)
}

/// Sets a file aside that could not be read, and begins anew.
fn set_aside(folder: &Path, why: &io::Error) -> io::Result<()> {
    let aside = folder.join(ASIDE);
    fs::rename(folder.join(FILE), &aside)?;
    let aside = aside.display();
    warn!(%aside, %why, "executors that operators added are not known: their file is set aside");
    Ok(())
}

fn write(file: &Path, orders: &[KeptOrder]) -> io::Result<()> {
    let kept = KeptFile {
        version: VERSION,
        executors: orders.to_vec(),
    };
    let text = serde_json::to_vec_pretty(&kept)?;
    pointsman_files::replace(file, |file| file.write_all(&text))
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_task_at_a_time_tries_again_to_write_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Arc::new(KeptExecutors::open(Some(folder.path())));
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let order = |name: &str| KeptOrder::from_iter([(EXECUTOR.to_owned(), name.into())]);
        let orders = ["a", "b", "c"].map(order);
        // In the way of the file that replaces this one.
        let in_the_way = folder.path().join(format!(".{FILE}.new"));
        // The second one can be written, before the task that the first one began looks.
        for (order, is_full) in orders.iter().cloned().zip([true, false, true]) {
            if is_full {
                fs::create_dir(&in_the_way).unwrap();
            }
            kept.change(|orders| orders.push(order)).await;
            assert_eq!(tasks(), 1);
            if is_full {
                fs::remove_dir(&in_the_way).unwrap();
            }
        }
        sleep(TRY_AGAIN_MAX).await;
        assert_eq!(tasks(), 0);
        let read = KeptExecutors::open(Some(folder.path()));
        assert_eq!(read.orders().list, orders);
        // The next one is tried again, too.
        fs::create_dir(&in_the_way).unwrap();
        kept.change(Vec::clear).await;
        assert_eq!(tasks(), 1);
    }
}
