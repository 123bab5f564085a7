//! An engine on an emulated CUDA device keeps the executor contract, as one on processors does.

use std::sync::Arc;

use pointsman_cuda::{CudaBackend, CudaDevice, emulation, kv_bytes_per_token};
use pointsman_engine::backend::Backend;
use pointsman_engine::test_util::subjects::{KV_SHAPE, Stepped, Threaded, with_arena};
use pointsman_executor::contract_suite;
use pointsman_model::test_util::models;

/// Makes a backend of the demo model, with a device's pool of its own.
fn demo() -> Box<dyn Backend> {
    emulation::provide();
    let model = models::demo();
    let blocks = with_arena(kv_bytes_per_token(model.config()));
    let device = Arc::new(CudaDevice::new(0, blocks).expect("the emulation has a device"));
    Box::new(
        CudaBackend::new(&device, Arc::clone(model.open()), KV_SHAPE).expect("the device has room"),
    )
}

contract_suite!(cuda, Stepped::new(&[demo]), 3);
contract_suite!(cuda_on_its_thread, Threaded::new(&[demo]), 3);
contract_suite!(cuda_with_two_models, Stepped::new(&[demo, demo]), 2);
