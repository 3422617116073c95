"""Reads a model's safetensors files: names, shapes and tensors, memory-mapped and on demand."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from safetensors import SafetensorError, safe_open

from tgi_core.errors import ExitCode, StartupError

if TYPE_CHECKING:
    import torch

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_NOT_WEIGHTS = ("arguments", "args", "training")
_DOWNLOAD_AGAIN = "Download or copy the model again."


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Checkpoint:
    """The tensors of a model folder, whichever of its files they lie in.

    Attributes:
        model_dir: the folder.
        names: every tensor's name.
        total_bytes: data of all tensors, as stored.
    """

    def __init__(self, model_dir: Path, files: dict[str, Any], total_bytes: int) -> None:
        self.model_dir = model_dir
        self.names = frozenset(files)
        self.total_bytes = total_bytes
        self._files = files

    @classmethod
    def open(cls, model_dir: Path) -> Checkpoint:
        """Find the weight files of ``model_dir`` and read their headers; no tensor is read.

        Takes ``model.safetensors``, the shards of ``model.safetensors.index.json``, or else every ``*.safetensors``
        file that is not named after training arguments.

        Raises:
            StartupError: there are no weights in this format, a shard is missing, or a file is damaged.
        """
        index_path = model_dir / _INDEX_NAME
        if (model_dir / _SINGLE_NAME).is_file():
            return cls._from_files(model_dir, [model_dir / _SINGLE_NAME])
        if index_path.is_file():
            return cls._from_index(model_dir, index_path)
        paths = sorted(
            path for path in model_dir.glob("*.safetensors") if not any(word in path.name for word in _NOT_WEIGHTS)
        )
        if not paths:
            raise _no_weights(model_dir)
        return cls._from_files(model_dir, paths)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor called ``name``, on the CPU, in the checkpoint's dtype, backed by the mapped file.

        Raises:
            StartupError: there is no such tensor, or it cannot be read.
        """
        file = self._file(name)
        try:
            tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, RuntimeError, OSError) as error:
            raise StartupError(
                f"Tensor `{name}` in {self.model_dir} cannot be read: {error}.", _DOWNLOAD_AGAIN, ExitCode.MODEL
            ) from error
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor called ``name``, from the file's header.

        Raises:
            StartupError: there is no such tensor.
        """
        return tuple(self._file(name).get_slice(name).get_shape())

    @classmethod
    def _from_files(cls, model_dir: Path, paths: list[Path]) -> Checkpoint:
        files: dict[str, Any] = {}
        owners: dict[str, Path] = {}
        for path in paths:
            file = _open_file(path)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in files:
                    raise StartupError(
                        f"Both {owners[name].name} and {path.name} in {model_dir} hold a tensor `{name}`.",
                        f"Keep one set of weights, or add {_INDEX_NAME}.",
                        ExitCode.MODEL,
                    )
                files[name] = file
                owners[name] = path
        return cls(model_dir, files, sum(_data_bytes(path) for path in paths))

    @classmethod
    def _from_index(cls, model_dir: Path, index_path: Path) -> Checkpoint:
        try:
            weight_map = msgspec.json.decode(index_path.read_bytes(), type=_Index).weight_map
        except (msgspec.MsgspecError, OSError) as error:
            raise StartupError(f"{index_path} cannot be read: {error}.", _DOWNLOAD_AGAIN, ExitCode.MODEL) from error
        paths = {file_name: model_dir / file_name for file_name in sorted(set(weight_map.values()))}
        missing = [file_name for file_name, path in paths.items() if not path.is_file()]
        if missing:
            raise StartupError(
                f"{index_path} names {len(paths)} weight files, of which {len(missing)} are missing: "
                f"{', '.join(missing[:5])}.",
                "Download or copy the missing files into the folder.",
                ExitCode.MODEL,
            )
        opened = {file_name: _open_file(path) for file_name, path in paths.items()}
        held = {file_name: frozenset(file.keys()) for file_name, file in opened.items()}
        for name, file_name in weight_map.items():
            if name not in held[file_name]:
                raise StartupError(
                    f"{index_path} says that `{name}` is in {file_name}, but it is not.",
                    _DOWNLOAD_AGAIN,
                    ExitCode.MODEL,
                )
        files = {name: opened[file_name] for name, file_name in weight_map.items()}
        return cls(model_dir, files, sum(_data_bytes(path) for path in paths.values()))

    def _file(self, name: str) -> Any:
        if name not in self._files:
            near = difflib.get_close_matches(name, self.names, n=5, cutoff=0.6)
            like = f" Names like it: {', '.join(near)}." if near else ""
            raise StartupError(
                f"The checkpoint in {self.model_dir} has no tensor `{name}`.{like}",
                "Check that config.json belongs to these weights.",
                ExitCode.MODEL,
            )
        return self._files[name]


def _open_file(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise StartupError(
            f"{path} is truncated or no safetensors file: {error}.", _DOWNLOAD_AGAIN, ExitCode.MODEL
        ) from error


def _data_bytes(path: Path) -> int:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    return path.stat().st_size - 8 - header_bytes


def _no_weights(model_dir: Path) -> StartupError:
    pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in model_dir.glob(suffix))
    if pickled:
        return StartupError(
            f"{model_dir} has its weights only as pickle files ({', '.join(pickled[:3])}), not as safetensors.",
            "Load the model with transformers and call save_pretrained(folder, safe_serialization=True).",
            ExitCode.MODEL,
        )
    return StartupError(
        f"{model_dir} has no weights: no *.safetensors file.",
        "Point --model-id at a folder with safetensors weights, a GGUF file or a hub repository that has them.",
        ExitCode.MODEL,
    )
