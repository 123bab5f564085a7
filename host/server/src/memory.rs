//! The memory of the process, which goes back to the system once much of it has been freed, and the memory
//! that the machine has for KV caches.
//!
//! The allocator of glibc keeps what is freed in small pieces for those that allocate next: after a
//! hundred long requests that is most of the memory of the process.

use anyhow::{Result, ensure};
use pointsman_notation::Size;

use crate::config::{Config, Hardware};

/// Checks that the machine has the memory for the KV caches of its processors, which are taken as they
/// are used: what is not there would end the process under load.
///
/// # Errors
/// If it does not.
pub(crate) fn check_kv(config: &Config) -> Result<()> {
    let devices = config.devices.iter().filter(|device| {
        let has_executors = config.executors_on(device).next().is_some();
        has_executors && matches!(device.hardware, Hardware::Processors { .. })
    });
    let wanted: u64 = devices.filter_map(|device| device.kv_bytes).sum();
    if let Some(available) = available_bytes() {
        ensure!(
            wanted <= available,
            "kv-memory of the processors' devices, {}, cannot be had: {} of this machine's memory are \
             available",
            Size(wanted),
            Size(available)
        );
    }
    Ok(())
}

/// Bytes that the process may still take, of the machine's memory and within its control group; absent:
/// the system does not tell.
fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = kilobytes(&meminfo, "MemAvailable:")?.saturating_mul(1024);
    let in_group = |file: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?;
        text.trim().parse().ok()
    };
    let group = in_group("memory.max")
        .zip(in_group("memory.current"))
        .map(|(max, current)| max.saturating_sub(current));
    Some(group.map_or(available, |group| group.min(available)))
}

/// The number of kilobytes behind `name` in the text of `/proc/meminfo`.
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let value = lines.find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

/// Gives the memory that nobody uses back to the system. Slow where there is much of it; nothing
/// happens where the allocator is another than glibc's.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(
    unsafe_code,
    reason = "no crate has a safe way to the allocator of glibc"
)]
pub(crate) fn give_back() {
    // SAFETY: the function has no conditions: any thread may call it at any time, and it takes no
    // memory that is in use.
    let given = unsafe { libc::malloc_trim(0) };
    tracing::debug!(given, "freed memory went back to the system");
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kv_cache_larger_than_the_machine_is_refused() {
        let config = |size: &str| Config::of_text(&format!("[cpu]\nkv-memory = '{size}'")).unwrap();
        check_kv(&config("64MiB")).unwrap();
        if available_bytes().is_some() {
            let error = check_kv(&config("1TiB")).unwrap_err().to_string();
            let said = "kv-memory of the processors' devices, 1TiB, cannot be had";
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn memory_is_read_as_the_system_writes_it() {
        let meminfo = "MemTotal:       24 kB\nMemAvailable:   16384 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), Some(16_384));
        assert_eq!(kilobytes(meminfo, "MemFree:"), None);
    }
}
