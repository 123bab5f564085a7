//! An emulated device that is lost, or has not enough memory, and what is shared on it.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::sync::Arc;
use std::thread;

use pointsman_cuda::emulation;
use pointsman_cuda::probe::{self, NoDevice};
use pointsman_cuda::{CudaBackend, CudaDevice, CudaDevices, kv_bytes_per_token, weight_bytes};
use pointsman_engine::backend::{
    Backend, Chunk, DeviceError, KvBlocks, KvShape, Logits, SwapDirection, SwapWait,
};
use pointsman_events::{BlockCopy, BlockId, HostBlockId};
use pointsman_model::test_util::models;

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 8,
};

fn blocks() -> KvBlocks {
    SHAPE.blocks(kv_bytes_per_token(models::demo().config()))
}

fn pool_bytes() -> usize {
    let blocks = blocks();
    usize::try_from(blocks.bytes * u64::from(blocks.total)).unwrap()
}

fn device() -> CudaDevice {
    CudaDevice::new(0, blocks()).unwrap()
}

fn backend(device: &CudaDevice) -> Result<CudaBackend, DeviceError> {
    CudaBackend::new(device, Arc::clone(models::demo().open()), SHAPE)
}

fn step(backend: &mut dyn Backend) -> Result<Vec<u32>, DeviceError> {
    run(backend, &[5, 6, 7, 8, 9], (0, BlockId(2)))
}

/// The last token of [`step`] alone, whose sequence is in this block.
fn step_in(backend: &mut dyn Backend, block: BlockId) -> Result<Vec<u32>, DeviceError> {
    run(backend, &[9], (4, block))
}

fn run(
    backend: &mut dyn Backend,
    tokens: &[u32],
    (start, block): (u32, BlockId),
) -> Result<Vec<u32>, DeviceError> {
    let chunk = Chunk {
        tokens,
        start,
        blocks: &[block],
        logits: Logits::Last,
    };
    let mut logits = Vec::new();
    backend.forward(&[chunk], &mut logits)?;
    Ok(logits.iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn a_lost_device_begins_anew_once_all_have_let_go_of_it() {
    let emulated = emulation::alone();
    let device = device();
    let (mut one, mut other) = (backend(&device).unwrap(), backend(&device).unwrap());
    let before = step(&mut one).unwrap();
    emulated.lose_after(Some(3));
    let lost = step(&mut one).unwrap_err();
    assert!(lost.0.contains("ILLEGAL_ADDRESS"), "{lost}");
    drop(one);
    let early = backend(&device).unwrap_err();
    assert!(early.0.contains("has not let go of it yet"), "{early}");
    // The other one hears of it at whatever it is asked for next.
    let heard = other.swapped(SwapWait::No).unwrap_err();
    assert_eq!(heard, early);
    assert_eq!(step(&mut other), Err(early));
    drop(other);
    assert_eq!(emulated.allocated(), 0);
    assert_eq!(step(&mut backend(&device).unwrap()), Ok(before));
}

#[test]
fn the_backends_of_an_engine_end_together_though_their_device_is_lost() {
    let emulated = emulation::alone();
    let device = device();
    let mut both = [backend(&device).unwrap(), backend(&device).unwrap()];
    let before = step(&mut both[0]).unwrap();
    emulated.lose_after(Some(3));
    step(&mut both[0]).unwrap_err();
    drop(both);
    assert_eq!(emulated.allocated(), 0);
    assert_eq!(step(&mut backend(&device).unwrap()), Ok(before));
}

#[test]
fn a_lost_device_begins_anew_on_another_thread_as_soon_as_it_is_let_go_of() {
    let emulated = emulation::alone();
    let devices = CudaDevices::new(&[0], blocks()).unwrap();
    let load = || {
        let model = Arc::clone(models::demo().open());
        devices.load(model, SHAPE, &mut |_| ())
    };
    let mut backend = load().unwrap();
    // How far one thread is when the other begins is another each time.
    for _ in 0..20 {
        emulated.lose_after(Some(3));
        step(&mut *backend).unwrap_err();
        let lost = backend;
        backend = thread::scope(|scope| {
            let ending = scope.spawn(move || drop(lost));
            while devices.check_lives().is_err() && !ending.is_finished() {
                thread::yield_now();
            }
            load().unwrap()
        });
    }
    step(&mut *backend).unwrap();
}

#[test]
fn a_loss_is_seen_without_a_step_until_all_have_let_go_of_the_device() {
    let emulated = emulation::alone();
    let devices = CudaDevices::new(&[0], blocks()).unwrap();
    let load = || {
        let model = Arc::clone(models::demo().open());
        devices.load(model, SHAPE, &mut |_| ()).unwrap()
    };
    assert_eq!(devices.check_lives(), Ok(()));
    let (mut one, other) = (load(), load());
    assert_eq!(devices.check_lives(), Ok(()));
    emulated.lose_after(Some(3));
    step(&mut *one).unwrap_err();
    drop(one);
    let lost = devices.check_lives().unwrap_err();
    assert!(lost.0.contains("has not let go of it yet"), "{lost}");
    drop(other);
    assert_eq!(devices.check_lives(), Ok(()));
    step(&mut *load()).unwrap();
}

#[test]
fn an_error_that_leaves_the_device_as_it_was_is_of_one_backend_alone() {
    let emulated = emulation::alone();
    let device = device();
    let (mut one, mut other) = (backend(&device).unwrap(), backend(&device).unwrap());
    let before = step(&mut one).unwrap();
    assert_eq!(step(&mut other), Ok(before.clone()));
    // Nothing is left for a step of more rows.
    emulated.set_memory(emulated.allocated());
    let refused = run(&mut one, &[5; 16], (0, BlockId(3))).unwrap_err();
    assert!(refused.0.contains("OUT_OF_MEMORY"), "{refused}");
    drop(one);
    emulated.set_memory(1 << 30);
    assert_eq!(step(&mut other), Ok(before.clone()));
    let mut again = backend(&device).unwrap();
    assert_eq!(step(&mut again), Ok(before.clone()));
    assert_eq!(step(&mut other), Ok(before));
}

#[test]
fn backends_share_the_pool_and_the_weights_and_give_back_all_memory() {
    let emulated = emulation::alone();
    let device = device();
    let mut one = backend(&device).unwrap();
    step(&mut one).unwrap();
    let first = emulated.allocated();
    let weights = usize::try_from(weight_bytes(models::demo().open())).unwrap();
    let pool = pool_bytes();
    assert!(first > weights + pool, "{first}");
    let mut other = backend(&device).unwrap();
    assert_eq!(step(&mut other), step(&mut one));
    let second = emulated.allocated() - first;
    // Its buffers and cuBLAS's, and not once more what is shared.
    assert!(
        second < first - weights - pool + 1,
        "{second} after {first}"
    );
    drop((one, other));
    assert_eq!(emulated.allocated(), 0);
}

#[test]
fn host_memory_is_pinned_for_a_life_and_given_back() {
    let emulated = emulation::alone();
    let with_arena = KvBlocks {
        host: 3,
        ..blocks()
    };
    let device = CudaDevice::new(0, with_arena).unwrap();
    let backend = backend(&device).unwrap();
    let host = usize::try_from(with_arena.bytes * 3).unwrap();
    assert!(emulated.allocated() > pool_bytes() + host);
    drop(backend);
    assert_eq!(emulated.allocated(), 0);
}

#[test]
fn copies_are_made_beside_steps() {
    let _emulated = emulation::alone();
    let with_arena = KvBlocks {
        host: 3,
        ..blocks()
    };
    let device = CudaDevice::new(0, with_arena).unwrap();
    let mut backend = backend(&device).unwrap();
    let row = step(&mut backend).unwrap();
    let copies = |block| {
        let copy = |place| BlockCopy {
            host: HostBlockId(place),
            block: BlockId(block + place),
        };
        [0, 1, 2].map(copy)
    };
    let out = backend.swap(SwapDirection::Out, &copies(2)).unwrap();
    let back = backend.swap(SwapDirection::In, &copies(5)).unwrap();
    // Nobody has looked for as long as it takes.
    assert!(backend.swapped(SwapWait::No).unwrap() < out);
    assert_eq!(step(&mut backend).unwrap(), row);
    assert!(backend.swapped(SwapWait::No).unwrap() < out);
    while backend.swapped(SwapWait::ForNext).unwrap() < back {}
    assert_eq!(step_in(&mut backend, BlockId(5)).unwrap(), row);
}

#[test]
fn a_device_without_enough_memory_says_so_and_keeps_nothing() {
    let emulated = emulation::alone();
    emulated.set_memory(pool_bytes() / 2);
    let refused = backend(&device()).unwrap_err();
    assert!(refused.0.contains("give it less"), "{refused}");
    emulated.set_memory(pool_bytes() + 4096);
    let refused = backend(&device()).unwrap_err();
    assert!(refused.0.contains("OUT_OF_MEMORY"), "{refused}");
    assert_eq!(emulated.allocated(), 0);
}

#[test]
fn devices_are_listed_and_one_that_is_not_there_is_named() {
    let emulated = emulation::alone();
    emulated.set_devices(2);
    let devices = probe::devices().unwrap();
    assert_eq!(devices.len(), 2);
    assert!(devices[1].to_string().starts_with("1: "), "{}", devices[1]);
    let missing = probe::device(2).unwrap_err();
    let expected = NoDevice::NotThere {
        ordinal: 2,
        devices: 2,
    };
    assert_eq!(missing, expected);
    assert!(CudaDevice::new(2, blocks()).is_err());
}

#[test]
fn two_devices_may_be_used_side_by_side() {
    let emulated = emulation::alone();
    emulated.set_devices(2);
    let second = CudaDevice::new(1, blocks()).unwrap();
    let (first, second) = (Arc::new(device()), Arc::new(second));
    let mut backends = [&first, &second].map(|device| backend(device).unwrap());
    let rows = backends.each_mut().map(|backend| step(backend).unwrap());
    assert_eq!(rows[0], rows[1]);
}
