"""One Intel GPU, opened for this process."""

from __future__ import annotations

import torch

from tgi_core.shards.accelerator import AcceleratorDevice, Graph, Pool


class XpuDevice(AcceleratorDevice):
    """A GPU that torch drives through ``torch.xpu``.

    Args:
        local_index: which of the visible GPUs.
    """

    def __init__(self, local_index: int) -> None:
        super().__init__("xpu", local_index)

    def _begin_graph(self, pool: Pool | None) -> Graph:
        graph = torch.xpu.XPUGraph()
        graph.capture_begin(pool=pool)
        return graph
