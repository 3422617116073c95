"""A folder in the cache that has what another one lacks: links to its files, and new ones beside them.

Stands in for a model folder that cannot be written, or whose weights lie somewhere else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from tgi_core.errors import ExitCode, StartupError

_VERSION = 1
"""Part of the cache key: raise it whenever the new files would come out differently."""


def linked_folder(
    cache_dir: Path, purpose: str, links: Sequence[Path], made_of: Sequence[Path], fill: Callable[[Path], None]
) -> Path:
    """The folder below ``cache_dir`` with links to ``links`` and what ``fill`` writes; made once.

    Args:
        cache_dir: the cache.
        purpose: what the folder's name begins with.
        links: files and folders to link to under their own names; missing ones are left out.
        made_of: the files whose names, sizes and times tell one result from another.
        fill: adds files to the folder it is given.

    Raises:
        StartupError: the cache cannot be written, or ``fill`` refuses.
    """
    links = [path for path in links if path.exists()]
    key = hashlib.blake2b(str(_VERSION).encode(), digest_size=8)
    for path in sorted([*links, *made_of]):
        stat = path.stat()
        key.update(f"{path.absolute()}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    target = cache_dir / f"{purpose}-{key.hexdigest()}"

    def write(folder: Path) -> None:
        for path in links:
            (folder / path.name).symlink_to(path.absolute())
        fill(folder)

    make_once(target, write)
    return target


def make_once(target: Path, write: Callable[[Path], None]) -> None:
    """Make a folder of the cache with what ``write`` puts into it, unless it is there.

    Processes may make it at once: each works in a folder of its own, and the first to finish provides the result.

    Raises:
        StartupError: the cache cannot be written, or ``write`` refuses.
    """
    if target.is_dir():
        return
    cache_dir = target.parent
    unfinished = cache_dir / f".{target.name}.{uuid.uuid4().hex}"
    try:
        unfinished.mkdir(parents=True)
        write(unfinished)
        publish(unfinished, target)
    except OSError as error:
        raise StartupError(
            f"The cache {cache_dir} cannot be written: {error}.",
            "Free some space, or set TGI_SERVE_CACHE to a folder that can be written.",
            ExitCode.MODEL,
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def publish(unfinished: Path, target: Path) -> None:
    """Give a finished folder its name, unless another process was faster: its result is as good.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        os.rename(unfinished, target)
    except OSError:
        if not target.is_dir():
            raise
