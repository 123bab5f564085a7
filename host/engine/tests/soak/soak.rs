//! Hours of load, in logical time, on engines that compute: two devices, three models, clients that leave, a
//! policy that has anybody give way, devices that fail, and an engine whose model is another every few minutes.
//!
//! Now and then the load ends, and nothing may be anybody's any more.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fastrand::Rng;
use pointsman_core::rows::RequestClass;
use pointsman_core::{
    Config, DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, ExecutorUpdate, Input, KvSpec, Micros,
    ModelId, RequestId, fixture,
};
use pointsman_engine::backend::{Backend, KvBlocks, KvShape};
use pointsman_engine::step_loop::LoopModel;
use pointsman_engine::test_util::demo_text;
use pointsman_model::config::LlamaConfig;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use pointsman_sim::Adversary;
use safetensors::Dtype;
use serde_json::Value;

use crate::host::{Host, MakeModels};
use crate::load::{Order, mortal, orders, prompt_blocks};

/// Pools with room for two of the longest sequences.
pub(crate) const SHAPE: KvShape = KvShape {
    tokens_per_block: 4,
    blocks_total: 40,
};
/// Blocks of host memory of each device.
const HOST_BLOCKS: u32 = 40;
/// Answers of the policy that are meant to be in order, in 100.
const SANITY: u32 = 98;
/// Number of models.
pub(crate) const MODELS: usize = 3;
/// A minute of logical time, in µs.
pub(crate) const MINUTE: u64 = 60_000_000;

/// Models of these shapes, by their places.
pub(crate) fn hosted(shapes: [Value; MODELS]) -> Hosted {
    let models = (1..).zip(shapes).map(|(seed, changes)| {
        let config = models::config(changes);
        models::load(&config, &models::tensors(&config, seed), Dtype::BF16)
    });
    models.collect()
}

/// The blocks of a device, of which each has room for the widest of the models.
pub(crate) fn kv_blocks(hosted: &Hosted, bytes_per_token: fn(&LlamaConfig) -> u64) -> KvBlocks {
    let widths = hosted.iter().map(|model| bytes_per_token(model.config()));
    KvBlocks {
        bytes: widths.max().unwrap() * u64::from(SHAPE.tokens_per_block),
        total: SHAPE.blocks_total,
        host: HOST_BLOCKS,
    }
}

/// The models, by their places.
pub(crate) type Hosted = Rc<[Arc<HostModel>]>;

/// A maker of backends for the model at a place, in the memory of one device.
pub(crate) type Device = Rc<dyn Fn(usize) -> Box<dyn Backend>>;

/// A soak under way.
pub(crate) struct Soak {
    host: Host,
    rng: Rc<RefCell<Rng>>,
    orders: Vec<Order>,
    models: Vec<ModelId>,
    devices: [(DeviceId, Device); 2],
    /// The engine that comes and goes.
    changing: ExecutorId,
    changes: u32,
    newest: RequestId,
}

/// The numbers of a soak.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) of_host: crate::host::Numbers,
    /// Times that the changing engine came with another model.
    pub(crate) model_changes: u32,
}

impl Soak {
    /// Devices and engines, before anything arrives. What is alone has a device of its own.
    pub(crate) fn new(seed: u64, devices: [Device; 2], alone: &Device) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut host = Host::new(Config::default());
        host.policies = Box::new(Adversary::new(rng.u64(..), SANITY));
        let mut alone: Vec<Box<dyn Backend>> = (0..MODELS).map(|model| alone(model)).collect();
        let orders = orders(&mut rng, &mut alone);
        let models = (0..MODELS).map(|place| host.machine.intern(Micros(0), &format!("m{place}")));
        let models = models.collect();
        let mut number = 0;
        let devices = devices.map(|device| {
            number += 1;
            (attach_device(&mut host, &format!("device{number}")), device)
        });
        let mut soak = Self {
            host,
            rng: Rc::new(RefCell::new(rng)),
            orders,
            models,
            devices,
            changing: ExecutorId(0),
            changes: 0,
            newest: RequestId(0),
        };
        soak.attach("all", 1, vec![0, 1, 2], None);
        soak.attach("one-at-a-time", 0, vec![0, 1], Some(1));
        soak.changing = soak.attach("changing", 0, vec![2], None);
        soak
    }

    /// Runs for so long, in waves of a length; after each nothing may be left.
    pub(crate) fn run(
        mut self,
        (until, wave): (Micros, Micros),
        mut after_wave: impl FnMut(),
    ) -> Report {
        let mut turns = 0_u64;
        while self.host.now < until {
            let quiet = self.host.now.after(wave);
            while self.host.now < quiet {
                turns += 1;
                self.turn();
                if turns.is_multiple_of(16) {
                    self.host.settle();
                }
            }
            self.host.run_out(Micros(100_000));
            self.host.check_empty();
            after_wave();
        }
        Report {
            of_host: self.host.numbers,
            model_changes: self.changes,
        }
    }

    fn turn(&mut self) {
        let minute = self.host.now.0 / MINUTE;
        let of_100 = [4, 20, 40][usize::try_from(minute % 3).unwrap()];
        if self.draw(100) < of_100 {
            self.arrive();
        }
        if self.draw(40) == 0 {
            self.cancel();
        }
        if self.draw(900) == 0 {
            self.change_model();
        }
        let after = 20_000 + u64::from(self.draw(160_000));
        self.host.turn(Micros(after));
        self.host.machine.check_liveness().unwrap();
    }

    fn draw(&self, n: u32) -> u32 {
        self.rng.borrow_mut().u32(0..n)
    }

    fn arrive(&mut self) {
        let mut rng = self.rng.borrow_mut();
        let Order { model, job, alone } = self.orders[rng.usize(0..self.orders.len())].clone();
        let blocks = prompt_blocks(&job.prompt, SHAPE.tokens_per_block);
        let deadline = Micros(rng.u64(0..30_000_000));
        let deadline = (rng.u8(0..10) == 0).then(|| self.host.now.after(deadline));
        let class = match rng.bool() {
            true => RequestClass::LatencyCritical,
            false => RequestClass::Throughput,
        };
        let model = self.models[model];
        self.newest = self.host.arrive(job, alone, |new| {
            new.model = Some(model);
            new.prompt_blocks = blocks;
            new.deadline = deadline;
            new.class = class;
        });
    }

    /// Has any client of the last ones leave, if it is still there.
    fn cancel(&mut self) {
        let before = u64::from(self.draw(20));
        self.host
            .cancel(RequestId(self.newest.0.saturating_sub(before)));
    }

    /// Sends the changing engine away; if it has gone, it comes back with another model.
    fn change_model(&mut self) {
        let snapshot = self.host.machine.executor_snapshot(self.changing);
        if snapshot.is_some() {
            let detach = Input::ExecutorUpdated(self.changing, ExecutorUpdate::Detach);
            // It may be on its way out already.
            let _told = self.host.machine.handle(self.host.now, detach);
        } else {
            self.changes += 1;
            let model = self.changes as usize % MODELS;
            self.changing = self.attach("changing", 0, vec![model], None);
        }
    }

    /// Attaches an engine with the models at these places to a device.
    fn attach(
        &mut self,
        name: &str,
        device: usize,
        places: Vec<usize>,
        models_max: Option<u32>,
    ) -> ExecutorId {
        let (id, device) = self.devices[device].clone();
        let spec = ExecutorSpec {
            slots_total: 4,
            queue_limit: 2,
            tokens_per_block: Some(SHAPE.tokens_per_block),
            serves: Some(places.iter().map(|place| self.models[*place]).collect()),
            models_max,
            model_unload_delay: Micros(500_000),
            ..fixture::executor_spec(name, id)
        };
        let (rng, models) = (Rc::clone(&self.rng), self.models.clone());
        let make: MakeModels = Box::new(move || {
            let made = places.iter().map(|place| {
                let steps = rng.borrow_mut().u32(500..8000);
                let backend = mortal(device(*place), steps);
                LoopModel::new(models[*place], demo_text(), Box::new(backend))
            });
            made.collect()
        });
        self.host.attach(spec, make)
    }
}

fn attach_device(host: &mut Host, name: &str) -> DeviceId {
    host.attach_device(DeviceSpec {
        name: name.to_owned(),
        kv: KvSpec::Owned {
            block_bytes: 1024,
            blocks_total: SHAPE.blocks_total,
            host_blocks: HOST_BLOCKS,
        },
        tokens_per_step: Some(24),
    })
}

/// Checks that everything happened that a soak is for, in a part of an hour; sequences gave way at every length of an
/// answer, in both ways.
pub(crate) fn check(report: &Report, part: u32) {
    let numbers = &report.of_host;
    let outcome = |word: &str| numbers.outcomes.get(word).copied().unwrap_or_default();
    let recomputed = numbers.preemptions - numbers.swaps;
    let counts = [
        ("served", outcome("Finished"), 1000),
        ("cancelled", outcome("Cancelled"), 100),
        ("expired", outcome("Expired"), 20),
        ("refused", outcome("Refused"), 20),
        ("swapped out", numbers.swaps, 200),
        ("put back to be computed again", recomputed, 200),
        ("lives ended", numbers.losses, 5),
        ("half answers that went on", numbers.recovered, 5),
        ("models changed", report.model_changes, 5),
    ];
    for (what, count, an_hour) in counts {
        assert!(count >= an_hour / part, "{count} {what}: {report:#?}");
    }
    // Answers have up to 60 tokens; few have as many.
    for gave_way_at in [&numbers.recomputed_at, &numbers.swapped_at] {
        let spared = (0..=48 / part).find(|length| !gave_way_at.contains(length));
        assert_eq!(spared, None, "no sequence gave way there: {report:#?}");
    }
}
