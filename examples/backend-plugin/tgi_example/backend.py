"""Who this is, what devices there are and what they can do."""

from __future__ import annotations

import os

from tgi_core.contract import Backend, BackendInfo, Capabilities, Device, DeviceInfo, Kernels, Probe

DEVICE_VARIABLE = "TGI_EXAMPLE_DEVICES"
"""How many devices there are: a real backend asks its driver."""


class ExampleBackend(Backend):
    """The host's processor, disguised as a new device."""

    @property
    def info(self) -> BackendInfo:
        # Never taken by `--backend auto`: this is an example. A real one has a priority above 0.
        return BackendInfo(name="example", title="an example of a backend", priority=-1, simulated=True)

    def probe(self) -> Probe:
        count = os.environ.get(DEVICE_VARIABLE, "1")
        if not count.isdecimal() or count == "0":
            return Probe(reason=f"{DEVICE_VARIABLE} is {count!r}", fix=f"Set {DEVICE_VARIABLE}=1.")
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Probe(devices=tuple(DeviceInfo(index, "example device", memory_bytes) for index in range(int(count))))

    def capabilities(self) -> Capabilities:
        return Capabilities(dtypes=("float32", "bfloat16"), block_sizes=(16, 32))

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - all devices are the same processor
        from tgi_example.device import ExampleDevice

        return ExampleDevice()

    def kernels(self, device: Device) -> Kernels:  # noqa: ARG002 - they run wherever their tensors lie
        from tgi_example.kernels import ExampleKernels

        return ExampleKernels()
