//! The models and devices of this machine, checked without a server: everything that would be refused at its start but
//! the numbers of a model's weights, which take long to read, and weights and the `swap-memory` of CUDA devices for which
//! there is no memory: a server that runs may have it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pointsman_cuda::CudaDevices;
use pointsman_driver::provider::{ExecutorConfig, ModelSource};
use pointsman_engine::backend::KvBlocks;
use pointsman_engine::cpu::Cores;
use pointsman_model::open::OpenModel;
use pointsman_notation::Size;
use pointsman_text::ModelText;

use crate::longest::LongestSequence;
use crate::settings::{DeviceConfig, Hardware, LocalSettings};
use crate::{devices, hub, provider};

/// The folder of all control groups, which is that of the process's own in a container.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// The pool of devices on which nothing is computed.
const NO_BLOCKS: KvBlocks = KvBlocks {
    bytes: 0,
    total: 0,
    host: 0,
};

/// Checks models that are here, and the devices that are to compute them. Returns advice: a sentence for each model for whose
/// context the `kv-memory` that its device is given has too few KV blocks.
///
/// # Errors
/// The first reason for which a server would not start; it names the model or the device.
pub fn check(settings: &LocalSettings) -> Result<BTreeSet<String>> {
    check_kv(&without_pinned(settings))?;
    let models = check_models(settings)?;
    let mut advice = BTreeSet::new();
    for device in &settings.devices {
        check_device(settings, device, &models)?;
        advice.append(&mut check_blocks(settings, device, &models)?);
    }
    Ok(advice)
}

/// The settings without the `swap-memory` of CUDA devices, which is pinned at the start: a server that runs has it.
fn without_pinned(settings: &LocalSettings) -> LocalSettings {
    let mut settings = settings.clone();
    let devices = settings.devices.iter_mut();
    for device in devices.filter(|device| !device.is_processors()) {
        device.swap_bytes = 0;
    }
    settings
}

/// Checks that the machine has the memory for the KV caches of its processors and for swaps, which is taken as it is
/// used: what is not there would end the process under load.
///
/// # Errors
/// If it does not.
pub fn check_kv(settings: &LocalSettings) -> Result<()> {
    check_memory(settings, 0)
}

/// Checks that the machine has the memory for so many bytes of weights, too.
///
/// # Errors
/// If it does not; the error names the sizes.
pub(crate) fn check_memory(settings: &LocalSettings, weights: u64) -> Result<()> {
    let used = settings.devices.iter();
    let used = used.filter(|device| settings.executors_on(device).next().is_some());
    let used: Vec<&DeviceConfig> = used.collect();
    let of_processors = used.iter().filter(|device| device.is_processors());
    let kv = of_processors.map(|device| device.kv_bytes.unwrap_or(devices::KV_BYTES_MIN));
    let kv: u64 = kv.sum();
    let swaps: u64 = used.iter().map(|device| device.swap_bytes).sum();
    let parts = [
        ("kv-memory of the processors' devices", kv),
        ("swap-memory", swaps),
        (
            "weights of the processors' models",
            weights.next_multiple_of(1 << 20),
        ),
    ];
    let wanted: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    if let Some(available) = available_bytes() {
        let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
        let parts = parts.map(|(what, bytes)| format!("{what}, {}", Size(*bytes)));
        ensure!(
            wanted <= available,
            "{}, cannot be had: {} of this machine's memory are available",
            parts.collect::<Vec<_>>().join(", and "),
            Size(available)
        );
    }
    Ok(())
}

/// Bytes of memory that are available to each device of processors whose KV cache is not configured: what is configured for
/// others, and memory for swaps, is promised away.
pub(crate) fn unpromised_bytes(settings: &LocalSettings) -> u64 {
    let of_processors = settings.devices.iter().filter(|it| it.is_processors());
    let (given, unasked): (Vec<_>, Vec<_>) =
        of_processors.partition(|device| device.kv_bytes.is_some());
    let given: u64 = given.iter().filter_map(|device| device.kv_bytes).sum();
    let swaps: u64 = settings.devices.iter().map(|it| it.swap_bytes).sum();
    let left = available_bytes().unwrap_or(0);
    left.saturating_sub(given + swaps) / (unasked.len().max(1) as u64)
}

/// Bytes that the process may still take, of the machine's memory and within its control groups; absent:
/// the system does not tell.
fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = kilobytes(&meminfo, "MemAvailable:")?.saturating_mul(1024);
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = control_groups(&own).into_iter().filter_map(|group| {
        let file = |name: &str| std::fs::read_to_string(group.join(name)).ok();
        let [max, current, stat] = ["memory.max", "memory.current", "memory.stat"].map(file);
        left_in_group(&max?, &current?, &stat.unwrap_or_default())
    });
    Some(left.fold(available, u64::min))
}

/// The folders of the control group that the process is in, by the text of its file in `/proc`, and of those that this one is in.
fn control_groups(own: &str) -> Vec<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let folder = Path::new(CONTROL_GROUPS).join(path.unwrap_or_default());
    let groups = folder.ancestors();
    let groups = groups.take_while(|folder| folder.starts_with(CONTROL_GROUPS));
    groups.map(Path::to_owned).collect()
}

/// Bytes that a control group may still take, by the texts of its files: caches of files, which count as taken, are given
/// back for that. Absent: it has no bound.
fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current): (u64, u64) = (max.trim().parse().ok()?, current.trim().parse().ok()?);
    let given_back = stat.lines().filter_map(|line| match line.split_once(' ')? {
        ("inactive_file" | "active_file" | "slab_reclaimable", bytes) => bytes.parse::<u64>().ok(),
        _ => None,
    });
    let left = max.saturating_sub(current);
    Some(left.saturating_add(given_back.sum()).min(max))
}

/// The number of kilobytes behind `name` in the text of `/proc/meminfo`.
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let value = lines.find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

/// Opens the models that are on this machine. Returns them by their names.
fn check_models(settings: &LocalSettings) -> Result<BTreeMap<String, OpenModel>> {
    let mut models = BTreeMap::new();
    for model in &settings.models {
        let mut model = model.clone();
        match &model.source {
            ModelSource::Embedded | ModelSource::Path(_) | ModelSource::Dummy { .. } => {}
            ModelSource::Hub(name) => match hub::cached(name, &settings.hub) {
                Some(path) => model.source = ModelSource::Path(path),
                // A start would fetch it.
                None => continue,
            },
        }
        let files = provider::files(&model)?;
        let of = || format!("model {}", model.name);
        let text = ModelText::load(&files).with_context(of)?;
        let open = OpenModel::open(&files).with_context(of)?;
        provider::check_tokens(&text, open.config()).with_context(of)?;
        models.insert(model.name.clone(), open);
    }
    Ok(models)
}

/// Refuses a device that is not there, or that does not compute the models of its executors.
fn check_device(
    settings: &LocalSettings,
    device: &DeviceConfig,
    models: &BTreeMap<String, OpenModel>,
) -> Result<()> {
    let named = settings.executors_on(device).flat_map(|it| &it.models);
    let here = named.filter_map(|name| models.get_key_value(name));
    let about = || format!("device {}", device.name);
    match &device.hardware {
        Hardware::Processors { cores, .. } => {
            let there = cores.as_ref().map_or(Ok(()), Cores::check);
            there.with_context(about)?;
            check_each(here, |model| Ok(model.for_processors()?))
        }
        Hardware::Cuda { ordinals } => {
            let devices = CudaDevices::new(ordinals, NO_BLOCKS).with_context(about)?;
            check_each(here, |model| Ok(devices.check(model)?))
        }
    }
}

/// Refuses memory of a device that has no room for a KV block of its models. Returns the advice of [`check`].
fn check_blocks(
    settings: &LocalSettings,
    device: &DeviceConfig,
    models: &BTreeMap<String, OpenModel>,
) -> Result<BTreeSet<String>> {
    let executors: Vec<&ExecutorConfig> = settings.executors_on(device).collect();
    let coming = models
        .iter()
        .filter(|(name, _)| !provider::slots(&executors, name).is_empty());
    let Some(blocks) = devices::configured_blocks(device, coming.map(|(_, model)| model))? else {
        return Ok(BTreeSet::new());
    };
    let mut advice = BTreeSet::new();
    for executor in executors {
        let named = executor.models.iter();
        let here: Vec<(&String, &OpenModel)> = named
            .filter_map(|name| models.get_key_value(name))
            .collect();
        let share: Vec<&OpenModel> = here.iter().map(|(_, model)| *model).collect();
        let shape = devices::shape(&device.hardware, blocks, &share);
        let longest = here.iter().map(|(name, model)| LongestSequence {
            model: name,
            context_tokens: model.config().context_tokens,
            device: &device.name,
            shape,
            block_bytes: blocks.bytes,
        });
        advice.extend(longest.filter_map(|it| it.shortage()));
    }
    Ok(advice)
}

/// Checks models; the error names the first that is refused.
fn check_each<'a>(
    mut models: impl Iterator<Item = (&'a String, &'a OpenModel)>,
    check: impl Fn(&OpenModel) -> Result<()>,
) -> Result<()> {
    models.try_for_each(|(name, model)| check(model).with_context(|| format!("model {name}")))
}

#[cfg(test)]
mod tests {
    use crate::hub::HubSettings;
    use crate::settings::DEFAULT_DEVICE;

    use super::*;

    fn settings(kv_bytes: u64, swap_bytes: u64) -> LocalSettings {
        LocalSettings {
            models: Vec::new(),
            hub: HubSettings::of_environment(|_none| None),
            executors: vec![ExecutorConfig::new("demo")],
            devices: vec![DeviceConfig {
                kv_bytes: Some(kv_bytes),
                swap_bytes,
                ..DeviceConfig::with_processors(DEFAULT_DEVICE, 2)
            }],
        }
    }

    #[test]
    fn memory_that_the_machine_does_not_have_is_refused_with_its_parts() {
        const LITTLE: u64 = 1 << 20;
        const MUCH: u64 = 1 << 40;
        check_memory(&settings(64 << 20, LITTLE), LITTLE).unwrap();
        if available_bytes().is_none() {
            return;
        }
        let kv = "kv-memory of the processors' devices";
        for (kv_bytes, swap_bytes, weights, said) in [
            (MUCH, 0, 0, format!("{kv}, 1TiB, cannot be had")),
            (
                LITTLE,
                MUCH,
                0,
                format!("{kv}, 1MiB, and swap-memory, 1TiB, cannot be had"),
            ),
            (
                LITTLE,
                0,
                MUCH - 1,
                format!("{kv}, 1MiB, and weights of the processors' models, 1TiB, cannot be had"),
            ),
        ] {
            let error = check_memory(&settings(kv_bytes, swap_bytes), weights).unwrap_err();
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }

    #[test]
    fn a_check_asks_for_no_memory_that_a_server_that_runs_has_pinned() {
        const MUCH: u64 = 1 << 40;
        let mut settings = settings(1 << 20, 0);
        settings.executors.push(ExecutorConfig {
            device: Some("gpu0".to_owned()),
            ..ExecutorConfig::new("demo")
        });
        settings.devices.push(DeviceConfig {
            swap_bytes: MUCH,
            ..DeviceConfig::with_cuda("gpu0", &[15])
        });
        // No machine has that device, for which a check looks after memory.
        let error = check(&settings).unwrap_err();
        assert_eq!(error.to_string(), "device gpu0");
        if available_bytes().is_none() {
            return;
        }
        // A start asks for it, and a check for what processors take only as it is used.
        let of_start = check_kv(&settings).unwrap_err();
        settings.devices[0].swap_bytes = MUCH;
        let of_processors = check(&settings).unwrap_err();
        for error in [of_start, of_processors].map(|error| error.to_string()) {
            assert!(
                error.contains("swap-memory, 1TiB, cannot be had"),
                "{error}"
            );
        }
    }

    #[test]
    fn caches_of_files_count_as_memory_that_a_control_group_has_left() {
        let stat =
            "anon 500\nfile 400\ninactive_file 300\nactive_file 50\nslab_reclaimable 7\nslab 90\n";
        assert_eq!(left_in_group("1000\n", "950\n", stat), Some(407));
        assert_eq!(left_in_group("1000\n", "950\n", ""), Some(50));
        assert_eq!(left_in_group("1000\n", "100\n", stat), Some(1000));
        assert_eq!(left_in_group("max\n", "950\n", stat), None);
    }

    #[test]
    fn a_service_is_bound_by_its_own_control_group_and_those_around_it() {
        let root = PathBuf::from(CONTROL_GROUPS);
        let slice = root.join("system.slice");
        let service = slice.join("pointsman.service");
        let own = "1:name=systemd:/\n0::/system.slice/pointsman.service\n";
        assert_eq!(control_groups(own), [service, slice, root.clone()]);
        for own in ["0::/\n", ""] {
            assert_eq!(control_groups(own), std::slice::from_ref(&root));
        }
    }

    #[test]
    fn memory_that_is_promised_is_for_no_kv_cache_that_nobody_asked_for() {
        let Some(available) = available_bytes() else {
            return;
        };
        let mut settings = settings(available, 0);
        assert_eq!(unpromised_bytes(&settings), 0);
        settings.devices[0].kv_bytes = None;
        settings.devices.push(settings.devices[0].clone());
        settings.devices[1].swap_bytes = available / 2;
        // What is available changes while this runs.
        let each = unpromised_bytes(&settings);
        assert!((available / 8..available * 3 / 8).contains(&each), "{each}");
        settings.devices[1].swap_bytes = available * 2;
        assert_eq!(unpromised_bytes(&settings), 0);
    }

    #[test]
    fn memory_is_read_as_the_system_writes_it() {
        let meminfo = "MemTotal:       24 kB\nMemAvailable:   16384 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), Some(16_384));
        assert_eq!(kilobytes(meminfo, "MemFree:"), None);
    }
}
