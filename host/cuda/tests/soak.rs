//! The soak of the engine's tests on emulated CUDA devices: three minutes of logical load, after which nothing
//! of the devices' memory is taken any more.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../engine/tests/machine/host.rs"]
mod host;
#[path = "../../engine/tests/soak/load.rs"]
mod load;
#[path = "../../engine/tests/soak/soak.rs"]
mod soak;

use std::rc::Rc;
use std::sync::Arc;

use pointsman_core::Micros;
use pointsman_cuda::{CudaBackend, CudaDevice, emulation, kv_bytes_per_token};
use serde_json::{Value, json};

use soak::{Device, Hosted, MINUTE, MODELS, SHAPE, Soak, hosted, kv_blocks};

/// Shapes of the models: two, as small as kernels take them.
fn shapes() -> [Value; MODELS] {
    let shape = |kv_heads: u32| {
        json!({"num_key_value_heads": kv_heads, "vocab_size": load::VOCAB_SIZE, "num_hidden_layers": 1,
            "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8})
    };
    [1, 2, 1].map(shape)
}

/// A device with memory of its own.
fn device(hosted: &Hosted) -> Device {
    let blocks = kv_blocks(hosted, kv_bytes_per_token);
    let device = CudaDevice::new(0, blocks).unwrap();
    let hosted = Rc::clone(hosted);
    Rc::new(move |place| {
        let model = Arc::clone(hosted[place].open());
        Box::new(CudaBackend::new(&device, model, SHAPE).unwrap())
    })
}

#[test]
fn minutes_of_load_leave_nothing_behind() {
    let emulation = emulation::alone();
    let hosted = hosted(shapes());
    let devices = [device(&hosted), device(&hosted)];
    let soak = Soak::new(1, devices, &device(&hosted));
    let taken = emulation.allocated();
    assert!(taken > 0);
    let time = (Micros(3 * MINUTE), Micros(3 * MINUTE / 2));
    let report = soak.run(time, || {});
    println!("{report:#?}");
    soak::check(&report, 20);
    assert_eq!(emulation.allocated(), 0, "of {taken} bytes at first");
}
