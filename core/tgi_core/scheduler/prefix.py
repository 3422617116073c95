"""Keys of the prefix cache: a chain of hashes, so that a block's key stands for everything before it too."""

from __future__ import annotations

from array import array
from hashlib import blake2b

KEY_BYTES = 16
ROOT_KEY = bytes(KEY_BYTES)


def extend_block_keys(keys: list[bytes], token_ids: list[int], num_blocks: int, block_size: int) -> None:
    """Extend ``keys`` in place to those of the first ``num_blocks`` full blocks of ``token_ids``.

    A key is 128-bit blake2b over the parent's key and the block's tokens as int32.
    """
    parent = keys[-1] if keys else ROOT_KEY
    for index in range(len(keys), num_blocks):
        block = token_ids[index * block_size : (index + 1) * block_size]
        parent = blake2b(array("i", block).tobytes(), digest_size=KEY_BYTES, key=parent).digest()
        keys.append(parent)
