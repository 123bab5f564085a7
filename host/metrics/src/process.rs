//! The operating system's facts about this process.

use std::fs;

/// Resident memory in bytes; absent: the system does not say.
#[must_use]
pub fn resident_bytes() -> Option<i64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<i64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_line_of_that_name() {
        let status = "Name:\tpointsman\nVmHWM:\t  999 kB\nVmRSS:\t   148 kB\nThreads:\t4\n";
        assert_eq!(parse(status), Some(148 * 1024));
        for status in ["", "VmRSS:\n", "VmRSS:\t12\n", "VmRSS:\tmuch kB\n"] {
            assert_eq!(parse(status), None, "{status:?}");
        }
    }
}
