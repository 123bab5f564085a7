//! Memory over many reloads, in a process of its own: other tests would be measured too.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

mod soak;
#[expect(
    dead_code,
    reason = "the stage of the tests of reload, of which this needs a part"
)]
#[path = "../reload/stage.rs"]
mod stage;
