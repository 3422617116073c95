"""Converts checkpoints that torch has pickled (``pytorch_model.bin`` and the like) to safetensors.

A pickle is a program. It is read with ``weights_only``, which builds tensors and nothing else, so a file that asks for
more is refused and nothing of it runs.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from numpy.typing import NDArray

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.progress import Progress, no_progress
from tgi_core.weights.safetensors_writer import TensorEntry, write_safetensors

if TYPE_CHECKING:
    import torch

INDEX_NAME = "pytorch_model.bin.index.json"
SUFFIXES = (".bin", ".pt", ".pth")

SHARD_NAME = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
"""A shard that a conversion writes; without the index, which is written last, it belongs to an unfinished one."""

_OTHERS = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|adapter_model|consolidated|trainer).*"
)
_FORBIDDEN = re.compile(r"GLOBAL (\S+)")
"""Where torch names the function that a pickle asks for."""

_CHUNK_BYTES = 64 << 20
_DOWNLOAD_AGAIN = "Download or copy the model again."
_ASK_FOR_SAFETENSORS = "Ask for the weights in safetensors, which cannot hold code. Nothing of the file was run."


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def find_pickled(folder: Path) -> list[Path]:
    """The pickled weight files of ``folder`` in order, without optimizer states and the like; empty for none.

    Raises:
        StartupError: the index is malformed or names files that are not there.
    """
    index = folder / INDEX_NAME
    if index.is_file():
        names = sorted(set(_read_index(index).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise _refuse(
                f"{index} names {len(names)} weight files, of which {len(missing)} are missing: "
                f"{', '.join(missing[:5])}.",
                "Download or copy the missing files into the folder.",
            )
        return [folder / name for name in names]
    single = folder / "pytorch_model.bin"
    if single.is_file():
        return [single]
    found = [path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")]
    named = [path for path in found if path.is_file() and not _OTHERS.fullmatch(path.name)]
    return sorted(path for path in named if not _is_program(path))


def _is_program(path: Path) -> bool:
    """Whether torch has saved code there (TorchScript), as of a model that a vendor's library has compiled."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def convert_pickled(files: Sequence[Path], target: Path, progress: Progress = no_progress) -> None:
    """Write the tensors of ``files`` into the folder ``target`` as ``model.safetensors`` or as shards with an index.

    Tensors that share memory are stored once, under the first name; the header's metadata maps the other names to it,
    as safetensors does. What was written is compared with what was read, bit for bit. Files appear under their names
    only when all of it is right, the index last. Beside the pickles' own mapped pages no more than one tensor is held;
    of files older than torch 1.6, which cannot be mapped, one file.

    Raises:
        StartupError: a file is damaged, holds anything but tensors, or contradicts the index.
        OSError: ``target`` cannot be written.
    """
    weight_map = _read_index(files[0].parent / INDEX_NAME) if (files[0].parent / INDEX_NAME).is_file() else None
    unfinished = target / f".converting-{uuid.uuid4().hex}"
    unfinished.mkdir()
    try:
        names = _shard_names(len(files))
        total_bytes = sum(path.stat().st_size for path in files)
        written: dict[str, str] = {}
        done_bytes = 0
        for path, name in zip(files, names, strict=True):
            tensors = _read(path)
            _check_index(path, tensors, weight_map)
            for tensor_name in tensors:
                if tensor_name in written:
                    raise _refuse(f"{path} holds a tensor `{tensor_name}` that another file holds too.", "")
                written[tensor_name] = name
            _write(unfinished / name, tensors, path.name, (done_bytes, total_bytes), progress)
            _verify(unfinished / name, tensors)
            done_bytes += path.stat().st_size
            progress(f"Converting {path.name}", done_bytes, total_bytes)
        if len(names) > 1:
            index = {"metadata": {}, "weight_map": written}
            (unfinished / "model.safetensors.index.json").write_bytes(msgspec.json.encode(index))
            names.append("model.safetensors.index.json")
        for name in names:
            os.replace(unfinished / name, target / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _read_index(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
    except (msgspec.MsgspecError, OSError) as error:
        raise _refuse(f"{path} cannot be read: {error}.") from error


def _check_index(path: Path, tensors: Mapping[str, torch.Tensor], weight_map: Mapping[str, str] | None) -> None:
    if weight_map is None:
        return
    named = {name for name, file_name in weight_map.items() if file_name == path.name}
    for name in sorted(named - tensors.keys()):
        raise _refuse(f"{INDEX_NAME} says that the tensor `{name}` is in {path}, but it is not.")
    for name in sorted(tensors.keys() - named):
        raise _refuse(f"{path} holds a tensor `{name}` that {INDEX_NAME} does not name.")


def _read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one file by name, mapped where the file allows it."""
    import zipfile

    import torch

    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # damage shows in whatever the reader trips over
        forbidden = _FORBIDDEN.search(str(error))
        if forbidden is not None:
            raise _refuse(
                f"{path} holds more than tensors: reading it would run `{forbidden[1]}`.", _ASK_FOR_SAFETENSORS
            ) from error
        raise _refuse(f"{path} is truncated or no file of torch's: {_reason(error)}") from error
    if not isinstance(content, dict) or not content:
        raise _refuse(f"{path} holds no tensors by name, but a {type(content).__name__}.", "")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise _refuse(f"{path} holds a {type(value).__name__} at `{name}`, where a tensor should be.", "")
        if value.layout is not torch.strided or value.is_quantized:
            raise _refuse(f"{path} holds a tensor `{name}` that is not a plain array of numbers.", "")
        if value.dtype not in _dtype_names():
            raise _refuse(f"{path} holds a tensor `{name}` of type {value.dtype}, which safetensors does not know.", "")
    return content


def _write(
    path: Path, tensors: Mapping[str, torch.Tensor], source: str, sizes: tuple[int, int], progress: Progress
) -> None:
    """Write one file; ``sizes`` are the bytes done before it and those of all files."""
    owners = _owners(tensors)
    names = _dtype_names()
    kept = [name for name in tensors if owners[name] == name]
    entries = [TensorEntry(name, names[tensors[name].dtype], tuple(tensors[name].shape)) for name in kept]
    before_bytes, total_bytes = sizes

    def chunks() -> Iterator[NDArray[Any]]:
        done_bytes = before_bytes
        for name in kept:
            for chunk in _raw_chunks(tensors[name]):
                yield chunk.numpy()
                done_bytes += chunk.nbytes
                progress(f"Converting {source}", min(done_bytes, total_bytes), total_bytes)

    aliases = {name: owner for name, owner in owners.items() if name != owner}
    write_safetensors(path, entries, chunks(), metadata=aliases)


def _owners(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each name the first name of exactly the same memory."""
    first: dict[object, str] = {}
    owners = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        owners[name] = name if tensor.numel() == 0 else first.setdefault(place, name)
    return owners


def _raw_chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor's bytes in row-major order, in pieces."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for start in range(0, len(flat), _CHUNK_BYTES):
        yield flat[start : start + _CHUNK_BYTES]


def _verify(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    import torch

    from tgi_core.weights.checkpoint import Checkpoint

    written = Checkpoint.of_file(path)
    for name, tensor in tensors.items():
        copy = written.tensor(name)
        same_kind = copy.dtype is tensor.dtype and copy.shape == tensor.shape
        pairs = zip(_raw_chunks(copy), _raw_chunks(tensor), strict=True) if same_kind else ()
        if not same_kind or not all(torch.equal(*pair) for pair in pairs):
            raise _refuse(f"The conversion of tensor `{name}` to {path.name} changed it.", "Check the disk and memory.")


def _dtype_names() -> Mapping[Any, str]:
    import torch

    return {
        torch.bool: "BOOL",
        torch.uint8: "U8",
        torch.int8: "I8",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e5m2: "F8_E5M2",
        torch.int16: "I16",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int32: "I32",
        torch.float32: "F32",
        torch.int64: "I64",
        torch.float64: "F64",
    }


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    # torch begins with advice about ``weights_only``; what is wrong with the file comes after it.
    told = [line for line in lines if "weights_only" not in line]
    return (told[0].strip() if told else type(error).__name__).rstrip(".") + "."


def _refuse(cause: str, fix: str = _DOWNLOAD_AGAIN) -> StartupError:
    return StartupError(cause, fix, ExitCode.MODEL)
