//! The memory of the process, which goes back to the system once much of it has been freed.
//!
//! The allocator of glibc keeps what is freed in small pieces for those that allocate next: after a
//! hundred long requests that is most of the memory of the process.

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
