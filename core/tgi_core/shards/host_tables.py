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
        self._scratch_blocks = scratch_blocks
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

    def column(self, slots: Sequence[int], columns: Sequence[int]) -> list[Tensor]:
        """For each group one column of each slot's table: int32 [B, 1], on the host."""
        index_B = torch.tensor(slots, dtype=torch.int64)
        columns_B = torch.tensor(columns, dtype=torch.int64)
        return [table_SM[index_B, columns_B][:, None] for table_SM in self._tables]

    def listed(self, group: int, slots: Sequence[int], seen: Sequence[range], length: int, owner: int) -> Tensor:
        """Some columns of some slots' tables as one list: int64 [3, F], on the host.

        Its rows are blocks, indexes into ``slots``, and columns.

        Args:
            group: whose blocks.
            slots: whose tables.
            seen: the columns of each.
            length: F; what the columns leave of it holds the scratch block, ``owner`` and 0.
            owner: of what pads the list.
        """
        table_SM, scratch_block = self._tables[group], self._scratch_blocks[group]
        list_3F = torch.tensor([scratch_block, owner, 0])[:, None].repeat(1, length)
        counts_B = torch.tensor([len(columns) for columns in seen], dtype=torch.int64)
        firsts_B = torch.tensor([columns.start for columns in seen], dtype=torch.int64)
        owners_X = torch.arange(len(slots)).repeat_interleave(counts_B)
        # How far an entry lies behind its row's first one.
        offsets_X = torch.arange(len(owners_X)) - (counts_B.cumsum(0) - counts_B)[owners_X]
        columns_X = firsts_B[owners_X] + offsets_X
        slots_X = torch.tensor(slots, dtype=torch.int64)[owners_X]
        list_3F[:, : len(owners_X)] = torch.stack((table_SM[slots_X, columns_X].long(), owners_X, columns_X))
        return list_3F
