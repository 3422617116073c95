"""HPU graphs."""

import gc
import inspect
import os

import torch
from fake_hpu.machine import MACHINE, HpuError
from fake_hpu.tape import Tape
from fake_hpu.tensor import HpuTensor


class HPUGraph:
    """One recorded graph."""

    def __init__(self):
        self._tape = None
        self._marked = []

    def capture_begin(self, dry_run=False):
        if not MACHINE.is_lazy:
            raise HpuError("graphs are recorded in lazy mode alone")
        MACHINE.forbid_recording("another recording")
        MACHINE.need_mark_step("a recording begins")
        self._tape = Tape(is_dry=dry_run)
        self._tape.begin()
        MACHINE.recording = self._tape

    def mark_user_inputs(self, static_tlist):
        if MACHINE.recording is not self._tape:
            raise HpuError("inputs are marked while the graph is recorded")
        self._marked = list(static_tlist)
        for tensor in static_tlist:
            self._tape.mark_input(tensor)

    def capture_end(self):
        MACHINE.recording = None
        self._tape.end()

    def mark_user_outputs(self, static_tlist):
        if MACHINE.recording is not None:
            raise HpuError("outputs are marked after the recording")
        self._tape.keep(static_tlist)

    def replay(self, asynchronous=False):
        self._replay([])

    def replayV3(self, tlistI, asynchronous=False):
        self._replay(tlistI)

    def reset(self):
        self._tape = None

    def _replay(self, tensors):
        if self._tape is None:
            raise HpuError("nothing was recorded")
        MACHINE.forbid_recording("a replay")
        MACHINE.need_mark_step("a graph is replayed")
        self._tape.replay(tensors)


class graph:
    """Records what runs inside."""

    def __init__(self, hpu_graph, stream=None, dry_run=False):
        self._graph = hpu_graph
        self._dry_run = dry_run

    def __enter__(self):
        MACHINE.mark_step()
        gc.collect()
        self._graph.capture_begin(self._dry_run)

    def __exit__(self, exc_type, exc_value, traceback):
        self._graph.capture_end()


def input_hash(obj):
    """Shapes and views of tensors, everything else by value."""
    if isinstance(obj, dict):
        return input_hash(tuple(obj.items()))
    if isinstance(obj, (list, tuple)) and not isinstance(obj, torch.Size):
        return hash(tuple(input_hash(one) for one in obj))
    if isinstance(obj, torch.Tensor):
        return hash(
            (obj.shape, obj.stride(), obj.storage_offset(), obj.is_view if isinstance(obj, HpuTensor) else None)
        )
    return hash(obj)


def _tensors(obj):
    if isinstance(obj, dict):
        obj = list(obj.values())
    if isinstance(obj, (list, tuple)):
        return [tensor for one in obj for tensor in _tensors(one)]
    return [obj] if isinstance(obj, torch.Tensor) else []


class _Cached:
    def __init__(self, graph, inputs, outputs):
        self.graph, self.inputs, self.outputs = graph, inputs, outputs


def wrap_in_hpu_graph(module, asynchronous=False, disable_tensor_cache=False, dry_run=False, max_graphs=None):
    """Replace ``module.forward`` by one that records a graph for every key, and replays it."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{type(module).__name__} is no torch.nn.Module")
    cache = {}
    forward = module.forward
    # What a signature does not name could not be bound when a graph is replayed.
    inspect.signature(forward)
    disable_tensor_cache = os.environ.get("PT_HPUGRAPH_DISABLE_TENSOR_CACHE", str(int(disable_tensor_cache))) == "1"

    def wrapped(*args, **kwargs):
        if kwargs.pop("bypass_hpu_graphs", False):
            return forward(*args, **kwargs)
        key = input_hash((args, kwargs))
        kwargs.pop("cache_tensors_list", None)
        tensors = _tensors((args, kwargs))
        cached = cache.get(key)
        if cached is not None:
            if disable_tensor_cache:
                cached.graph.replayV3(tensors, asynchronous)
            else:
                for mine, given in zip(cached.inputs, tensors, strict=True):
                    mine.copy_(given)
                MACHINE.mark_step()
                cached.graph.replay(asynchronous)
            return cached.outputs
        if max_graphs is not None and len(cache) >= max_graphs:
            return forward(*args, **kwargs)
        graph = HPUGraph()
        graph.capture_begin(dry_run=dry_run or disable_tensor_cache)
        try:
            if disable_tensor_cache:
                graph.mark_user_inputs(tensors)
            outputs = forward(*args, **kwargs)
        finally:
            graph.capture_end()
        if disable_tensor_cache:
            graph.mark_user_outputs(_tensors(outputs))
            graph.replayV3(tensors, asynchronous)
        elif dry_run:
            graph.replay(asynchronous)
        cache[key] = _Cached(graph, tensors, outputs)
        return outputs

    module.forward = wrapped
    module.clear_cache = cache.clear
    return module
