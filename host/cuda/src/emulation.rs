//! An emulation of a CUDA device, for tests where there is none: a library in place of the driver's,
//! whose kernels are those in `kernels`, compiled for the processor.
//!
//! [`install`] compiles it with `c++` and loads it, before anything else looks for a driver; whatever
//! looks for `libcuda.so`, `libcublas.so` or `libnccl.so.2` in this process afterwards finds it.

use std::ffi::{c_int, c_long, c_uint};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::{Library, Symbol};
use sha2::{Digest as _, Sha256};

/// The folders of the sources, beside this crate's.
const FOLDERS: [&str; 2] = ["emulation", "kernels"];
/// The libraries, each with its source.
const LIBRARIES: [(&str, &str); 3] = [
    ("libcuda.so", "emulation/stub.cpp"),
    ("libcublas.so", "emulation/stub_cublas.cpp"),
    ("libnccl.so.2", "emulation/stub_nccl.cpp"),
];

/// The order in which threads run between two barriers, and blocks one after the other. A result that depends on it is a
/// race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadOrder {
    /// From the first thread to the last.
    Forward,
    /// From the last thread to the first.
    Backward,
    /// Any, by a seed.
    Shuffled(u32),
}

impl ThreadOrder {
    /// The orders whose results a test compares with those of [`Self::Forward`].
    pub const OTHERS: [Self; 3] = [Self::Backward, Self::Shuffled(1), Self::Shuffled(2)];
}

/// Launches that the process has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launches {
    /// Of kernels, cuBLAS's and NCCL's among them, each alone: not those that are recorded.
    pub alone: u64,
    /// Of steps that were recorded.
    pub records: u64,
}

/// The devices that a test may lose one by one.
const DEVICES_LOST_MAX: u16 = 4;
/// The variable by which a process of its own has so many devices.
pub const DEVICES: &str = "POINTSMAN_EMULATED_DEVICES";
/// The variable by which tests run on a real device.
const ON_DEVICE: &str = "POINTSMAN_CUDA_TESTS";
/// The variable with which a process of [`sanitized`] is started.
const SANITIZED: &str = "POINTSMAN_EMULATION_SANITIZED";

/// The emulated device.
#[derive(Debug)]
pub struct Emulation {
    driver: Library,
    _blas: Library,
    nccl: Library,
    folder: PathBuf,
}

/// Has this process find a device to test on: the emulation, or where `POINTSMAN_CUDA_TESTS=device` is set, the
/// real one.
///
/// # Panics
/// As [`install`].
pub fn provide() {
    if !is_on_device() {
        install();
    }
}

/// Returns true where tests are to run on a real device.
#[must_use]
pub fn is_on_device() -> bool {
    std::env::var_os(ON_DEVICE).is_some_and(|value| value == "device")
}

/// Has this process find the emulation in place of a driver.
///
/// # Panics
/// If it cannot be compiled or loaded: tests need `c++`.
pub fn install() -> &'static Emulation {
    static EMULATION: OnceLock<Emulation> = OnceLock::new();
    EMULATION.get_or_init(|| {
        let folder = build();
        let [driver, blas, nccl] = LIBRARIES.map(|(name, _)| load(&folder.join(name)));
        Emulation {
            driver,
            _blas: blas,
            nccl,
            folder,
        }
    })
}

/// Returns true in a process that [`sanitized`] has started.
#[must_use]
pub fn is_sanitized() -> bool {
    std::env::var_os(SANITIZED).is_some()
}

/// This test program once more, to be run with some of its tests: where a kernel reads or writes outside
/// of the memory it was given, or of an array of its own, the process ends with an error.
///
/// # Panics
/// If `c++` has no AddressSanitizer.
#[must_use]
pub fn sanitized(tests: &[&str]) -> Command {
    let found = Command::new("c++")
        .arg("-print-file-name=libasan.so")
        .output();
    let library = found
        .expect("tests of CUDA need `c++` (Debian: g++)")
        .stdout;
    let library = PathBuf::from(String::from_utf8_lossy(&library).trim());
    assert!(
        library.is_absolute(),
        "tests of CUDA need the libasan.so of g++"
    );
    let mut command = Command::new(std::env::current_exe().expect("a program knows its file"));
    command.env("LD_PRELOAD", library).env(SANITIZED, "1");
    // Nothing is seen of what a real device does.
    command.env_remove(ON_DEVICE);
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command.arg("--exact").args(tests);
    command
}

/// Runs tests of this program once more, as [`sanitized`] does.
///
/// # Panics
/// If one fails there, or there is no such test.
pub fn pass_sanitized(tests: &[&str]) {
    let output = sanitized(tests).output();
    let output = output.expect("this program can be started");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = format!("{} passed", tests.len());
    assert!(said.contains(&passed), "{said}");
}

/// The emulation, for one test at a time.
#[derive(Debug)]
pub struct Alone {
    emulation: &'static Emulation,
    _turn: MutexGuard<'static, ()>,
}

/// Installs the emulation for a test that changes it: others that do wait. It begins with one device
/// of 1 GiB that is never lost.
///
/// # Panics
/// As [`install`].
pub fn alone() -> Alone {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let emulation = install();
    emulation.set_devices(1);
    emulation.set_memory(1 << 30);
    emulation.set_capability(9, 0);
    emulation.lose_after(None);
    (0..DEVICES_LOST_MAX).for_each(|device| emulation.lose_device_after(device, None));
    emulation.fail_sums_after(None);
    emulation.fail_copies_after(None);
    emulation.set_pinned_max(usize::MAX);
    emulation.set_order(ThreadOrder::Forward);
    Alone {
        emulation,
        _turn: turn,
    }
}

impl Deref for Alone {
    type Target = Emulation;

    fn deref(&self) -> &Emulation {
        self.emulation
    }
}

impl Emulation {
    /// The folder of the libraries, for a process of its own: `LD_LIBRARY_PATH`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets the number of devices. One at first.
    pub fn set_devices(&self, count: u16) {
        let set: Symbol<'_, unsafe extern "C" fn(c_int)> = self.symbol("pointsman_stub_devices");
        // SAFETY: takes a number and keeps it.
        unsafe { set(c_int::from(count)) };
    }

    /// Sets the compute capability of devices.
    pub fn set_capability(&self, major: u8, minor: u8) {
        let set: Symbol<'_, unsafe extern "C" fn(c_int, c_int)> =
            self.symbol("pointsman_stub_capability");
        // SAFETY: takes numbers and keeps them.
        unsafe { set(c_int::from(major), c_int::from(minor)) };
    }

    /// Sets the minor compute capability of one of the devices, until that of all is set.
    pub fn set_capability_minor_of(&self, device: u16, minor: u8) {
        let set: Symbol<'_, unsafe extern "C" fn(c_int, c_int)> =
            self.symbol("pointsman_stub_capability_minor_of");
        // SAFETY: takes numbers and keeps them.
        unsafe { set(c_int::from(device), c_int::from(minor)) };
    }

    /// Sets the bytes of memory of a device.
    pub fn set_memory(&self, bytes: usize) {
        let set: Symbol<'_, unsafe extern "C" fn(usize)> = self.symbol("pointsman_stub_memory");
        // SAFETY: takes a number and keeps it.
        unsafe { set(bytes) };
    }

    /// Bytes of the device's memory that are taken.
    #[must_use]
    pub fn allocated(&self) -> usize {
        let get: Symbol<'_, unsafe extern "C" fn() -> usize> =
            self.symbol("pointsman_stub_allocated");
        // SAFETY: returns a number.
        unsafe { get() }
    }

    /// Has the device fail after so many more launches, until its context is let go of; absent: never.
    pub fn lose_after(&self, launches: Option<u32>) {
        let set: Symbol<'_, unsafe extern "C" fn(c_long)> =
            self.symbol("pointsman_stub_lose_after");
        // SAFETY: takes a number and keeps it.
        unsafe { set(launches.map_or(-1, c_long::from)) };
    }

    /// Has one of the devices fail after so many more launches there; absent: never.
    pub fn lose_device_after(&self, device: u16, launches: Option<u32>) {
        let set: Symbol<'_, unsafe extern "C" fn(c_int, c_long)> =
            self.symbol("pointsman_stub_lose_device_after");
        // SAFETY: takes numbers and keeps them.
        unsafe { set(c_int::from(device), launches.map_or(-1, c_long::from)) };
    }

    /// Has a link between devices fail after so many more sums of any of them; absent: none does.
    pub fn fail_sums_after(&self, sums: Option<u32>) {
        let set: Symbol<'_, unsafe extern "C" fn(c_long)> =
            switch(&self.nccl, "pointsman_stub_nccl_fail_after");
        // SAFETY: takes a number and keeps it.
        unsafe { set(sums.map_or(-1, c_long::from)) };
    }

    /// Number of communicators that nobody has let go of.
    #[must_use]
    pub fn communicators(&self) -> i64 {
        let get: Symbol<'_, unsafe extern "C" fn() -> c_long> =
            switch(&self.nccl, "pointsman_stub_nccl_communicators");
        // SAFETY: returns a number.
        unsafe { get() }
    }

    /// Has copies between this machine and the device fail after so many more; absent: none does.
    pub fn fail_copies_after(&self, copies: Option<u32>) {
        let set: Symbol<'_, unsafe extern "C" fn(c_long)> =
            self.symbol("pointsman_stub_fail_copies_after");
        // SAFETY: takes a number and keeps it.
        unsafe { set(copies.map_or(-1, c_long::from)) };
    }

    /// Sets the bytes of this machine's memory that may be pinned, and begins anew to count how many are.
    pub fn set_pinned_max(&self, bytes: usize) {
        let set: Symbol<'_, unsafe extern "C" fn(usize)> = self.symbol("pointsman_stub_pin_max");
        // SAFETY: takes a number and keeps it.
        unsafe { set(bytes) };
    }

    /// The most bytes that were pinned at a time since [`Self::set_pinned_max`].
    #[must_use]
    pub fn pinned_peak(&self) -> usize {
        let get: Symbol<'_, unsafe extern "C" fn() -> usize> =
            self.symbol("pointsman_stub_pinned_peak");
        // SAFETY: returns a number.
        unsafe { get() }
    }

    /// Sets the order of threads.
    pub fn set_order(&self, order: ThreadOrder) {
        let set: Symbol<'_, unsafe extern "C" fn(c_int, c_uint)> =
            self.symbol("pointsman_stub_order");
        let (order, seed) = match order {
            ThreadOrder::Forward => (0, 0),
            ThreadOrder::Backward => (1, 0),
            ThreadOrder::Shuffled(seed) => (2, seed),
        };
        // SAFETY: takes numbers and keeps them.
        unsafe { set(order, seed) };
    }

    /// The launches so far.
    #[must_use]
    pub fn launches(&self) -> Launches {
        let count = |name: &str| {
            let get: Symbol<'_, unsafe extern "C" fn() -> u64> = self.symbol(name);
            // SAFETY: returns a number.
            unsafe { get() }
        };
        Launches {
            alone: count("pointsman_stub_launched_alone"),
            records: count("pointsman_stub_launched_records"),
        }
    }

    /// Runs a kernel that is a race, and returns its result.
    #[must_use]
    pub fn race(&self) -> u32 {
        let run: Symbol<'_, unsafe extern "C" fn() -> c_uint> = self.symbol("pointsman_stub_race");
        // SAFETY: takes nothing and returns a number.
        unsafe { run() }
    }

    /// Runs a kernel that writes behind its memory.
    ///
    /// # Panics
    /// If this process was not started by [`sanitized`].
    pub fn overrun(&self) {
        self.leave("pointsman_stub_overrun");
    }

    /// Runs a kernel that writes behind an array that a block's threads share.
    ///
    /// # Panics
    /// As [`Self::overrun`].
    pub fn overrun_shared(&self) {
        self.leave("pointsman_stub_overrun_shared");
    }

    /// Runs a kernel that leaves its memory.
    fn leave(&self, name: &str) {
        assert!(is_sanitized(), "nothing would see it");
        let run: Symbol<'_, unsafe extern "C" fn()> = self.symbol(name);
        // SAFETY: only under a sanitizer, which ends the process.
        unsafe { run() };
    }

    fn symbol<T>(&self, name: &str) -> Symbol<'_, T> {
        switch(&self.driver, name)
    }
}

fn switch<'a, T>(library: &'a Library, name: &str) -> Symbol<'a, T> {
    // SAFETY: each caller writes the type that the library's source has there.
    unsafe { library.get(name.as_bytes()) }.expect("the emulation has its switches")
}

fn load(path: &Path) -> Library {
    // SAFETY: the library is ours, and does nothing when it is loaded.
    unsafe { Library::new(path) }.expect("a library that was just compiled can be loaded")
}

/// Compiles the libraries beside the test program, unless they are there for these sources.
fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::env::current_exe().expect("a program knows its file");
    let beside = program.parent().expect("a file is in a folder");
    let (name, options): (_, &[&str]) = if is_sanitized() {
        let options = &[
            "-O1",
            "-fsanitize=address",
            // AddressSanitizer sees nothing between arrays that a block's threads share.
            "-fsanitize=bounds",
            "-fno-sanitize-recover=bounds",
        ];
        ("cuda-emulation-sanitized", options)
    } else if has_avx2() {
        // Products are not joined with sums, so that all processors find the same numbers.
        let options = &["-O3", "-mavx2", "-ffp-contract=off"];
        ("cuda-emulation-avx2", options)
    } else {
        ("cuda-emulation", &["-O3", "-ffp-contract=off"])
    };
    let folder = beside.join(format!("{name}-{}", digest(root)));
    if folder.exists() {
        return folder;
    }
    // Two that compile at once: the one that is ready later leaves its work.
    let draft = beside.join(format!("cuda-emulation-draft-{}", std::process::id()));
    fs::create_dir_all(&draft).expect("the target folder can be written");
    for (name, source) in LIBRARIES {
        let mut compile = Command::new("c++");
        compile
            .args(["-std=c++17", "-g", "-shared", "-fPIC"])
            .args(options);
        compile
            .arg("-o")
            .arg(draft.join(name))
            .arg(root.join(source));
        compile.arg(format!("-Wl,-soname,{name}"));
        // It would be loaded into the compiler, too.
        compile.env_remove("LD_PRELOAD");
        let done = compile
            .status()
            .expect("tests of CUDA need `c++` (Debian: g++)");
        assert!(done.success(), "{compile:?}");
    }
    if fs::rename(&draft, &folder).is_err() {
        fs::remove_dir_all(&draft).expect("the target folder can be written");
    }
    folder
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

/// The digest of all sources, in the order of their names.
fn digest(root: &Path) -> String {
    let mut files: Vec<PathBuf> = FOLDERS
        .iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).expect("sources are there"))
        .map(|entry| entry.expect("sources can be listed").path())
        .collect();
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(fs::read(file).expect("sources can be read"));
    }
    let digest = digest.finalize();
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
