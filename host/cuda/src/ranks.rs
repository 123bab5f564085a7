//! Several devices that compute a model together: each, a rank, has a part of every projection
//! ([`pointsman_model::split`]), and of each KV block the keys and values of its heads.
//!
//! To the engine they are one backend. Its thread is the first rank's, which chooses tokens; each other rank has a thread
//! of its own. All ranks make a step in the same way, as NCCL asks of them: the first finds out whether it is recorded.
//! A block of the ledger is a block of each rank, and a swap copies each rank's part.
//!
//! # Invariants
//! Held by `tests/ranks_lost.rs` (1 and 4) and `tests/ranks.rs`.
//! 1. A rank that fails ends the step of all. Of their devices those are lost that it was the end of; a link that fails is
//!    the end of none.
//! 2. Steps of several models on the same ranks are made one after the other: sums of two communicators under way at
//!    once could wait for each other.
//! 3. Who makes a step needs no quiet ([`crate::graphs::quiet`]) once a rank has begun it: whoever keeps others quiet
//!    may be waiting for a device, and with it for that step.
//! 4. What was launched behind a sum runs once that has ended: a backend gives memory back after its stream has come to
//!    its end.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use pointsman_engine::backend::{
    Backend, Chunk, DeviceError, KvBlocks, KvShape, PossibleTokens, SwapDirection, SwapTicket,
    SwapWait, TokenChoice, TokenChooser,
};
#[cfg(feature = "test-util")]
use pointsman_engine::test_util::schedules::WithPoison;
use pointsman_events::BlockCopy;
#[cfg(feature = "test-util")]
use pointsman_events::BlockId;
use pointsman_model::open::{LoadProgress, OpenModel};
use pointsman_model::split::Rank;

use crate::backend::CudaBackend;
use crate::comm::Alarm;
use crate::device::CudaDevice;
use crate::graphs::quiet;
use crate::nccl::Nccl;
use crate::probe::{self, DeviceInfo, NoDevice};

/// Reports of loading that wait to be told.
const REPORTS_MAX: usize = 64;

/// Devices that compute models together, with the KV pool that all their backends share.
#[derive(Debug)]
pub struct CudaRanks {
    devices: Vec<CudaDevice>,
    nccl: &'static Nccl,
    /// The parts of models that are on the devices, by the models' open files: backends of a model share its weights.
    split: Mutex<Vec<SplitModel>>,
    /// Held by the backend that makes a step.
    turn: Arc<Mutex<()>>,
}

/// A model that is on the devices.
#[derive(Debug)]
struct SplitModel {
    whole: Weak<OpenModel>,
    parts: Vec<Weak<OpenModel>>,
}

/// A model on several devices.
pub struct RanksBackend {
    // Immutable.
    model: Arc<OpenModel>,
    turn: Arc<Mutex<()>>,
    alarm: Arc<Alarm>,
    // Owned state.
    first: CudaBackend,
    others: Vec<RankThread>,
    /// The last swap that was begun, and the last that all ranks have made.
    swaps: SwapCounts,
}

/// The swaps of all ranks.
#[derive(Clone, Copy, Debug, Default)]
struct SwapCounts {
    begun: SwapTicket,
    done: SwapTicket,
}

/// Something that a rank's thread does.
type Task = Box<dyn FnOnce(&mut CudaBackend) + Send>;

/// The thread of a rank, which owns its backend.
struct RankThread {
    /// Absent once it is to end.
    tasks: Option<SyncSender<Task>>,
    thread: Option<JoinHandle<()>>,
    name: RankName,
    alarm: Arc<Alarm>,
}

/// A rank as errors name it.
#[derive(Clone, Copy, Debug)]
struct RankName {
    index: usize,
    ordinal: usize,
}

/// Raises the alarm when its thread ends in a panic.
struct RaisesAlarm(Arc<Alarm>, RankName);

// === impl CudaRanks ===

impl CudaRanks {
    /// Looks at devices that are to compute models together.
    ///
    /// # Errors
    /// If one cannot be used, they are of different kinds, or there is no NCCL.
    pub fn probe(ordinals: &[usize]) -> Result<Vec<DeviceInfo>, NoDevice> {
        let devices = ordinals.iter().map(|ordinal| probe::device(*ordinal));
        let devices: Vec<DeviceInfo> = devices.collect::<Result<_, _>>()?;
        for pair in devices.windows(2) {
            let capabilities = [pair[0].capability, pair[1].capability];
            if capabilities[0] != capabilities[1] {
                return Err(NoDevice::Unlike {
                    one: pair[0].ordinal,
                    other: pair[1].ordinal,
                    capabilities,
                });
            }
        }
        Nccl::get()?;
        Ok(devices)
    }

    /// Devices with so many KV blocks, of each of which every device has the same part.
    ///
    /// # Errors
    /// As [`Self::probe`].
    pub fn new(ordinals: &[usize], blocks: KvBlocks) -> Result<Self, NoDevice> {
        Self::probe(ordinals)?;
        let part = KvBlocks {
            bytes: blocks.bytes / ordinals.len() as u64,
            ..blocks
        };
        let devices = ordinals.iter();
        let devices = devices.map(|ordinal| CudaDevice::new(*ordinal, part));
        Ok(Self {
            devices: devices.collect::<Result<_, _>>()?,
            nccl: Nccl::get()?,
            split: Mutex::default(),
            turn: Arc::default(),
        })
    }

    /// Checks that no device is lost and kept by backends nevertheless.
    pub(crate) fn check_lives(&self) -> Result<(), DeviceError> {
        let mut devices = self.devices.iter().zip(self.names());
        devices.try_for_each(|(device, name)| device.check_life().map_err(|error| name.of(error)))
    }

    /// The parts of a model, the same for all its backends.
    fn parts(&self, model: &Arc<OpenModel>) -> Result<Vec<Arc<OpenModel>>, DeviceError> {
        let mut known = self.split.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.parts.iter().all(|part| part.strong_count() > 0));
        let same = |known: &&SplitModel| known.whole.as_ptr() == Arc::as_ptr(model);
        if let Some(known) = known.iter().find(same)
            && let Some(parts) = known.parts.iter().map(Weak::upgrade).collect()
        {
            return Ok(parts);
        }
        let parts = self.split(model)?;
        let parts: Vec<Arc<OpenModel>> = parts.into_iter().map(Arc::new).collect();
        let weak = parts.iter().map(Arc::downgrade).collect();
        known.push(SplitModel {
            whole: Arc::downgrade(model),
            parts: weak,
        });
        Ok(parts)
    }

    fn split(&self, model: &OpenModel) -> Result<Vec<OpenModel>, DeviceError> {
        let parts = Rank::all(self.devices.len()).map(|rank| model.part(rank));
        let parts: Result<_, _> = parts.collect();
        parts.map_err(|error| DeviceError(error.to_string()))
    }

    /// The names of the ranks.
    fn names(&self) -> impl Iterator<Item = RankName> {
        let devices = self.devices.iter().enumerate();
        devices.map(|(index, device)| RankName {
            index,
            ordinal: device.info().ordinal,
        })
    }

    /// Loads the parts of a model onto the devices at once, and tells how far all are.
    fn load(
        &self,
        parts: &[Arc<OpenModel>],
        shape: KvShape,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Vec<CudaBackend>, DeviceError> {
        let mut done: Vec<LoadProgress> = parts.iter().map(|part| part.to_load()).collect();
        let (told, reports) = sync_channel(REPORTS_MAX);
        thread::scope(|scope| {
            let ranks = self.devices.iter().zip(parts).enumerate();
            let loads = ranks.map(|(index, (device, part))| {
                let (told, part) = (told.clone(), Arc::clone(part));
                scope.spawn(move || {
                    let mut tell = |progress| {
                        let heard = told.send((index, progress));
                        heard.expect("reports are heard until all are loaded");
                    };
                    CudaBackend::load(device, part, shape, &mut tell)
                })
            });
            let loads: Vec<_> = loads.collect();
            drop(told);
            for (index, progress) in reports {
                done[index] = progress;
                tell(done.iter().copied().fold(LoadProgress::default(), sum));
            }
            let loaded = loads.into_iter().zip(self.names()).map(|(load, name)| {
                let ended = |_| Err(DeviceError("its thread has ended".to_owned()));
                load.join()
                    .unwrap_or_else(ended)
                    .map_err(|error| name.of(error))
            });
            loaded.collect()
        })
    }
}

fn sum(all: LoadProgress, one: LoadProgress) -> LoadProgress {
    LoadProgress {
        bytes: all.bytes + one.bytes,
        bytes_total: all.bytes_total + one.bytes_total,
        tensors: all.tensors + one.tensors,
        tensors_total: all.tensors_total + one.tensors_total,
    }
}

// === impl RankThread ===

impl RankName {
    /// An error of the rank.
    fn of(self, error: DeviceError) -> DeviceError {
        let Self { index, ordinal } = self;
        DeviceError(format!("rank {index} (CUDA device {ordinal}): {error}"))
    }
}

impl Drop for RaisesAlarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self(alarm, name) = self;
            alarm.raise(name.of(DeviceError("its thread has ended".to_owned())));
        }
    }
}

impl RankThread {
    fn start(
        mut backend: CudaBackend,
        name: RankName,
        alarm: &Arc<Alarm>,
    ) -> Result<Self, DeviceError> {
        let (tasks, given) = sync_channel::<Task>(1);
        let raises = RaisesAlarm(Arc::clone(alarm), name);
        let thread = thread::Builder::new().name(format!("rank-{}", name.index));
        let thread = thread.spawn(move || {
            let _raises = raises;
            for task in given {
                task(&mut backend);
            }
        });
        let refused = |error| name.of(DeviceError(format!("it has no thread: {error}")));
        Ok(Self {
            tasks: Some(tasks),
            thread: Some(thread.map_err(refused)?),
            name,
            alarm: Arc::clone(alarm),
        })
    }

    /// Gives the thread something to do, whose result is awaited elsewhere.
    fn give<T: Send + 'static>(
        &self,
        does: impl FnOnce(&mut CudaBackend) -> Result<T, DeviceError> + Send + 'static,
    ) -> Receiver<Result<T, DeviceError>> {
        let (done, result) = sync_channel(1);
        let (name, alarm) = (self.name, Arc::clone(&self.alarm));
        let task: Task = Box::new(move |backend| {
            let made = attempt(backend, (name, &alarm), does);
            // Who has given it may be gone, who then hears of it by the alarm.
            drop(done.send(made));
        });
        if let Some(tasks) = &self.tasks {
            // A thread that has ended has raised the alarm.
            drop(tasks.send(task));
        }
        result
    }
}

impl Drop for RankThread {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic was told by the alarm.
            drop(thread.join());
        }
    }
}

/// Does something on a rank's device. If it fails, so do all ranks, and the device may be lost.
fn attempt<T>(
    backend: &mut CudaBackend,
    (name, alarm): (RankName, &Alarm),
    does: impl FnOnce(&mut CudaBackend) -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    does(backend).map_err(|error| {
        let cause = alarm.raise(name.of(error));
        backend.leave();
        backend.look();
        cause
    })
}

// === impl RanksBackend ===

impl RanksBackend {
    /// Checks that devices and their kernels can compute a model together.
    ///
    /// # Errors
    /// If they cannot; the error says why.
    pub fn check(ranks: &CudaRanks, model: &OpenModel) -> Result<(), DeviceError> {
        let parts = ranks.split(model)?;
        let mut all = ranks.devices.iter().zip(&parts);
        let checked = all.try_for_each(|(device, part)| CudaBackend::check(device, part));
        checked.map_err(|DeviceError(said)| {
            let count = parts.len();
            DeviceError(format!(
                "of a model that is split over {count} devices, a part is: {said}"
            ))
        })
    }

    /// Loads a model onto the devices, unless another backend already has, and lays its keys and values out in their
    /// pools as `shape` says. `tell` is told how far loading is.
    ///
    /// # Errors
    /// If a device fails or has not enough memory, the model cannot be split over them, or the weights cannot be read.
    pub fn load(
        ranks: &CudaRanks,
        model: Arc<OpenModel>,
        shape: KvShape,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, DeviceError> {
        Self::check(ranks, &model)?;
        let parts = ranks.parts(&model)?;
        let mut backends = ranks.load(&parts, shape, tell)?.into_iter();
        let alarm = Arc::new(Alarm::default());
        let first = backends.next().expect("there are ranks");
        let others = backends.zip(ranks.names().skip(1));
        let others = others.map(|(backend, name)| RankThread::start(backend, name, &alarm));
        let mut loaded = Self {
            others: others.collect::<Result<_, _>>()?,
            model,
            turn: Arc::clone(&ranks.turn),
            alarm,
            first,
            swaps: SwapCounts::default(),
        };
        loaded.join(ranks)?;
        Ok(loaded)
    }

    /// Makes the way between the ranks.
    fn join(&mut self, ranks: &CudaRanks) -> Result<(), DeviceError> {
        let by = (ranks.nccl, ranks.nccl.unique_id()?);
        let (turn, alarm) = (Arc::clone(&self.turn), Arc::clone(&self.alarm));
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Memory is taken, for which the driver may wait for devices.
        let _quiet = quiet();
        let count = self.others.len() + 1;
        let join = move |index| {
            let alarm = Arc::clone(&alarm);
            move |backend: &mut CudaBackend| backend.join(by, Rank { index, count }, &alarm)
        };
        let joined = self.others.iter();
        let joined: Vec<_> = joined
            .map(|rank| rank.give(join(rank.name.index)))
            .collect();
        let own = self.on_first(join(0));
        self.all_of(own, joined).map(drop)
    }

    /// Does something on the first rank's device. If it fails, so do all ranks.
    fn on_first<T>(
        &mut self,
        does: impl FnOnce(&mut CudaBackend) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let ordinal = self.first.ordinal();
        let name = RankName { index: 0, ordinal };
        attempt(&mut self.first, (name, &self.alarm), does)
    }

    /// Has all ranks do something, each on its thread.
    fn each<T: Send + 'static>(
        &mut self,
        does: impl Fn(&mut CudaBackend) -> Result<T, DeviceError> + Clone + Send + 'static,
    ) -> Result<Vec<T>, DeviceError> {
        self.alarm.check()?;
        let others = self.others.iter();
        let others: Vec<_> = others.map(|rank| rank.give(does.clone())).collect();
        let own = self.on_first(does);
        self.all_of(own, others)
    }

    /// The results of all ranks. If one has failed, so have all.
    fn all_of<T>(
        &mut self,
        own: Result<T, DeviceError>,
        others: Vec<Receiver<Result<T, DeviceError>>>,
    ) -> Result<Vec<T>, DeviceError> {
        let mut all = vec![own];
        for other in others {
            let gone = |_| Err(DeviceError("a rank's thread has ended".to_owned()));
            all.push(other.recv().unwrap_or_else(gone));
        }
        let all: Result<Vec<T>, DeviceError> = all.into_iter().collect();
        all.map_err(|error| self.failed(error))
    }

    /// Ends the ways between the ranks, and finds out which of their devices are lost; returns the first failure.
    fn failed(&mut self, error: DeviceError) -> DeviceError {
        let cause = self.alarm.raise(error);
        self.leave(CudaBackend::look);
        cause
    }

    /// Ends the ways between the ranks, and does something more to each.
    fn leave(&mut self, more: fn(&CudaBackend)) {
        let leave = move |backend: &mut CudaBackend| {
            backend.leave();
            more(backend);
            Ok(())
        };
        let others: Vec<_> = self.others.iter().map(|rank| rank.give(leave)).collect();
        // Nothing of it fails.
        drop(leave(&mut self.first));
        for other in others {
            // A thread that has ended has left.
            drop(other.recv());
        }
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let input = Arc::new(self.first.lay_out(chunks));
        logits.clear();
        self.alarm.check()?;
        let turn = Arc::clone(&self.turn);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = self.on_first(|first| first.begin(&input));
        let (at, way) = begun.map_err(|error| self.failed(error))?;
        if at.rows == 0 {
            return Ok(());
        }
        let quiet = way.quiet();
        let follow = {
            let input = Arc::clone(&input);
            move |rank: &mut CudaBackend| rank.follow(way, &input)
        };
        let others = self.others.iter();
        let others: Vec<_> = others.map(|rank| rank.give(follow.clone())).collect();
        let own = self.on_first(|first| first.make(way, &input, &at));
        self.all_of(own, others)?;
        drop(quiet);
        let finished = self.on_first(|first| first.finish(&input, logits));
        finished.map_err(|error| self.failed(error))
    }
}

impl Drop for RanksBackend {
    fn drop(&mut self) {
        {
            // Memory is given back, for which the driver waits for devices. All ranks at once: one may wait for others.
            let _quiet = quiet();
            self.leave(|_| ());
        }
        self.others.clear();
    }
}

impl fmt::Debug for RanksBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RanksBackend")
            .field("ranks", &(self.others.len() + 1))
            .finish_non_exhaustive()
    }
}

impl Backend for RanksBackend {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn tokens_per_block(&self) -> u32 {
        self.first.tokens_per_block()
    }

    fn blocks_total(&self) -> u32 {
        self.first.blocks_total()
    }

    fn context_tokens(&self) -> u32 {
        self.model.config().context_tokens
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.run(chunks, logits)
    }

    fn hidden_size(&self) -> usize {
        self.model.config().hidden_size
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.alarm.check()?;
        let fetched = self.on_first(|first| first.hidden(hidden));
        fetched.map_err(|error| self.failed(error))
    }

    fn chooser(&mut self) -> Option<&mut dyn TokenChooser> {
        Some(self)
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        let copies: Arc<[BlockCopy]> = copies.into();
        let begun = self.each(move |rank| rank.swap(direction, &copies))?;
        self.swaps.begun = begun[0];
        Ok(begun[0])
    }

    /// The last swap that all ranks have made.
    fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        if self.swaps.done < self.swaps.begun {
            let done = self.each(move |rank| rank.swapped(wait))?;
            self.swaps.done = done.into_iter().min().expect("there are ranks");
        }
        Ok(self.swaps.done)
    }
}

impl TokenChooser for RanksBackend {
    fn choose(
        &mut self,
        choices: &[TokenChoice<'_>],
        possible: PossibleTokens<'_>,
    ) -> Result<Vec<Option<u32>>, DeviceError> {
        self.alarm.check()?;
        let chosen = self.on_first(|first| first.choose(choices, possible));
        chosen.map_err(|error| self.failed(error))
    }
}

#[cfg(feature = "test-util")]
impl WithPoison for RanksBackend {
    fn deviation_max(&self) -> f32 {
        self.first.deviation_max()
    }

    fn poison(&mut self, blocks: &[BlockId]) {
        let blocks: Arc<[BlockId]> = blocks.into();
        let poisoned = self.each(move |rank| {
            rank.poison(&blocks);
            Ok(())
        });
        poisoned.expect("memory can be filled");
    }
}
