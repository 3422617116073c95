"""Block tables on the host, for shards whose steps bring the columns they need with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract import AppendedBlocks


class HostBlockTables:
    """The blocks of every slot in every group, as plans have told them.

    Args:
        scratch_blocks: for each group the block that padding points to.
        max_slots: how many slots there are; the table has one more, whose columns are all scratch.
        columns: blocks that a slot may have.
    """

    def __init__(self, scratch_blocks: Sequence[int], max_slots: int, columns: int) -> None:
        self._tables = [torch.full((max_slots + 1, columns), block, dtype=torch.int32) for block in scratch_blocks]

    def append(self, appended: Sequence[AppendedBlocks]) -> None:
        """Blocks that slots were given."""
        for entry in appended:
            end = entry.start + len(entry.block_ids)
            self._tables[entry.group][entry.slot, entry.start : end] = torch.tensor(entry.block_ids, dtype=torch.int32)

    def rows(self, slots: Sequence[int], columns: int) -> list[Tensor]:
        """For each group the first ``columns`` columns of some slots' tables: int32 [B, M], on the host.

        What lies behind a slot's length was another's and is left to attention to ignore.
        """
        index_B = torch.tensor(slots, dtype=torch.int64)
        return [table_SM[:, :columns].index_select(0, index_B) for table_SM in self._tables]
