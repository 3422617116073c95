"""Operations that are called by themselves, outside of compiled work, as one program each.

One after the other torch's small operations would each be compiled, and what they write through views would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import jax
import torch
import torch.utils._pytree as pytree

from tgi_core.contract import Kernels
from tgi_tpu.lowering import has_array, lowered, to_array, to_tensor

KernelsT = TypeVar("KernelsT", bound=Kernels)

_PREPARE = {"pack_linear", "pack_experts", "prepare_attention"}
"""Methods that compute nothing, or before anything is compiled."""


def one_program_each(kernels: type[KernelsT]) -> type[KernelsT]:
    """Kernels that have an ``executor``, with each operation as described above."""
    for name in Kernels.__abstractmethods__ - _PREPARE:
        setattr(kernels, name, _program(getattr(kernels, name)))
    return kernels


def _program(operation: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(operation)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        places = [index for index, leaf in enumerate(leaves) if has_array(leaf)]
        is_part_of_a_step = torch._C._functorch.peek_interpreter_stack() is not None
        if is_part_of_a_step or not places:
            return operation(self, *args, **kwargs)
        returned: list[Any] = []

        def work(*tensors: Any) -> tuple[Any, ...]:
            given = list(leaves)
            for index, tensor in zip(places, tensors, strict=True):
                given[index] = tensor
            inner_args, inner_kwargs = pytree.tree_unflatten(given, structure)
            returned[:] = pytree.tree_flatten(operation(self, *inner_args, **inner_kwargs))
            return tensors, tuple(leaf for leaf in returned[0] if isinstance(leaf, torch.Tensor))

        # What was written in place comes back beside what is returned.
        written, results = jax.jit(lowered(work, self.executor.own))(*(to_array(leaves[index]) for index in places))
        for index, array in zip(places, written, strict=True):
            leaves[index]._elem = array
        arrays = iter(results)
        outputs = [to_tensor(next(arrays)) if isinstance(leaf, torch.Tensor) else leaf for leaf in returned[0]]
        return pytree.tree_unflatten(outputs, returned[1])

    return call
