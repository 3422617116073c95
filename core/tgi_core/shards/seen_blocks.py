"""Which blocks of its row a step's attention looks at, and so what shape the step needs."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.shards.buckets import ForwardShape


class SeenBlocks:
    """The blocks of a model's KV groups.

    Args:
        windows: of each group; None for full attention.
        block_size: tokens in a block.
        flat_decode: decodes go over one list of blocks.
    """

    def __init__(self, windows: Sequence[int | None], block_size: int, *, flat_decode: bool) -> None:
        self._windows = windows
        self._block_size = block_size
        self._flat_decode = flat_decode

    def of_decode(self, group: int, kv_len: int) -> range:
        """Columns of a block table that the last of ``kv_len`` tokens sees; in the last one lies that token itself."""
        window = self._windows[group]
        first = 0 if window is None else max(0, kv_len - window) // self._block_size
        return range(first, -(-kv_len // self._block_size))

    def needed(self, q_lens: Sequence[int], kv_lens: Sequence[int]) -> ForwardShape:
        """The smallest shape that takes some rows."""
        rows, q_len = len(q_lens), max(q_lens)
        if not self._flat_decode or q_len > 1:
            return ForwardShape(rows, q_len, -(-max(kv_lens) // self._block_size))
        listed = [sum(len(self.of_decode(group, kv_len)) for kv_len in kv_lens) for group in range(len(self._windows))]
        return ForwardShape(rows, 1, max(listed), is_flat=True)

    def list_length(self, group: int, shape: ForwardShape) -> int:
        """How long the group's list is in a flat decode: that of a group with a window may be shorter than others."""
        return min(shape.blocks, shape.rows * self._most_in_row(group, shape.blocks))

    def most_listed(self, max_slots: int, columns: int, blocks: Sequence[int]) -> int:
        """The longest list that is worth a shape: a row of any length, and all the blocks there are.

        Rows that share blocks may together see more; they are computed by turns.

        Args:
            max_slots: most rows.
            columns: most blocks of a row.
            blocks: of each group, in the cache.
        """
        most = 1
        for group, in_cache in enumerate(blocks):
            in_row = self._most_in_row(group, columns)
            most = max(most, in_row, min(max_slots * in_row, in_cache))
        return most

    def _most_in_row(self, group: int, columns: int) -> int:
        window = self._windows[group]
        if window is None:
            return columns
        # The window's first token may be the last of a block.
        return min(columns, (window + self._block_size - 2) // self._block_size + 1)
