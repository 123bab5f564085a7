//! What policies were told before a round that no table of a scenario says.

use pointsman_core::RequestId;
use pointsman_core::rows::NameKind;

use super::names::request;
use super::told::{GOES_ON, Scribe, is_waiting};

// === impl Scribe ===

impl Scribe<'_> {
    /// Notes what is lacking, each in a line.
    pub(super) fn note_lacks(&mut self) {
        let mut lacks = std::mem::take(&mut self.lacks);
        if !self.sequences.is_empty() {
            lacks.push(format!(
                "the length of the answers under way: each goes on for {GOES_ON} tokens"
            ));
        }
        let queued = self.waiting.iter().filter(|row| is_waiting(row)).count();
        if queued > 0 {
            lacks.push("that admission had let in those that wait: it is asked again".to_owned());
        }
        let loads = self.machine.executor_ids();
        let loads: Vec<_> = loads
            .filter_map(|id| self.machine.executor_load(id))
            .collect();
        let here = self.sequences.len() as u64;
        if loads.iter().map(|load| load.placed_total).sum::<u64>() > here {
            lacks
                .push("how many requests each executor had had before: they begin anew".to_owned());
        }
        if loads
            .iter()
            .any(|load| load.ttft_micros.or(load.itl_micros).is_some())
        {
            lacks.push("the speed that executors had shown".to_owned());
        }
        lacks.extend(self.kept_models());
        lacks.extend(self.earlier_tries());
        lacks.extend(self.cached());
        self.lacks = lacks;
    }

    fn kept_models(&self) -> Vec<String> {
        let ids = self.machine.executor_ids();
        let rows = ids.flat_map(|id| self.machine.residencies(id));
        let kept = rows.filter(|row| row.sequences == 0);
        let kept = kept.map(|row| {
            let model = self.name(NameKind::Model, row.model.0);
            format!(
                "{model}, kept loaded on {}",
                self.executor_name(row.executor)
            )
        });
        kept.collect()
    }

    fn earlier_tries(&self) -> Vec<String> {
        let tried = self.waiting.iter().filter(|row| row.attempts > 0);
        let tried = tried.map(|row| {
            let on = row.failed_on.iter().map(|id| self.executor_name(*id));
            let on: Vec<String> = on.collect();
            let on = if on.is_empty() {
                "none".to_owned()
            } else {
                on.join(", ")
            };
            format!(
                "the {} placements of {} before; failed by: {on}",
                row.attempts,
                request(row.id)
            )
        });
        tried.collect()
    }

    fn cached(&self) -> Vec<String> {
        let held = |id: RequestId| {
            let cached = self.machine.view().cached(id)?;
            let most = cached.overlaps.iter();
            let most = most
                .map(|it| it.device_tokens + it.host_tokens + it.disk_tokens)
                .max();
            let most = most
                .unwrap_or(0)
                .max(cached.floor_tokens)
                .max(cached.shared_tokens);
            (most > 0).then(|| {
                format!(
                    "up to {most} tokens of the prompt of {} that were cached",
                    request(id)
                )
            })
        };
        self.waiting.iter().filter_map(|row| held(row.id)).collect()
    }
}
