//! The host's pure state machine: queue, slots, KV ledger and interlock.
//!
//! [`Machine`] is sans-io. Time comes in as `now`, nothing blocks, nothing logs, and the same
//! inputs with the same answers give the same decisions. It has four families of methods, used
//! in this order by every runtime:
//!
//! 1. [`Machine::handle`]: what happened outside, as an [`Input`];
//! 2. [`Machine::decide`]: one scheduling round, in which [`Policies`] are asked;
//! 3. [`Machine::poll_effect`] and [`Machine::poll_fact`]: what the runtime must do, and what
//!    happened;
//! 4. getters, among them [`Machine::next_timeout`]: when to come back at the latest.
//!
//! A [`RecordedMachine`] has the same methods, and tells a [`Recorder`] of every input, round and
//! fact.
//!
//! ```
//! use pointsman_core::*;
//!
//! let mut machine = Machine::new(Config::default()).unwrap();
//! let now = Micros(0);
//! let device = Input::DeviceAttached(DeviceSpec {
//!     name: "cpu0".into(),
//!     kv: KvSpec::Owned { block_bytes: 1 << 20, blocks_total: 64, host_blocks: 0 },
//!     tokens_per_step: Some(256),
//! });
//! let device = machine.handle(now, device).device().unwrap();
//! let executor = Input::ExecutorAttached(ExecutorSpec {
//!     name: "cpu0/llama".into(),
//!     device,
//!     kind: rows::ExecutorKind::Cpu,
//!     role: rows::Role::Both,
//!     group: 0,
//!     share_weight: 1,
//!     serves: None,
//!     slots_total: 4,
//!     models_max: None,
//!     queue_limit: 0,
//!     tokens_per_block: Some(16),
//!     preempts: true,
//!     reads: ReadableBlocks::Device,
//!     model_unload_delay: Micros(0),
//! });
//! machine.handle(now, executor).executor().unwrap();
//! let tenant = machine.handle(now, Input::name(rows::NameKind::Tenant, "default"));
//! let request = NewRequest::new(TenantId(tenant.name()), 100, 20);
//! let request = machine.handle(now, Input::arrival(request)).request();
//! machine.decide(now, &mut NoPolicies);
//! let started = std::iter::from_fn(|| machine.poll_effect())
//!     .any(|effect| matches!(effect, Effect::Start(order) if order.sequence.request == request));
//! assert!(started);
//! ```
//!
//! # Invariants
//! Checked by [`Machine::check_invariants`] after every step of every test, simulation and fuzz
//! run; that function lists them.
//!
//! # Not here
//! Inputs, effects, facts and the feed of changed rows, as types (`pointsman-events`, which is exported
//! again here). Tokens, prompts and answers (executors), wasmtime (`pointsman-component`), clocks and sockets
//! (the server).

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::float_arithmetic)]

mod asked;
mod machine;
mod policies;
mod recorded;
mod view;

pub use asked::Asked;
pub use machine::{BrokenInvariant, Machine, WaitReasons};
pub use pointsman_events::*;
pub use policies::{NoPolicies, Policies, Sink, Tap};
pub use recorded::RecordedMachine;
pub use view::View;
