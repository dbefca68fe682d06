//! Devices and the figures of their data sheets.

use crate::error::{Error, Result};
use crate::spec::Dtype;

/// The figures of one device. Rates are per device and in one direction, in 1e9 bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Name of the device, as `analytic` takes it.
    pub name: &'static str,
    /// Type in which the model computes.
    pub dtype: Dtype,
    /// Rate of dense matrix products in that type, in 1e12 operations a second.
    pub peak_tflops: f64,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Rate of the device's memory.
    pub memory_gb_per_s: f64,
    /// Rate at which the device sends to the others of its node at once.
    pub link_gb_per_s: f64,
    /// Rate at which the device sends to other nodes: one network port of 200 Gbit/s a device, and of 400 where the
    /// maker's own nodes have these.
    pub network_gb_per_s: f64,
    /// Rate of copies to host memory and at the same time back, each way, in practice. Devices that share a switch have
    /// less.
    pub host_gb_per_s: f64,
    /// Host memory of a node of the maker's own systems, divided by the node's devices, less a fifth for processes and
    /// data.
    pub host_memory_bytes: u64,
    /// The measured device whose efficiencies this one is expected to have.
    pub like: MeasuredDevice,
}

/// A device whose efficiencies were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredDevice {
    /// The A800 and A100 of the shipped tables.
    A800,
    /// The H100.
    H100,
}

const GB: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

const fn gpu(
    name: &'static str,
    peak_tflops: f64,
    memory_bytes: u64,
    memory_gb_per_s: f64,
    link_gb_per_s: f64,
) -> Device {
    let (dtype, network_gb_per_s) = (Dtype::Bfloat16, 25.0);
    Device {
        name,
        dtype,
        peak_tflops,
        memory_bytes,
        memory_gb_per_s,
        link_gb_per_s,
        network_gb_per_s,
        host_gb_per_s: 55.0,
        host_memory_bytes: of_node(2_048 * GB),
        like: MeasuredDevice::A800,
    }
}

/// A device with the tensor cores of an H100 or later ones.
const fn hopper(device: Device) -> Device {
    Device { like: MeasuredDevice::H100, ..device }
}

/// A device with a network port of 400 Gbit/s in the maker's own nodes.
const fn on_fast_network(device: Device) -> Device {
    Device { network_gb_per_s: 50.0, ..device }
}

/// A device's part of the memory of a node of eight, of which a fifth is left to processes and data.
const fn of_node(bytes: u64) -> u64 {
    bytes / 8 / 5 * 4
}

/// A device on `PCIe` of generation 4.
const fn on_pcie4(device: Device, node_bytes: u64) -> Device {
    Device { host_gb_per_s: 25.0, host_memory_bytes: of_node(node_bytes), ..device }
}

/// The known devices. Sources: NVIDIA's data sheets "A100 Tensor Core GPU" (2021), "A800 Tensor Core GPU" (2022), "H100
/// Tensor Core GPU" (2023, SXM), "H800" (2023), "H20" (2023), "H200 Tensor Core GPU" (2024), "HGX B200" (2025, an eighth of the
/// board); AMD's "Instinct MI300X" (2023). Their figures with sparsity are halved, those of links in both directions
/// too. `cpu` is one core of 3 GHz with two 256-bit fused multiply-adds a cycle, a share of 8 GiB, and shared memory as
/// link.
///
/// `PCIe` has 31.5 GB/s each way with 16 lanes of generation 4 (A100, A800) and 63 of generation 5 (the others); copies reach
/// about 25 and 55. Nodes of eight are taken to have the memory of NVIDIA's own ("DGX A100", 2020: 1 TB with 40 GB devices and 2 TB
/// with 80 GB; "DGX H100", 2022: 2 TB). A device of a "DGX H100", "DGX H200" or "DGX B200" has a network port of 400 Gbit/s
/// to itself, one of a "DGX A100" of 200.
///
/// An H20's memory is 1.2 times as fast as an H100's, and its peak is a seventh. Kernels that cannot keep an H100's tensor cores
/// busy may keep an H20's busy, so it is taken to be like the A800, whose peak is the nearest of the measured ones.
pub const DEVICES: [Device; 10] = [
    on_pcie4(gpu("A100-40GB", 312.0, 40 * GIB, 1_555.0, 300.0), 1_024 * GB),
    on_pcie4(gpu("A100-80GB", 312.0, 80 * GIB, 2_039.0, 300.0), 2_048 * GB),
    on_pcie4(gpu("A800-80GB", 312.0, 80 * GIB, 2_039.0, 200.0), 2_048 * GB),
    on_fast_network(hopper(gpu("H100-80GB", 989.5, 80 * GIB, 3_350.0, 450.0))),
    hopper(gpu("H800-80GB", 989.5, 80 * GIB, 3_350.0, 200.0)),
    gpu("H20-96GB", 148.0, 96 * GB, 4_000.0, 450.0),
    on_fast_network(hopper(gpu("H200-141GB", 989.5, 141 * GB, 4_800.0, 450.0))),
    on_fast_network(hopper(gpu("B200-180GB", 2_250.0, 180 * GB, 8_000.0, 900.0))),
    gpu("MI300X-192GB", 1_307.4, 192 * GB, 5_300.0, 448.0),
    Device {
        name: "cpu",
        dtype: Dtype::Float32,
        peak_tflops: 0.096,
        memory_bytes: 8 * GIB,
        memory_gb_per_s: 10.0,
        link_gb_per_s: 2.0,
        network_gb_per_s: 1.0,
        host_gb_per_s: 5.0,
        host_memory_bytes: 8 * GIB,
        like: MeasuredDevice::A800,
    },
];

/// The device of that name; the memory in a name is optional if the rest of it is unique.
pub fn device(name: &str) -> Result<Device> {
    let wanted = name.to_ascii_lowercase();
    let is_named = |known: &&Device| known.name.to_ascii_lowercase() == wanted;
    let begins = |known: &&Device| known.name.to_ascii_lowercase().starts_with(&format!("{wanted}-"));
    let found = DEVICES.iter().find(is_named).or_else(|| {
        let mut fitting = DEVICES.iter().filter(begins);
        fitting.next().filter(|_| fitting.next().is_none())
    });
    let known = || DEVICES.map(|device| device.name).join(" ");
    found.copied().ok_or_else(|| Error::DeviceUnknown { name: name.into(), known: known() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_omit_the_memory_if_one_device_fits() {
        assert_eq!(device("h100").unwrap().name, "H100-80GB");
        assert_eq!(device("A100-40GB").unwrap().memory_bytes, 40 * GIB);
        assert_eq!(device("cpu").unwrap().dtype, Dtype::Float32);
        for ambiguous in ["A100", "V100", ""] {
            let error = device(ambiguous).unwrap_err();
            assert_eq!(error.code(), "profile_unknown");
            assert!(error.to_string().contains("A100-80GB"), "{error}");
        }
    }
}
