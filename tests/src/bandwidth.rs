//! The speed at which this machine's processors read memory: the ceiling of an engine's decode steps, in which
//! each weight is read once.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::thread;

use crate::clock::clock;

/// Numbers that are read by all threads together: a gibibyte, which no cache holds.
const NUMBERS: usize = 1 << 27;
/// Measurements; the fastest counts, since this is a ceiling.
const REPEATS: usize = 5;

/// Measures the bytes a second that so many threads read together.
#[must_use]
pub fn read_per_second(threads: NonZeroUsize) -> f64 {
    let numbers = vec![1_u64; NUMBERS];
    let share = NUMBERS.div_ceil(threads.get());
    let once = || {
        let now = clock();
        thread::scope(|scope| {
            for part in numbers.chunks(share) {
                scope.spawn(|| black_box(sum(black_box(part))));
            }
        });
        now().as_secs_f64()
    };
    let fastest = (0..REPEATS).map(|_| once()).fold(f64::INFINITY, f64::min);
    size_of_val(numbers.as_slice()) as f64 / fastest
}

/// The sum in several lanes, so that no addition waits for the one before.
fn sum(numbers: &[u64]) -> u64 {
    let mut lanes = [0_u64; 32];
    for step in numbers.as_chunks::<32>().0 {
        for (lane, number) in lanes.iter_mut().zip(step) {
            *lane = lane.wrapping_add(*number);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}
