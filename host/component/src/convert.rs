//! Conversions between the core's rows and answers and the generated types of the interface.
//!
//! The functions are written by a macro, because two sets of types are generated from `wit/`:
//! wasmtime's for components, used by `wasm`, and the SDK's, with which the test kit runs a policy
//! natively. Both generators give the same names to types, fields and variants, so one text serves
//! both, and a policy is told the same either way.
//!
//! An empty list within a row is absent on the wire, since each list costs a call into the guest to
//! allocate it.

mod description;
mod hooks;

/// Writes, into the module it is invoked in, functions that convert the core's rows to the
/// types of the given module, which has a module for each interface, and the answers back.
///
/// ```text
/// pointsman_component::conversions!(crate::wire);
/// ```
///
/// The functions are `pub(crate)`. Those for rows and questions lead to the wire, those for
/// answers from it. Ids and times are plain integers on the wire.
#[macro_export]
macro_rules! conversions {
    ($($wire:ident)::+) => {
        use $crate::pointsman_interface as interface;
        use $crate::pointsman_interface::rows;
        use $($wire)::+ as wire;
        use $($wire)::+::types;

        $crate::conversions_of_rows!();
        $crate::conversions_of_requests!();
        $crate::conversions_of_description!();
        $crate::conversions_of_hooks!();
    };
}

/// Part of [`conversions`]: the rows about executors, devices, models and tenants.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions_of_rows {
    () => {
        pub(crate) fn moment(at: rows::Moment) -> types::Moment {
            types::Moment {
                now: at.now.0,
                round: at.round.0,
            }
        }

        pub(crate) fn bounds(bounds: &interface::Bounds) -> wire::lifecycle::Bounds {
            wire::lifecycle::Bounds {
                queue_max: bounds.queue_max,
                parking_max: bounds.parking_max,
                batch_max: bounds.batch_max,
                attempts_max: bounds.attempts_max,
                overtaken_max: bounds.overtaken_max,
                wait_max: bounds.wait_max.0,
                unplaced_max: bounds.unplaced_max.0,
                held_max: bounds.held_max.0,
            }
        }

        pub(crate) fn extent(extent: rows::Extent) -> types::Extent {
            match extent {
                rows::Extent::SinceLast => types::Extent::SinceLast,
                rows::Extent::Everything => types::Extent::Everything,
            }
        }

        pub(crate) fn change(change: &rows::Change) -> types::Change {
            use rows::Change as Row;
            match change {
                Row::Name(row) => types::Change::Name(name(row)),
                Row::Executor(row) => types::Change::Executor(executor_info(row)),
                Row::Load(row) => types::Change::Load(executor_load(row)),
                Row::ExecutorGone(id) => types::Change::ExecutorGone(id.0),
                Row::Residency(row) => types::Change::Residency(residency(row)),
                Row::ResidencyGone(row) => types::Change::ResidencyGone(presence(*row)),
                Row::Device(row) => types::Change::Device(device(row)),
                Row::Model(row) => types::Change::Model(model(row)),
                Row::Tenant(row) => types::Change::Tenant(tenant(row)),
                Row::Waiting(row) => types::Change::Waiting(request(row)),
                Row::WaitingGone(id) => types::Change::WaitingGone(id.0),
                Row::Sequence(row) => types::Change::Sequence(sequence(row)),
                Row::SequenceGone(id) => types::Change::SequenceGone(id.0),
                Row::Completed(row) => types::Change::Completed(completion(row)),
            }
        }

        fn name(row: &rows::Name) -> types::Name {
            let kind = match row.kind {
                rows::NameKind::Executor => types::NameKind::Executor,
                rows::NameKind::Device => types::NameKind::Device,
                rows::NameKind::Model => types::NameKind::Model,
                rows::NameKind::Tenant => types::NameKind::Tenant,
                rows::NameKind::Adapter => types::NameKind::Adapter,
                rows::NameKind::Label => types::NameKind::Label,
            };
            types::Name {
                kind,
                id: row.id,
                text: row.text.clone(),
            }
        }

        fn executor_info(row: &rows::ExecutorInfo) -> types::ExecutorInfo {
            types::ExecutorInfo {
                id: row.id.0,
                device: row.device.0,
                kind: match row.kind {
                    rows::ExecutorKind::Cuda => types::ExecutorKind::Cuda,
                    rows::ExecutorKind::Cpu => types::ExecutorKind::Cpu,
                    rows::ExecutorKind::Remote => types::ExecutorKind::Remote,
                    rows::ExecutorKind::Simulated => types::ExecutorKind::Simulated,
                },
                role: match row.role {
                    rows::Role::Both => types::Role::Both,
                    rows::Role::Prefill => types::Role::Prefill,
                    rows::Role::Decode => types::Role::Decode,
                },
                group: row.group,
                share_weight: row.share_weight,
                serves: row
                    .serves
                    .as_ref()
                    .map(|ids| ids.iter().map(|id| id.0).collect()),
                slots_total: row.slots_total,
                models_max: row.models_max,
                queue_limit: row.queue_limit,
                tokens_per_block: row.tokens_per_block,
                preempts: row.preempts,
                loaded_models: match row.loaded_models {
                    rows::LoadedModels::Untold => types::LoadedModels::Untold,
                    rows::LoadedModels::Told => types::LoadedModels::Told,
                },
            }
        }

        pub(crate) fn executor_load(row: &rows::ExecutorLoad) -> types::ExecutorLoad {
            types::ExecutorLoad {
                id: row.id.0,
                health: match row.health {
                    rows::Health::Up => types::Health::Up,
                    rows::Health::Degraded => types::Health::Degraded,
                    rows::Health::Draining => types::Health::Draining,
                    rows::Health::Down => types::Health::Down,
                },
                slots_used: row.slots_used,
                queued_critical: row.queued_critical,
                queued_throughput: row.queued_throughput,
                saturated: row.saturated,
                prefill_tokens_pending: row.prefill_tokens_pending,
                blocks_used: row.blocks_used,
                placed_total: row.placed_total,
                ttft_micros: row.ttft_micros,
                itl_micros: row.itl_micros,
            }
        }

        pub(crate) fn residency(row: &rows::Residency) -> types::Residency {
            types::Residency {
                executor: row.executor.0,
                model: row.model.0,
                sequences: row.sequences,
                warm_until: row.warm_until.map(|at| at.0),
                started: row.started.0,
                first_token: row.first_token.map(|at| at.0),
                loaded: row.loaded,
            }
        }

        pub(crate) fn presence(row: rows::Presence) -> types::Presence {
            types::Presence {
                executor: row.executor.0,
                model: row.model.0,
            }
        }

        pub(crate) fn device(row: &rows::Device) -> types::Device {
            types::Device {
                id: row.id.0,
                block_bytes: row.block_bytes,
                blocks_total: row.blocks_total,
                blocks_free: row.blocks_free,
                blocks_cached: row.blocks_cached,
                blocks_evicted_total: row.blocks_evicted_total,
                host_blocks_total: row.host_blocks_total,
                host_blocks_free: row.host_blocks_free,
            }
        }

        pub(crate) fn model(row: &rows::Model) -> types::Model {
            types::Model {
                id: row.id.0,
                running_max: row.running_max,
                running: row.running,
                waiting: row.waiting,
            }
        }

        pub(crate) fn tenant(row: &rows::Tenant) -> types::Tenant {
            types::Tenant {
                id: row.id.0,
                weight: row.weight,
                tokens_per_minute: row.tokens_per_minute,
                running: row.running,
                waiting: row.waiting,
                prompt_tokens_total: row.prompt_tokens_total,
                output_tokens_total: row.output_tokens_total,
            }
        }
    };
}

/// Part of [`conversions`]: the rows about requests.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions_of_requests {
    () => {
        fn class(class: rows::RequestClass) -> types::RequestClass {
            match class {
                rows::RequestClass::Throughput => types::RequestClass::Throughput,
                rows::RequestClass::LatencyCritical => types::RequestClass::LatencyCritical,
            }
        }

        pub(crate) fn request(row: &rows::Request) -> types::Request {
            let executors = |ids: &[interface::ExecutorId]| ids.iter().map(|id| id.0).collect();
            types::Request {
                id: row.id.0,
                model: row.model.map(|id| id.0),
                adapter: row.adapter.map(|id| id.0),
                tenant: row.tenant.0,
                session: row.session.map(|key| key.0),
                class: class(row.class),
                priority: row.priority,
                head_start: row.head_start.0,
                stage: match row.stage {
                    rows::Stage::Arrived => types::Stage::Arrived,
                    rows::Stage::Parked => types::Stage::Parked,
                    rows::Stage::Queued => types::Stage::Queued,
                    rows::Stage::Placed => types::Stage::Placed,
                },
                labels: (!row.labels.is_empty())
                    .then(|| row.labels.iter().map(|id| id.0).collect()),
                arrived: row.arrived.0,
                deadline: row.deadline.map(|at| at.0),
                may_wait: row.may_wait,
                prompt_tokens: row.prompt_tokens,
                output_tokens_max: row.output_tokens_max,
                output_tokens_expected: row.output_tokens_expected,
                group: row.group,
                allowed: row.allowed.as_deref().map(executors),
                failed_on: (!row.failed_on.is_empty()).then(|| executors(&row.failed_on)),
                preferred: row.preferred.map(|id| id.0),
                attempts: row.attempts,
                hold_end: row.hold_end.map(|at| at.0),
            }
        }

        pub(crate) fn asked_request(row: &rows::AskedRequest) -> types::AskedRequest {
            types::AskedRequest {
                request: row.request.0,
                cached_tokens: row.cached_tokens,
                overtaken: row.overtaken,
            }
        }

        pub(crate) fn cached(row: &rows::Cached) -> types::Cached {
            let overlap = |overlap: &rows::Overlap| types::Overlap {
                executor: overlap.executor.0,
                device_tokens: overlap.device_tokens,
                host_tokens: overlap.host_tokens,
                disk_tokens: overlap.disk_tokens,
            };
            types::Cached {
                request: row.request.0,
                overlaps: (!row.overlaps.is_empty())
                    .then(|| row.overlaps.iter().map(overlap).collect()),
                floor_tokens: row.floor_tokens,
                shared_tokens: row.shared_tokens,
            }
        }

        pub(crate) fn sequence(row: &rows::Sequence) -> types::Sequence {
            types::Sequence {
                request: row.request.0,
                executor: row.executor.0,
                model: row.model.map(|id| id.0),
                tenant: row.tenant.0,
                class: class(row.class),
                priority: row.priority,
                state: match row.state {
                    rows::SequenceState::Queued => types::SequenceState::Queued,
                    rows::SequenceState::Running => types::SequenceState::Running,
                    rows::SequenceState::Leaving => types::SequenceState::Leaving,
                },
                started: row.started.0,
                prompt_tokens: row.prompt_tokens,
                tokens_generated: row.tokens_generated,
                blocks: row.blocks,
                blocks_exclusive: row.blocks_exclusive,
                preemptible: row.preemptible,
                swappable: row.swappable,
                preemptions: row.preemptions,
            }
        }

        pub(crate) fn completion(row: &rows::Completion) -> types::Completion {
            types::Completion {
                request: row.request.0,
                executor: row.executor.0,
                model: row.model.map(|id| id.0),
                tenant: row.tenant.0,
                prompt_tokens: row.prompt_tokens,
                cached_tokens: row.cached_tokens,
                output_tokens: row.output_tokens,
                queued_micros: row.queued_micros,
                ttft_micros: row.ttft_micros,
                total_micros: row.total_micros,
                ok: row.ok,
            }
        }
    };
}
