//! A soak of engines on processors: an hour of logical load, in a process of its own, whose memory is measured.
//! `POINTSMAN_SOAK_HOURS=<n>` runs for longer, and `POINTSMAN_SEED=<n>` another load.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../machine/host.rs"]
mod host;
mod load;
mod resident;
mod soak;

use std::rc::Rc;
use std::sync::Arc;

use pointsman_core::Micros;
use pointsman_engine::cpu::{CpuBackend, KvMemory, Processors, kv_bytes_per_token};
use serde_json::{Value, json};

use resident::{GROWTH_BYTES_MAX, resident};
use soak::{Device, Hosted, MINUTE, MODELS, SHAPE, Soak, hosted, kv_blocks};

fn from_environment(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the two switches of this test, read nowhere else"
    )]
    let value = std::env::var(name).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Shapes of the models: two.
fn shapes() -> [Value; MODELS] {
    let wide = json!({"num_key_value_heads": 4, "vocab_size": load::VOCAB_SIZE});
    let narrow = json!({"vocab_size": load::VOCAB_SIZE});
    [narrow.clone(), wide, narrow]
}

/// A device with memory of its own.
fn device(hosted: &Hosted) -> Device {
    let blocks = kv_blocks(hosted, kv_bytes_per_token);
    let (memory, hosted) = (KvMemory::new(blocks), Rc::clone(hosted));
    Rc::new(move |place| {
        let (memory, model) = (memory.clone(), Arc::clone(&hosted[place]));
        let processors = Processors::of_caller();
        Box::new(CpuBackend::on(memory, model, SHAPE, processors))
    })
}

#[test]
fn an_hour_of_load_leaves_nothing_behind() {
    let hours = from_environment("POINTSMAN_SOAK_HOURS").unwrap_or(1);
    let seed = from_environment("POINTSMAN_SEED").unwrap_or(1);
    let hosted = hosted(shapes());
    let devices = [device(&hosted), device(&hosted)];
    let soak = Soak::new(seed, devices, &device(&hosted));
    let mut measured = Vec::new();
    let time = (Micros(hours * 60 * MINUTE), Micros(10 * MINUTE));
    let report = soak.run(time, || measured.extend(resident()));
    println!("{report:#?}\nresident after each wave: {measured:?}");
    soak::check(&report, 1);
    if let [first, .., last] = measured[..] {
        let grown = last.saturating_sub(first);
        assert!(grown <= GROWTH_BYTES_MAX, "{grown} bytes more");
    }
}
