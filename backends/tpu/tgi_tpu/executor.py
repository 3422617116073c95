"""What runs programs on a TPU: jax, its mesh of devices and its compiler. Nothing else here knows jax's runtime."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import torch
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from torch import Tensor

from tgi_core.contract import CompiledStep, DeviceState
from tgi_tpu.arrays import array_dtype
from tgi_tpu.lowering import Operations, enter_device, lowered, to_array, to_tensor

AXIS = "model"
"""The mesh's only axis, along which weights and heads are divided."""

_COMPILATION = "/jax/core/compile/backend_compile_duration"


class Program:
    """Work as a function of arrays, before it is compiled for devices.

    Args:
        work: what to compile.
        own: operations of ours that it may contain.
        state, inputs: tensors of the shapes that it will get.

    Attributes:
        constants: the arrays that the work reads beside state and inputs, such as weights. They go into every call, so
            that programs share them; none becomes part of a program.
        changes: which of the state's arrays it writes. Only these are taken over and come back.
    """

    def __init__(self, work: CompiledStep, own: Operations, state: DeviceState, inputs: tuple[Tensor, ...]) -> None:
        arguments = jax.tree.map(to_array, (state, inputs))
        traced = jax.make_jaxpr(lowered(work, own))(*arguments)
        self._jaxpr = traced.jaxpr
        self._arguments = [jax.tree.leaves(part) for part in arguments]
        self.constants: list[Any] = traced.consts
        before = self._jaxpr.invars[: len(self._arguments[0])]
        after = self._jaxpr.outvars[: len(before)]
        self.changes = [old is not new for old, new in zip(before, after, strict=True)]

    def split(self, state: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The state's arrays that are written, and those that are not."""
        pairs = list(zip(state, self.changes, strict=True))
        return [array for array, changes in pairs if changes], [array for array, changes in pairs if not changes]

    def joined(self, written: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """The inverse of ``split``."""
        new, old = iter(written), iter(others)
        return [next(new) if changes else next(old) for changes in self.changes]

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        """For the devices of ``mesh``, dividing what is divided here: (written, others, inputs, constants) to (written,
        outputs). The memory of what is written is taken over."""

        def place(array: Any) -> jax.ShapeDtypeStruct:
            sharding = getattr(array, "sharding", None)
            spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

        def run(
            written: list[Any], others: list[Any], inputs: list[Any], constants: list[Any]
        ) -> tuple[list[Any], list[Any]]:
            results = jaxpr_as_fun(ClosedJaxpr(self._jaxpr, constants))(*self.joined(written, others), *inputs)
            return self.split(results[: len(self.changes)])[0], results[len(self.changes) :]

        state, inputs = self._arguments
        arguments = jax.tree.map(place, (*self.split(state), inputs, self.constants))
        shardings = [struct.sharding for struct in arguments[0]], NamedSharding(mesh, PartitionSpec())
        with jax.set_mesh(mesh):
            return jax.jit(run, donate_argnums=0, out_shardings=shardings).lower(*arguments)


class JaxExecutor:
    """The devices that compute one model together.

    Args:
        devices: of one host.

    Attributes:
        mesh: of the devices.
        own: operations of ours that work may contain; added to by who defines some.
        num_compiled: programs that jax has compiled, whoever asked for them.
        temporary_bytes: the most that one of the programs takes of a device beside its arguments; the device starts it
            anew.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self.mesh = Mesh(numpy.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
        # What torchax makes lies on all of them, unless it is divided.
        jax.set_mesh(self.mesh)
        self.own: Operations = {}
        enter_device()
        self.num_compiled = 0
        self.temporary_bytes = 0
        self._latest: list[jax.Array] = []
        count = weakref.WeakMethod(self._count)

        def listener(event: str, duration_s: float, **_: object) -> None:  # noqa: ARG001 - jax passes it
            counter = count()
            if counter is not None and event == _COMPILATION:
                counter()

        jax.monitoring.register_event_duration_secs_listener(listener)
        weakref.finalize(self, jax.monitoring.unregister_event_duration_listener, listener)

    @property
    def devices(self) -> list[jax.Device]:
        """Of the mesh."""
        return list(self.mesh.devices.flat)

    def _count(self) -> None:
        self.num_compiled += 1

    # -- tensors ------------------------------------------------------------------------------------------------------

    def sharding(self, rank: int, axis: int | None) -> NamedSharding:
        """How an array of ``rank`` axes lies: divided along ``axis``, or whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec(*(AXIS if index == axis else None for index in range(rank))))

    def divide(self, tensor: Tensor, axis: int) -> Tensor:
        """The tensor with ``axis`` divided among the devices; whole where its size does not go into their number."""
        if len(self.devices) == 1 or tensor.shape[axis] % len(self.devices):
            return tensor
        return to_tensor(jax.device_put(to_array(tensor), self.sharding(tensor.dim(), axis)))

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, axis: int | None) -> Tensor:
        """Zeros, made where they lie; see ``divide``."""
        if axis is not None and shape[axis] % len(self.devices):
            axis = None
        return to_tensor(jnp.zeros(shape, array_dtype(dtype), device=self.sharding(len(shape), axis)))

    # -- programs -----------------------------------------------------------------------------------------------------

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        """See ``Device.compile``."""
        program = Program(work, self.own, state, inputs)
        constants = [
            array if isinstance(array, jax.Array) else jax.device_put(array, self.sharding(array.ndim, None))
            for array in program.constants
        ]
        with device_faults():
            run = program.lower(self.mesh).compile()
        memory = run.memory_analysis()
        self.temporary_bytes = max(self.temporary_bytes, memory.temp_size_in_bytes + memory.output_size_in_bytes)

        def call(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
            written, others = program.split(jax.tree.leaves(jax.tree.map(to_array, state)))
            with device_faults():
                written, outputs = run(written, others, [to_array(tensor) for tensor in inputs], constants)
            self._latest = written[:1]
            arrays = iter(program.joined(written, others))
            return jax.tree.map(lambda _: to_tensor(next(arrays)), state), tuple(map(to_tensor, outputs))

        return call

    def wait(self) -> None:
        """Return when every program has run."""
        with device_faults():
            jax.block_until_ready(self._latest)


@contextmanager
def device_faults() -> Iterator[None]:
    """Makes torch's errors of jax's.

    Raises:
        OutOfMemoryError: there is no memory left on a device.
        AcceleratorError: anything else that the runtime says.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        kind = torch.OutOfMemoryError if "RESOURCE_EXHAUSTED" in str(error) else torch.AcceleratorError
        raise kind(str(error)) from error
