//! Measured tables of prompt and token times, as splitwise-sim has them.
//!
//! A prompt takes a time by the tokens of the step, a token one by the sequences of the step, both
//! interpolated between what was measured; beyond that they go on in proportion. A step with both
//! takes as long as its prompts, and a tenth more (`performance_model.py` of splitwise-sim).

use std::collections::BTreeMap;

use super::StepWork;
use crate::numbers::float;

/// Times by size, ascending.
type Points = Vec<(u64, f64)>;

/// A table of prompt and token times of one model on one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    /// Milliseconds by prompt tokens of a step.
    prompts: Points,
    /// Milliseconds by sequences of a step.
    tokens: Points,
}

/// A reason for which a file has no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A column is missing from the first line.
    #[error("there is no column {0:?} in the first line")]
    NoColumn(&'static str),
    /// A cell is no number.
    #[error("line {line}: {text:?} in column {column:?} is no number")]
    NoNumber {
        /// The line, counted from 1.
        line: usize,
        /// The column's name.
        column: &'static str,
        /// The text of the cell.
        text: String,
    },
    /// No row is of the model, the hardware and the number of devices.
    #[error("no row is of {wanted}; there are rows of {there}")]
    NoRows {
        /// The model, the hardware and the number of devices that were asked for.
        wanted: String,
        /// Models that there are.
        there: String,
    },
}

/// Splits a step's work where a mixed step is slower.
const MIXED: f64 = 1.1;

impl CostTable {
    /// Llama-2 70B on eight H100: medians of `data/perf_model.csv` of splitwise-sim at 8f99e7dc.
    #[must_use]
    pub fn splitwise_h100() -> Self {
        Self {
            prompts: vec![
                (128, 58.2),
                (512, 53.9),
                (1024, 77.7),
                (2048, 134.4),
                (4096, 376.2),
                (8192, 831.5),
                (16_384, 1551.7),
                (32_768, 2936.3),
            ],
            tokens: vec![
                (1, 30.38),
                (4, 31.79),
                (8, 32.5),
                (16, 34.17),
                (32, 38.62),
                (64, 50.16),
            ],
        }
    }

    /// Llama-2 70B on eight A100, of the same file.
    #[must_use]
    pub fn splitwise_a100() -> Self {
        Self {
            prompts: vec![
                (128, 65.3),
                (512, 93.0),
                (1024, 160.9),
                (2048, 282.7),
                (4096, 708.4),
                (8192, 1781.0),
                (16_384, 3524.5),
                (32_768, 7554.0),
            ],
            tokens: vec![
                (1, 45.04),
                (4, 45.79),
                (8, 46.47),
                (16, 50.44),
                (32, 53.02),
                (64, 71.61),
            ],
        }
    }

    /// The table of one model in a file of splitwise-sim: the medians of its rows. `wanted` is the
    /// model, the hardware and the number of devices, as in `llama2-70b,h100-80gb,8`.
    ///
    /// # Errors
    /// If the file has no such rows, or is none of splitwise-sim.
    pub fn parse(text: &str, wanted: &str) -> Result<Self, TableError> {
        let mut lines = text.lines();
        let columns = Columns::of(lines.next().unwrap_or_default())?;
        let mut prompts: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let mut tokens: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let mut there: BTreeMap<String, ()> = BTreeMap::new();
        for (idx, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            let row = columns.row(line, idx + 2)?;
            if row.key == wanted {
                let prompt = row.prompt_size * row.batch_size;
                prompts.entry(prompt).or_default().push(row.prompt_ms);
                tokens.entry(row.batch_size).or_default().push(row.token_ms);
            }
            there.insert(row.key, ());
        }
        if prompts.is_empty() {
            let there: Vec<String> = there.into_keys().collect();
            return Err(TableError::NoRows {
                wanted: wanted.to_owned(),
                there: there.join("; "),
            });
        }
        Ok(Self {
            prompts: medians(prompts),
            tokens: medians(tokens),
        })
    }

    /// The time of a step in ms.
    pub(super) fn step_ms(&self, work: &StepWork) -> f64 {
        let prompts = || interpolated(&self.prompts, work.prefill_tokens);
        match (work.prefill_tokens, work.decodes) {
            (0, 0) => 0.0,
            (0, decodes) => interpolated(&self.tokens, decodes),
            (_, 0) => prompts(),
            _ => prompts() * MIXED,
        }
    }
}

/// The places of the columns that are used.
struct Columns {
    places: [usize; 7],
}

/// The parts of a row that are used.
struct Row {
    key: String,
    prompt_size: u64,
    batch_size: u64,
    prompt_ms: f64,
    token_ms: f64,
}

const NAMES: [&str; 7] = [
    "model",
    "hardware",
    "tensor_parallel",
    "prompt_size",
    "batch_size",
    "prompt_time",
    "token_time",
];

impl Columns {
    fn of(heading: &str) -> Result<Self, TableError> {
        let names: Vec<&str> = heading.split(',').map(str::trim).collect();
        let mut places = [0; NAMES.len()];
        for (place, name) in places.iter_mut().zip(NAMES) {
            let found = names.iter().position(|column| *column == name);
            *place = found.ok_or(TableError::NoColumn(name))?;
        }
        Ok(Self { places })
    }

    fn row(&self, line: &str, number: usize) -> Result<Row, TableError> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let cell = |idx: usize| cells.get(self.places[idx]).copied().unwrap_or_default();
        let bad = |idx: usize| TableError::NoNumber {
            line: number,
            column: NAMES[idx],
            text: cell(idx).to_owned(),
        };
        let count = |idx| cell(idx).parse::<u64>().ok().ok_or_else(|| bad(idx));
        let time = |idx| {
            let time = cell(idx).parse::<f64>().ok();
            time.filter(|time| time.is_finite()).ok_or_else(|| bad(idx))
        };
        Ok(Row {
            key: format!("{},{},{}", cell(0), cell(1), cell(2)),
            prompt_size: count(3)?,
            batch_size: count(4)?,
            prompt_ms: time(5)?,
            token_ms: time(6)?,
        })
    }
}

fn medians(points: BTreeMap<u64, Vec<f64>>) -> Points {
    let median = |mut times: Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    };
    points
        .into_iter()
        .map(|(size, times)| (size, median(times)))
        .collect()
}

/// The time at a size: on the line between the two points around it, of the first point below it,
/// and in proportion to the last one above it.
fn interpolated(points: &Points, size: u64) -> f64 {
    let above = points.partition_point(|(at, _)| *at < size);
    match (
        above.checked_sub(1).map(|below| points[below]),
        points.get(above),
    ) {
        (None, Some((_, time))) => *time,
        (Some((at, time)), None) => time * float(size) / float(at),
        (Some((from, before)), Some((to, after))) => {
            let share = float(size - from) / float(to - from);
            before + (after - before) * share
        }
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(table: &CostTable, prefill_tokens: u64, decodes: u64) -> f64 {
        table.step_ms(&StepWork {
            prefill_tokens,
            decodes,
            ..StepWork::default()
        })
    }

    #[test]
    fn times_are_between_those_measured_and_in_proportion_beyond() {
        let table = CostTable::splitwise_h100();
        assert_eq!(step(&table, 2048, 0), 134.4);
        assert_eq!(step(&table, 3072, 0), (134.4 + 376.2) / 2.0);
        assert_eq!(step(&table, 1, 0), 58.2);
        assert_eq!(step(&table, 65_536, 0), 2936.3 * 2.0);
        assert_eq!(step(&table, 0, 128), 50.16 * 2.0);
        assert_eq!(step(&table, 2048, 5), 134.4 * 1.1);
        assert_eq!(step(&table, 0, 0), 0.0);
    }

    const FILE: &str = "\
model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel
m,h,512,1,128,50,30,8
m,h,512,1,128,54,32,8
m,h,512,1,128,53,31,8
m,h,512,2,128,90,33,8
m,a,512,1,128,99,60,8
";

    #[test]
    fn a_file_gives_the_medians_of_one_model() {
        let table = CostTable::parse(FILE, "m,h,8").unwrap();
        assert_eq!(step(&table, 512, 0), 53.0);
        assert_eq!(step(&table, 1024, 0), 90.0);
        assert_eq!(step(&table, 0, 1), 31.0);
    }

    #[test]
    fn a_file_that_lacks_something_is_refused_with_what_it_lacks() {
        let refused = |text: &str, wanted| CostTable::parse(text, wanted).unwrap_err().to_string();
        assert_eq!(
            refused(FILE, "m,h,4"),
            "no row is of m,h,4; there are rows of m,a,8; m,h,8"
        );
        assert_eq!(
            refused("model,hardware\n", "m,h,8"),
            "there is no column \"tensor_parallel\" in the first line"
        );
        assert_eq!(
            refused(&FILE.replace(",54,", ",x,"), "m,h,8"),
            "line 3: \"x\" in column \"prompt_time\" is no number"
        );
    }
}
