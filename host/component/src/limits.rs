//! The limits of a policy: fuel, processor time, memory, and the sizes of its answers.
//!
//! Fuel is the limit that policies meet first. It is deterministic, so a replay meets it at the
//! same instruction. Processor time, derived from fuel, is the backstop behind it, and wall-clock
//! time the backstop behind that. The defaults are large enough for interpreted guests.
//!
//! # Invariants
//! 1. A [`Limits`] in use has passed [`NamedLimits::validated`](pointsman_notation::NamedLimits::validated): every value is positive and at most
//!    its ceiling (`limits::tests`).
//!
//! # Not here
//! The number of faults that a policy may have: `Patience`, in `pointsman-policy`.

use pointsman_notation::named_limits;
use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Limits of one policy. Each can be set per policy, up to [`NamedLimits::CEILING`](pointsman_notation::NamedLimits::CEILING).
/// A limit that is missing in a text is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Limits {
    /// Fuel of one question or `observe`, without its rows. A unit is about one instruction.
    pub call_fuel: u64,
    /// Fuel of a question or `observe` for each row it passes.
    pub row_fuel: u64,
    /// Fuel of one question or `observe` with all its rows, and of `snapshot` and `restore`. The
    /// driver waits for all of these but `restore`, so this limit bounds how long a guest that never
    /// returns can hold it up.
    pub call_fuel_max: u64,
    /// Fuel of each of instantiation, `describe`, `configure` and `explain`: calls to an instance
    /// that has made no decision yet, and in `explain` about every executor.
    pub lifecycle_fuel: u64,
    /// Processor time that a unit of fuel may take, in nanoseconds. Sets the deadline of the
    /// backstop.
    pub fuel_nanos: u64,
    /// Number of wall-clock deadlines that a call may pass while its thread gets too little
    /// processor time.
    pub deadline_extensions: u32,
    /// Linear memory in bytes, all memories together.
    pub memory_bytes: u64,
    /// Table elements, all tables together.
    pub table_elements: u64,
    /// Number of core instances in one component.
    pub instances: u32,
    /// Number of linear memories, and separately of tables, in one component.
    pub memories: u32,
    /// Size of one call's result, and of the text that one log line passes, in bytes.
    pub result_bytes: u64,
    /// Largest number of rows in one `observe`. More rows are passed in several calls, and so are
    /// more than the fuel of one call has a share for.
    pub observe_rows: u32,
    /// Size of a snapshot in bytes.
    pub snapshot_bytes: u64,
    /// Number of log lines kept until the host fetches them, which it does after each question.
    pub log_lines: u32,
    /// Number of bytes kept of one log line.
    pub log_line_bytes: u32,
    /// Number of reasons.
    pub reasons: u32,
    /// Size of a name, version or reason in bytes. A summary may have four times as many.
    pub text_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call_fuel: 20_000_000,
            row_fuel: 200_000,
            call_fuel_max: 100_000_000,
            lifecycle_fuel: 200_000_000,
            fuel_nanos: 5,
            deadline_extensions: 8,
            memory_bytes: 64 * MIB,
            table_elements: 1 << 18,
            instances: 128,
            memories: 32,
            result_bytes: 4 * MIB,
            observe_rows: 4096,
            snapshot_bytes: MIB,
            log_lines: 32,
            log_line_bytes: 1024,
            reasons: 256,
            text_bytes: 256,
        }
    }
}

/// The largest value of each limit that any setting may have.
const CEILING: Limits = Limits {
    call_fuel: 10_000_000_000,
    row_fuel: 1_000_000_000,
    call_fuel_max: 10_000_000_000,
    lifecycle_fuel: 100_000_000_000,
    fuel_nanos: 1000,
    deadline_extensions: 1000,
    memory_bytes: 4096 * MIB,
    table_elements: 1 << 24,
    instances: 4096,
    memories: 1024,
    result_bytes: 256 * MIB,
    observe_rows: 1 << 20,
    snapshot_bytes: 64 * MIB,
    log_lines: 1024,
    log_line_bytes: 1 << 16,
    // A reason is a `u16`.
    reasons: 1 << 16,
    text_bytes: 1 << 12,
};

impl Limits {
    /// Fuel of a question or `observe` with `rows` rows.
    pub(crate) fn fuel_of_rows(&self, rows: usize) -> u64 {
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        self.call_fuel
            .saturating_add(self.row_fuel.saturating_mul(rows))
            .min(self.call_fuel_max)
    }

    /// Number of rows in one `observe`: at most [`Self::observe_rows`], and as many as have
    /// [`Self::row_fuel`] each below [`Self::call_fuel_max`]. At least 1.
    #[must_use]
    pub fn rows_at_once(&self) -> usize {
        let fuel = self.call_fuel_max.saturating_sub(self.call_fuel);
        let fed = fuel / self.row_fuel.max(1);
        let rows = fed.min(u64::from(self.observe_rows)).max(1);
        usize::try_from(rows).unwrap_or(usize::MAX)
    }
}

named_limits! {
    Limits below CEILING;
    call_fuel "call-fuel",
    row_fuel "row-fuel",
    call_fuel_max "call-fuel-max",
    lifecycle_fuel "lifecycle-fuel",
    fuel_nanos "fuel-nanos",
    deadline_extensions "deadline-extensions",
    memory_bytes "memory-bytes",
    table_elements "table-elements",
    instances "instances",
    memories "memories",
    result_bytes "result-bytes",
    observe_rows "observe-rows",
    snapshot_bytes "snapshot-bytes",
    log_lines "log-lines",
    log_line_bytes "log-line-bytes",
    reasons "reasons",
    text_bytes "text-bytes",
}

#[cfg(test)]
mod tests {
    use pointsman_notation::{NamedLimits, SetLimitError, Time};

    use super::*;
    use crate::compiler::CompileLimits;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Limits::default().validated(), Ok(Limits::default()));
    }

    /// Compares the table of the book for authors under `heading` with the default limits.
    fn check_table<L: NamedLimits + Default + PartialEq + std::fmt::Debug>(heading: &str) {
        let book = include_str!("../../../policies/README.md");
        let heading = book.find(heading).unwrap();
        let rows = book[heading..].lines().skip(2);
        let rows = rows.take_while(|row| row.starts_with('|'));
        let mut named = Vec::new();
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let (name, default) = (cells[1].trim_matches('`'), cells[2].replace(',', ""));
            let seconds = L::SECONDS
                .contains(&name)
                .then(|| Time::read(&default).unwrap());
            let seconds = seconds.map(|time| time.whole_secs().unwrap());
            let (number, unit) = default.split_once(' ').unwrap_or((&default, ""));
            let unit = match unit {
                "" => 1,
                "million" => 1_000_000,
                "MiB" => MIB,
                other => panic!("{name} is in {other}"),
            };
            let mut limits = L::default();
            let value = seconds.unwrap_or_else(|| number.parse::<u64>().unwrap() * unit);
            limits.set(name, value, &L::CEILING).unwrap();
            assert_eq!(limits, L::default(), "{name} is not {default}");
            named.push(name);
        }
        assert_eq!(named, L::NAMES);
    }

    #[test]
    fn the_tables_in_the_book_for_authors_have_every_limit_with_its_default() {
        check_table::<Limits>("| limit | default |");
        check_table::<CompileLimits>("| limit of a file | default |");
    }

    #[test]
    fn as_many_rows_come_at_once_as_have_their_fuel() {
        let limits = |call_fuel_max, row_fuel, observe_rows| Limits {
            call_fuel: 1000,
            row_fuel,
            call_fuel_max,
            observe_rows,
            ..Limits::default()
        };
        assert_eq!(limits(2000, 10, 4096).rows_at_once(), 100);
        assert_eq!(limits(2000, 10, 50).rows_at_once(), 50);
        // A row that is too much for a call comes alone.
        assert_eq!(limits(2000, 1001, 4096).rows_at_once(), 1);
        assert_eq!(limits(10, 10, 4096).rows_at_once(), 1);
        assert_eq!(Limits::default().rows_at_once(), 400);
    }

    #[test]
    fn refuses_a_limit_of_zero_and_one_above_its_ceiling() {
        let zero = Limits {
            call_fuel: 0,
            ..Limits::default()
        };
        let above = Limits {
            memory_bytes: u64::MAX,
            ..Limits::default()
        };
        assert_eq!(zero.validated().unwrap_err().name, "call-fuel");
        assert_eq!(above.validated().unwrap_err().name, "memory-bytes");
    }

    #[test]
    fn a_limit_is_set_by_its_name_up_to_the_ceiling_given() {
        let ceiling = Limits::default();
        for name in Limits::NAMES {
            let mut limits = Limits::default();
            assert_eq!(limits.set(name, 1, &ceiling), Ok(()));
            let changed: Vec<&str> = (limits.rows().zip(ceiling.rows()))
                .filter(|(set, before)| set != before)
                .map(|((name, _), _)| name)
                .collect();
            assert_eq!(changed, [*name]);
            let error = limits.set(name, u64::MAX, &ceiling).unwrap_err();
            assert!(matches!(error, SetLimitError::Range(_)), "{error}");
        }
        let error = Limits::default().set("fuel", 1, &ceiling).unwrap_err();
        assert_eq!(error.to_string(), "no limit is called fuel");
    }
}
