//! Devices: processors, with cores of their own or without, and CUDA devices.

use pointsman_local::{DeviceConfig, Hardware};

use super::load;
use super::refused::refused;

#[test]
fn a_device_on_cores_of_its_own_has_a_thread_for_each_unless_it_is_told() {
    for (more, threads) in [("", 5), ("\nthreads = 3", 3)] {
        let config = load(&format!("[cpu]\ncores = '0-3,8'{more}")).unwrap();
        let cores = Some("0-3,8".parse().unwrap());
        let hardware = Hardware::Processors { threads, cores };
        assert_eq!(config.local.devices[0].hardware, hardware, "{more}");
    }
}

#[test]
fn a_cuda_device_takes_what_memory_there_is_unless_it_is_told() {
    let config = load(
        "[[devices]]\nname = 'gpu0'\ncuda = 0\n\
         [[devices]]\nname = 'gpu1'\ncuda = 1\nkv-memory = '8GiB'\ntokens-per-step = 512",
    );
    let devices = config.unwrap().local.devices;
    assert_eq!(devices[1], DeviceConfig::with_cuda("gpu0", &[0]));
    let told = DeviceConfig {
        kv_bytes: Some(8 << 30),
        tokens_per_step: 512,
        ..DeviceConfig::with_cuda("gpu1", &[1])
    };
    assert_eq!(devices[2], told);
}

#[test]
fn a_list_of_cuda_devices_is_one_device_that_computes_by_all_of_them() {
    let config = load(
        "[[devices]]\nname = 'both'\ncuda = [2, 0]\n\
         [[devices]]\nname = 'one'\ncuda = [1]",
    );
    let devices = config.unwrap().local.devices;
    assert_eq!(devices[1], DeviceConfig::with_cuda("both", &[2, 0]));
    assert_eq!(devices[2], DeviceConfig::with_cuda("one", &[1]));
}

#[test]
fn devices_that_stand_for_two_things_or_none_are_refused() {
    refused(&[
        (
            "[[devices]]\nname = 'cpu0'",
            "pointsman.toml:2:8: devices[0].name: `cpu0` is there already",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = 1\n[[devices]]\nname = 'b'\ncuda = 1",
            "pointsman.toml:6:8: devices[1].cuda: `1` is there already",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = [0, 1, 0]",
            "pointsman.toml:3:15: devices[0].cuda: `0` is there already",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = 1\n[[devices]]\nname = 'b'\ncuda = [0, 1]",
            "pointsman.toml:6:12: devices[1].cuda: `1` is there already",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = [0, 1]\n[[devices]]\nname = 'b'\ncuda = 0",
            "pointsman.toml:6:8: devices[1].cuda: `0` is there already",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = []",
            "pointsman.toml:3:8: devices[0].cuda: the list is empty; name the CUDA devices that compute together",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = [0, 65]",
            "pointsman.toml:3:12: devices[0].cuda must be from 0 to 64, not 65",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = [0, '1']",
            "pointsman.toml:3:12: devices[0].cuda[1]: invalid type: string \"1\", expected a whole number",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = '0'",
            "pointsman.toml:3:8: devices[0].cuda: invalid type: string \"0\", expected the number of a CUDA \
             device, or a list of such numbers",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = 0\nthreads = 2",
            "pointsman.toml:4:11: devices[0].threads is for processors, and this device is a CUDA \
             device; leave it out",
        ),
        (
            "[[devices]]\nname = 'a'\ncuda = 0\ncores = '0'",
            "pointsman.toml:4:9: devices[0].cores is for processors, and this device is a CUDA device; \
             leave it out",
        ),
        (
            "cpu.cores = '2,4-7'\n[[devices]]\nname = 'a'\ncores = '0-5'",
            "pointsman.toml:4:9: devices[0].cores: 2,4-5 is of cpu0; a core is one device's",
        ),
        (
            "cpu.cores = '3-1'",
            "pointsman.toml:1:13: cpu.cores: expected numbers of cores below 1024, such as \"0-3,8\", not \
             \"3-1\"",
        ),
    ]);
}
