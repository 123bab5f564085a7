//! The models and devices of this machine, checked without a server: everything that would be refused at its start but
//! the numbers of a model's weights, which take long to read.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use pointsman_cuda::CudaDevices;
use pointsman_driver::provider::ModelSource;
use pointsman_engine::backend::KvBlocks;
use pointsman_engine::cpu::Cores;
use pointsman_model::open::OpenModel;
use pointsman_notation::Size;
use pointsman_text::ModelText;

use crate::settings::{DeviceConfig, Hardware, LocalSettings};
use crate::{hub, provider};

/// The pool of devices on which nothing is computed.
const NO_BLOCKS: KvBlocks = KvBlocks {
    bytes: 0,
    total: 0,
    host: 0,
};

/// Checks models that are here, and the devices that are to compute them.
///
/// # Errors
/// The first reason for which a server would not start; it names the model or the device.
pub fn check(settings: &LocalSettings) -> Result<()> {
    check_kv(settings)?;
    let models = check_models(settings)?;
    let mut devices = settings.devices.iter();
    devices.try_for_each(|device| check_device(settings, device, &models))
}

/// Checks that the machine has the memory for the KV caches of its processors, which are taken as they
/// are used: what is not there would end the process under load.
///
/// # Errors
/// If it does not.
pub fn check_kv(settings: &LocalSettings) -> Result<()> {
    let devices = settings.devices.iter().filter(|device| {
        let has_executors = settings.executors_on(device).next().is_some();
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

/// Checks models; the error names the first that is refused.
fn check_each<'a>(
    mut models: impl Iterator<Item = (&'a String, &'a OpenModel)>,
    check: impl Fn(&OpenModel) -> Result<()>,
) -> Result<()> {
    models.try_for_each(|(name, model)| check(model).with_context(|| format!("model {name}")))
}

#[cfg(test)]
mod tests {
    use pointsman_driver::provider::ExecutorConfig;

    use crate::hub::HubSettings;
    use crate::settings::DEFAULT_DEVICE;

    use super::*;

    #[test]
    fn a_kv_cache_larger_than_the_machine_is_refused() {
        let settings = |kv_bytes: u64| LocalSettings {
            models: Vec::new(),
            hub: HubSettings::of_environment(|_none| None),
            executors: vec![ExecutorConfig::new("demo")],
            devices: vec![DeviceConfig {
                kv_bytes: Some(kv_bytes),
                ..DeviceConfig::with_processors(DEFAULT_DEVICE, 2)
            }],
        };
        check_kv(&settings(64 << 20)).unwrap();
        if available_bytes().is_some() {
            let error = check_kv(&settings(1 << 40)).unwrap_err().to_string();
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
