//! The numbers of an eviction: what is lacking, and what each victim leaves.

use pointsman_core::rows::{Change, Device, ExecutorInfo, ExecutorLoad, Sequence};
use pointsman_core::{
    EvictHow, Eviction, ExecutorId, Micros, RequestId, RowKind, RowKinds, Shortage, View,
};

/// An eviction as its policy knew it.
#[derive(Clone, Debug)]
pub(crate) struct ToldEviction {
    at: Micros,
    shortage: Shortage,
    on: ExecutorId,
    /// Slots in use on the executor, and all of them.
    slots: (u32, u32),
    /// Blocks of its device that are free or cached; absent: nobody counts them.
    available: Option<u32>,
    victims: Vec<(Sequence, EvictHow)>,
    /// Victims that could have been spared, each for itself.
    pub(crate) spared: Vec<RequestId>,
}

/// The rows that the numbers are read from.
#[derive(Default)]
struct Rows {
    infos: Vec<ExecutorInfo>,
    loads: Vec<ExecutorLoad>,
    devices: Vec<Device>,
    sequences: Vec<Sequence>,
}

/// Names of requests and executors.
pub(crate) trait Names {
    /// The name of a request.
    fn request(&self, id: RequestId) -> String;

    /// The name of an executor.
    fn executor(&self, id: ExecutorId) -> String;
}

// === impl Rows ===

impl Rows {
    fn of(view: &View<'_>) -> Self {
        let kinds = [
            RowKind::Executor,
            RowKind::Load,
            RowKind::Device,
            RowKind::Sequence,
        ];
        let mut rows = Self::default();
        for row in view.rows(RowKinds::from_iter(kinds)) {
            if let Change::Executor(info) = row {
                rows.infos.push(*info);
            } else if let Change::Load(load) = row {
                rows.loads.push(load);
            } else if let Change::Device(device) = row {
                rows.devices.push(device);
            } else if let Change::Sequence(sequence) = row {
                rows.sequences.push(sequence);
            }
        }
        rows
    }
}

// === impl ToldEviction ===

impl ToldEviction {
    /// The numbers of an answer; absent: its executor is gone.
    pub(crate) fn of(
        view: &View<'_>,
        at: Micros,
        (shortage, eviction): (&Shortage, &Eviction),
    ) -> Option<Self> {
        let rows = Rows::of(view);
        let on = eviction.executor;
        let info = rows.infos.iter().find(|info| info.id == on)?;
        let load = rows.loads.iter().find(|load| load.id == on)?;
        let device = rows.devices.iter().find(|row| row.id == info.device);
        let victims = eviction.victims.iter().filter_map(|victim| {
            let mut placed = rows.sequences.iter();
            let row = placed.find(|row| row.request == victim.request)?;
            Some((*row, victim.how))
        });
        Some(Self {
            at,
            shortage: *shortage,
            on,
            slots: (load.slots_used, info.slots_total),
            available: device.map(|row| row.blocks_free.saturating_add(row.blocks_cached)),
            victims: victims.collect(),
            spared: view.spared(shortage, eviction),
        })
    }

    /// The time of the answer.
    pub(crate) fn at(&self) -> Micros {
        self.at
    }

    /// The numbers, a line for the needy one and one for each victim.
    pub(crate) fn lines(&self, names: &dyn Names) -> Vec<String> {
        let mut lines = vec![self.lacking(names)];
        lines.extend(self.victims.iter().map(|(row, how)| {
            let spared = if self.spared.contains(&row.request) {
                ": not needed, where the others leave"
            } else {
                ""
            };
            let tokens = row.prompt_tokens.saturating_add(row.tokens_generated);
            let cost = match how {
                EvictHow::Recompute => "are computed anew",
                EvictHow::Swap => "go to host memory and back",
            };
            format!(
                "  {} leaves {} blocks and a slot of {}, and {tokens} tokens {cost}{spared}",
                names.request(row.request),
                row.blocks_exclusive,
                names.executor(row.executor),
            )
        }));
        lines
    }

    fn lacking(&self, names: &dyn Names) -> String {
        let (needy, on) = (names.request(self.shortage.needy), names.executor(self.on));
        let (used, total) = self.slots;
        let cause = self.shortage.cause.in_words();
        let blocks = self.shortage.blocks;
        let blocks = match self.available {
            Some(available) => format!(
                ", {available} blocks are free or cached of the {blocks} it needs, so {} are lacking",
                blocks.saturating_sub(available)
            ),
            None => String::new(),
        };
        format!("{needy} lacks {cause} on {on}: {used} of {total} slots are in use{blocks}")
    }
}
