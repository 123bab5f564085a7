//! A machine before a round, as the tables of a scenario, and what those cannot say.

use std::collections::BTreeSet;

use pointsman_core::rows::{
    Change, Device, Health, LoadedModels, NameKind, Request, RequestClass, Sequence, SequenceState,
    Stage,
};
use pointsman_core::{
    DeviceId, ExecutorId, KvSpec, Machine, Micros, RowKind, RowKinds, SessionKey,
};
use pointsman_journal::Roster;

use super::names::{executor, listed, quoted, request, text, timed};
use super::setting::{bounds, policies};

/// Tokens that a running sequence goes on to generate: a journal tells only at its end how many.
pub(super) const GOES_ON: u32 = 64;

/// The state before a round.
#[derive(Debug)]
pub(super) struct Told {
    parts: Vec<String>,
    lacks: Vec<String>,
    now: Micros,
    /// The time of the round in the scenario.
    begins: Micros,
}

/// The state that is being written down.
pub(super) struct Scribe<'a> {
    pub(super) machine: &'a Machine,
    pub(super) now: Micros,
    pub(super) waiting: Vec<Request>,
    pub(super) sequences: Vec<Sequence>,
    devices: Vec<Device>,
    pub(super) lacks: Vec<String>,
}

// === impl Told ===

impl Told {
    /// Writes down a machine as it is before a round.
    pub(super) fn of(now: Micros, machine: &Machine, roster: &Roster) -> Self {
        let mut scribe = Scribe::new(now, machine);
        let policies = policies(roster, &mut scribe.lacks);
        let parts = [
            policies,
            bounds(machine.config()),
            scribe.tenants(),
            scribe.models(),
            scribe.devices(),
            scribe.executors(),
            scribe.running(),
            scribe.waiting(),
            scribe.steps(),
        ];
        scribe.note_lacks();
        let ages = scribe.waiting.iter().filter(|row| is_waiting(row));
        let begins = ages.map(|row| now.since(row.arrived)).max();
        Self {
            parts: parts.into_iter().filter(|part| !part.is_empty()).collect(),
            lacks: scribe.lacks,
            now,
            begins: begins.unwrap_or_default(),
        }
    }

    /// All but the expectations, with the beginning of the step that they belong to.
    pub(super) fn text(&self, title: &str) -> String {
        format!("title = {}\n{}", quoted(title), self.parts.join("\n"))
    }

    /// Facts that counted and are not in the scenario, each in a line.
    pub(super) fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// A time of the journal by the scenario's clock.
    pub(super) fn clock(&self, at: Micros) -> Micros {
        self.begins.after(at.since(self.now))
    }
}

/// True for a request that was asked about before.
pub(super) fn is_waiting(row: &Request) -> bool {
    matches!(row.stage, Stage::Queued | Stage::Parked)
}

// === impl Scribe: the fleet ===

impl<'a> Scribe<'a> {
    fn new(now: Micros, machine: &'a Machine) -> Self {
        let kinds = [RowKind::Waiting, RowKind::Sequence];
        let (mut waiting, mut sequences) = (Vec::new(), Vec::new());
        for change in machine.view().rows(RowKinds::from_iter(kinds)) {
            if let Change::Waiting(row) = change {
                waiting.push((*row).clone());
            } else if let Change::Sequence(row) = change {
                sequences.push(row);
            }
        }
        waiting.sort_by_key(|row| row.id);
        // Those in a queue come when the slots are taken.
        sequences.sort_by_key(|row| (row.state == SequenceState::Queued, row.request));
        Self {
            machine,
            now,
            waiting,
            sequences,
            devices: machine.devices().collect(),
            lacks: Vec::new(),
        }
    }

    pub(super) fn name(&self, kind: NameKind, id: u32) -> String {
        text(self.machine, kind, id)
    }

    pub(super) fn executor_name(&self, id: ExecutorId) -> String {
        executor(self.machine, id)
    }

    fn tenants(&mut self) -> String {
        let mut tables = String::new();
        let mut has_used = false;
        for row in self.machine.tenants() {
            has_used |= row.prompt_tokens_total + row.output_tokens_total > 0;
            let name = self.name(NameKind::Tenant, row.id.0);
            if name != DEFAULT_TENANT {
                let rest = tenant(row.weight, row.tokens_per_minute, "\n");
                tables.push_str(&format!("[[tenant]]\nname = {}{rest}\n", quoted(&name)));
            }
        }
        if has_used {
            self.lacks
                .push("the tokens that tenants had used before: they begin anew".to_owned());
        }
        tables
    }

    fn models(&self) -> String {
        let tables = self.machine.models().map(|row| {
            let name = quoted(&self.name(NameKind::Model, row.id.0));
            let most = row.running_max;
            let most = most.map_or(String::new(), |most| format!("running-max = {most}\n"));
            format!("[[model]]\nname = {name}\n{most}")
        });
        tables.collect()
    }

    fn devices(&mut self) -> String {
        let infos = self.machine.executor_ids();
        let infos = infos.filter_map(|id| self.machine.executor_info(id));
        let ids: BTreeSet<DeviceId> = infos.map(|info| info.device).collect();
        let tables: Vec<String> = ids.into_iter().map(|id| self.device(id)).collect();
        tables.concat()
    }

    fn device(&mut self, id: DeviceId) -> String {
        let name = self.name(NameKind::Device, id.0);
        let mut table = format!("[[device]]\nname = {}\n", quoted(&name));
        let counts = self.devices.iter().find(|row| row.id == id);
        let spec = self.machine.device_spec(id);
        match spec.map(|spec| spec.kv) {
            Some(KvSpec::Owned {
                block_bytes,
                blocks_total,
                host_blocks,
            }) => {
                table.push_str(&format!(
                    "kv-blocks = {blocks_total}\nblock-bytes = {block_bytes}\n"
                ));
                if host_blocks > 0 {
                    table.push_str(&format!("host-blocks = {host_blocks}\n"));
                }
            }
            Some(KvSpec::Remote | KvSpec::Assumed) | None => {
                if let Some(row) = counts {
                    table.push_str(&format!(
                        "report = {{ blocks-total = {}, blocks-free = {}, blocks-cached = {}, block-bytes = {} }}\n",
                        row.blocks_total, row.blocks_free, row.blocks_cached, row.block_bytes
                    ));
                }
            }
        }
        if let Some(tokens) = self.machine.tokens_per_step(id) {
            table.push_str(&format!("tokens-per-step = {tokens}\n"));
        }
        table
    }

    fn executors(&self) -> String {
        let ids = self.machine.executor_ids();
        ids.map(|id| self.executor(id)).collect()
    }

    /// An executor, without the keys that have their defaults.
    fn executor(&self, id: ExecutorId) -> String {
        let (Some(info), Some(load), Some(spec)) = (
            self.machine.executor_info(id),
            self.machine.executor_load(id),
            self.machine.executor_spec(id),
        ) else {
            return String::new();
        };
        let mut table = format!(
            "[[executor]]\nname = {}\ndevice = {}\nslots = {}\n",
            quoted(&self.executor_name(id)),
            quoted(&self.name(NameKind::Device, info.device.0)),
            info.slots_total
        );
        let (kind, role) = (info.kind.as_str(), info.role.as_str());
        let serves = info.serves.map(|models| {
            listed(
                models
                    .iter()
                    .map(|model| self.name(NameKind::Model, model.0)),
            )
        });
        let loaded = self.machine.residencies(id).filter(|row| row.loaded);
        let loaded = loaded.map(|row| self.name(NameKind::Model, row.model.0));
        let loaded = match info.loaded_models {
            LoadedModels::Told => Some(listed(loaded)),
            LoadedModels::Untold => None,
        };
        let health = match load.health {
            Health::Up | Health::Draining => None,
            Health::Degraded | Health::Down => Some(quoted(load.health.as_str())),
        };
        let keys = [
            ("kind", (kind != "simulated").then(|| quoted(kind))),
            ("role", (role != "both").then(|| quoted(role))),
            ("group", unless(info.group, 0)),
            ("share-weight", unless(info.share_weight, 1)),
            ("serves", serves),
            ("models-max", info.models_max.map(|most| most.to_string())),
            ("queue-limit", unless(info.queue_limit, 0)),
            (
                "tokens-per-block",
                info.tokens_per_block.map(|it| it.to_string()),
            ),
            ("preempts", unless(info.preempts, true)),
            (
                "model-unload-delay",
                (spec.model_unload_delay > Micros(0)).then(|| timed(spec.model_unload_delay)),
            ),
            ("loaded", loaded),
            ("health", health),
        ];
        for (key, value) in keys {
            if let Some(value) = value {
                table.push_str(&format!("{key} = {value}\n"));
            }
        }
        table
    }
}

/// The tenant that each scenario has.
const DEFAULT_TENANT: &str = "default";

/// A tenant's keys after its name.
fn tenant(weight: u32, tokens_per_minute: Option<u64>, between: &str) -> String {
    let tokens = tokens_per_minute.map_or(String::new(), |tokens| {
        format!("{between}tokens-per-minute = {tokens}")
    });
    match unless(weight, 1) {
        Some(weight) => format!("{between}weight = {weight}{tokens}"),
        None => tokens,
    }
}

/// A value, unless it is the default.
fn unless<T: PartialEq + ToString>(value: T, default: T) -> Option<String> {
    (value != default).then(|| value.to_string())
}

// === impl Scribe: the requests ===

impl Scribe<'_> {
    fn running(&mut self) -> String {
        let sequences = std::mem::take(&mut self.sequences);
        let tables = sequences.iter().map(|row| self.sequence(row)).collect();
        self.sequences = sequences;
        tables
    }

    fn sequence(&mut self, row: &Sequence) -> String {
        let name = request(row.request);
        if row.state == SequenceState::Leaving {
            let on = self.executor_name(row.executor);
            self.lacks
                .push(format!("{name}, which was leaving {on} and had not left"));
            return String::new();
        }
        let mut generated = row.tokens_generated;
        if generated > 0 && !self.is_computed_at_once(row) {
            self.lacks
                .push(format!("the {generated} tokens that {name} had generated"));
            generated = 0;
        }
        let in_queue = self.waiting.iter().find(|other| other.id == row.request);
        let told = match in_queue {
            Some(waiting) => self.request(waiting),
            None => self.placed(row, generated),
        };
        let on = quoted(&self.executor_name(row.executor));
        let generated = unless(generated, 0);
        let generated = generated.map_or(String::new(), |it| format!("generated = {it}\n"));
        format!("[[running]]\nexecutor = {on}\n{generated}request = {told}\n")
    }

    /// True if a step of the executor has room for the prompt, as a running request of a scenario has to.
    fn is_computed_at_once(&self, row: &Sequence) -> bool {
        let info = self.machine.executor_info(row.executor);
        let tokens = info.and_then(|info| self.machine.tokens_per_step(info.device));
        tokens.is_none_or(|tokens| {
            let all: u32 = self.sequences.iter().map(|row| row.prompt_tokens).sum();
            row.prompt_tokens.max(all) <= tokens
        })
    }

    /// A running request.
    fn placed(&self, row: &Sequence, generated: u32) -> String {
        let mut keys = vec![format!("name = {}", quoted(&request(row.request)))];
        keys.extend(self.payer(row.tenant.0, row.model.map(|model| model.0)));
        keys.extend(urgency(row.class, row.priority));
        keys.push(format!("prompt = {}", row.prompt_tokens));
        keys.push(format!("output = {}", generated + GOES_ON));
        format!("{{ {} }}", keys.join(", "))
    }

    fn payer(&self, tenant: u32, model: Option<u32>) -> impl Iterator<Item = String> {
        let tenant = Some(self.name(NameKind::Tenant, tenant));
        let tenant = tenant.filter(|name| name != DEFAULT_TENANT);
        let tenant = tenant.map(|name| format!("tenant = {}", quoted(&name)));
        let model = model.map(|id| format!("model = {}", quoted(&self.name(NameKind::Model, id))));
        tenant.into_iter().chain(model)
    }

    /// A request that has not started.
    fn request(&self, row: &Request) -> String {
        let mut keys = vec![format!("name = {}", quoted(&request(row.id)))];
        keys.extend(self.payer(row.tenant.0, row.model.map(|model| model.0)));
        keys.extend(urgency(row.class, row.priority));
        keys.push(format!("prompt = {}", row.prompt_tokens));
        keys.push(format!("output = {}", row.output_tokens_max));
        let there: BTreeSet<ExecutorId> = self.machine.executor_ids().collect();
        let preferred = row.preferred.filter(|id| there.contains(id));
        let allowed = row.allowed.as_ref().map(|ids| {
            let ids = ids.iter().filter(|id| there.contains(id));
            listed(ids.map(|id| self.executor_name(*id)))
        });
        let labels = row.labels.iter().map(|id| self.name(NameKind::Label, id.0));
        let labels = (!row.labels.is_empty()).then(|| listed(labels));
        let adapter = row
            .adapter
            .map(|id| quoted(&self.name(NameKind::Adapter, id.0)));
        let session = row
            .session
            .map(|SessionKey(key)| quoted(&format!("key:{key:016x}")));
        let deadline = row.deadline.map(|at| timed(at.since(row.arrived)));
        let head_start = (row.head_start > Micros(0)).then(|| timed(row.head_start));
        let more = [
            (
                "output-expected",
                row.output_tokens_expected.map(|it| it.to_string()),
            ),
            ("session", session),
            (
                "preferred",
                preferred.map(|id| quoted(&self.executor_name(id))),
            ),
            ("allowed", allowed),
            ("group", row.group.map(|group| group.to_string())),
            ("head-start", head_start),
            ("deadline", deadline),
            ("may-wait", unless(row.may_wait, true)),
            ("adapter", adapter),
            ("labels", labels),
        ];
        let more = more.into_iter();
        keys.extend(more.filter_map(|(key, value)| Some(format!("{key} = {}", value?))));
        format!("{{ {} }}", keys.join(", "))
    }

    fn waiting(&self) -> String {
        let rows = self.waiting.iter().filter(|row| is_waiting(row));
        let tables = rows.map(|row| {
            let since = timed(self.now.since(row.arrived));
            format!(
                "[[waiting]]\nfor = {since}\nrequest = {}\n",
                self.request(row)
            )
        });
        tables.collect()
    }

    /// The steps before the decision, and the beginning of the one with the decision.
    fn steps(&self) -> String {
        let mut steps = String::new();
        for row in self.machine.tenants() {
            let keys = tenant(row.weight, row.tokens_per_minute, ", ");
            if self.name(NameKind::Tenant, row.id.0) == DEFAULT_TENANT && !keys.is_empty() {
                steps.push_str(&format!(
                    "[[step]]\nset-tenant = {{ name = \"{DEFAULT_TENANT}\"{keys} }}\n"
                ));
            }
        }
        let loads = self.machine.executor_ids();
        let loads = loads.filter_map(|id| self.machine.executor_load(id));
        let draining = loads.filter(|load| load.health == Health::Draining);
        let draining: Vec<String> = draining.map(|load| self.executor_name(load.id)).collect();
        if !draining.is_empty() {
            steps.push_str(&format!("[[step]]\ndrain = {}\n", listed(draining)));
        }
        steps.push_str("[[step]]\n");
        let arrived = self
            .waiting
            .iter()
            .filter(|row| row.stage == Stage::Arrived);
        let arrived: Vec<String> = arrived
            .map(|row| format!("    {},\n", self.request(row)))
            .collect();
        if !arrived.is_empty() {
            steps.push_str(&format!("arrive = [\n{}]\n", arrived.concat()));
        }
        steps
    }
}

/// The class and priority, where they are not the normal ones.
fn urgency(class: RequestClass, priority: i32) -> impl Iterator<Item = String> {
    let class = (class != RequestClass::LatencyCritical)
        .then(|| format!("class = {}", quoted(class.as_str())));
    let priority = unless(priority, 0).map(|priority| format!("priority = {priority}"));
    class.into_iter().chain(priority)
}
