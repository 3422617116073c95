"""Puts the parts of a merged weight together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of one type, one below the other: [sum of rows, ...].

    Parts that follow each other in memory, as neighbours in a mapped file do, become a view. Others are copied, by
    several threads where ``torch.cat`` takes one: most of it is the system's work of finding fresh memory.
    """
    if len(parts) == 1:
        return parts[0]
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    if _follow_each_other(parts):
        return parts[0].as_strided(shape, parts[0].stride())
    joined = parts[0].new_empty(shape)
    start = 0
    for part in parts:
        joined[start : start + len(part)] = part
        start += len(part)
    return joined


def _follow_each_other(parts: Sequence[Tensor]) -> bool:
    storage, end = parts[0].untyped_storage().data_ptr(), parts[0].data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.untyped_storage().data_ptr() != storage or part.data_ptr() != end:
            return False
        end += part.nbytes
    return True
