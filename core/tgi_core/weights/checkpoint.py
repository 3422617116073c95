"""Reads a model's safetensors files: names, shapes and tensors, memory-mapped and on demand."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.consolidated import CONSOLIDATED, ConsolidatedNames
from tgi_core.weights.weight_file import DOWNLOAD_AGAIN, WeightFile

if TYPE_CHECKING:
    import torch

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_NOT_WEIGHTS = ("arguments", "args", "training")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Place(NamedTuple):
    """Where a tensor lies: its file, its name there, and what undoes the way it is stored."""

    file: WeightFile
    name: str
    restore: Callable[[torch.Tensor], torch.Tensor] | None = None


class Checkpoint:
    """The tensors of a model folder, whichever of its files they lie in.

    A file is mapped into memory while some of its tensors have not been read, so a pass over all of them in the order
    of the files keeps little more than one file mapped.

    Attributes:
        model_dir: the folder.
        names: every tensor's name.
        total_bytes: data of all tensors, as stored.
    """

    def __init__(self, model_dir: Path, places: dict[str, _Place], total_bytes: int) -> None:
        self.model_dir = model_dir
        self.names = frozenset(places)
        self.total_bytes = total_bytes
        self._places = places
        self._files = list(dict.fromkeys(place.file for place in places.values()))
        self._asked_for = 0

    @classmethod
    def open(cls, model_dir: Path) -> Checkpoint:
        """Find the weight files of ``model_dir`` and read their headers; no tensor is read.

        Takes ``model.safetensors``, the shards of ``model.safetensors.index.json``, or else every ``*.safetensors``
        file that is not named after training arguments; Mistral's ``consolidated*.safetensors`` only where there is
        nothing else, and under Hugging Face's names.

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
        own = [path for path in paths if not path.name.startswith(CONSOLIDATED)]
        if own:
            return cls._from_files(model_dir, own)
        return cls._from_files(model_dir, paths, ConsolidatedNames.read(model_dir))

    @classmethod
    def of_file(cls, path: Path) -> Checkpoint:
        """The tensors of one safetensors file.

        Raises:
            StartupError: the file is damaged.
        """
        return cls._from_files(path.parent, [path])

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor called ``name``, on the CPU, in the checkpoint's dtype, backed by the mapped file.

        Raises:
            StartupError: there is no such tensor, or it cannot be read.
        """
        place = self._place(name)
        self._read_ahead(place.file)
        tensor = place.file.tensor(place.name)
        return tensor if place.restore is None else place.restore(tensor)

    def slices(self, name: str) -> Iterable[torch.Tensor]:
        """The parts of the tensor called ``name`` along its first axis.

        Raises:
            StartupError: there is no such tensor, or it cannot be read.
        """
        return self.tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor called ``name``, from the file's header.

        Raises:
            StartupError: there is no such tensor.
        """
        place = self._place(name)
        return place.file.shape(place.name)

    def dtype(self, name: str) -> str:
        """What safetensors calls the dtype of the tensor called ``name``, from the file's header.

        Raises:
            StartupError: there is no such tensor.
        """
        place = self._place(name)
        return place.file.dtype(place.name)

    def size_bytes(self, name: str) -> int:
        """Data of the tensor called ``name``, as stored.

        Raises:
            StartupError: there is no such tensor.
        """
        place = self._place(name)
        return place.file.size_bytes(place.name)

    def file_name(self, name: str) -> str:
        """The name of the file that holds the tensor called ``name``.

        Raises:
            StartupError: there is no such tensor.
        """
        return self._place(name).file.path.name

    @classmethod
    def _from_files(cls, model_dir: Path, paths: list[Path], renamed: ConsolidatedNames | None = None) -> Checkpoint:
        places: dict[str, _Place] = {}
        files = [WeightFile(path) for path in paths]
        for file in files:
            for stored in file.names:
                name, restore = (stored, None) if renamed is None else renamed.translate(stored)
                if name in places:
                    raise StartupError(
                        f"Both {places[name].file.path.name} and {file.path.name} in {model_dir} hold a tensor "
                        f"`{name}`.",
                        f"Keep one set of weights, or add {_INDEX_NAME}.",
                        ExitCode.MODEL,
                    )
                places[name] = _Place(file, stored, restore)
        return cls(model_dir, places, sum(file.data_bytes for file in files))

    @classmethod
    def _from_index(cls, model_dir: Path, index_path: Path) -> Checkpoint:
        try:
            weight_map = msgspec.json.decode(index_path.read_bytes(), type=_Index).weight_map
        except (msgspec.MsgspecError, OSError) as error:
            raise StartupError(f"{index_path} cannot be read: {error}.", DOWNLOAD_AGAIN, ExitCode.MODEL) from error
        paths = {file_name: model_dir / file_name for file_name in sorted(set(weight_map.values()))}
        missing = [file_name for file_name, path in paths.items() if not path.is_file()]
        if missing:
            raise StartupError(
                f"{index_path} names {len(paths)} weight files, of which {len(missing)} are missing: "
                f"{', '.join(missing[:5])}.",
                "Download or copy the missing files into the folder.",
                ExitCode.MODEL,
            )
        files = {file_name: WeightFile(path) for file_name, path in paths.items()}
        for name, file_name in weight_map.items():
            if name not in files[file_name].names:
                raise StartupError(
                    f"{index_path} says that `{name}` is in {file_name}, but it is not.",
                    DOWNLOAD_AGAIN,
                    ExitCode.MODEL,
                )
        for file_name, file in files.items():
            for name in sorted(file.names - weight_map.keys()):
                raise StartupError(
                    f"{model_dir / file_name} holds a tensor `{name}` that {_INDEX_NAME} does not name.",
                    DOWNLOAD_AGAIN,
                    ExitCode.MODEL,
                )
        places = {name: _Place(files[file_name], name) for name, file_name in weight_map.items()}
        return cls(model_dir, places, sum(file.data_bytes for file in files.values()))

    def _read_ahead(self, file: WeightFile) -> None:
        """While tensors of one file are used, the disk reads the rest of it and the file after it."""
        while self._asked_for < len(self._files) and self._asked_for <= self._files.index(file) + 1:
            upcoming = self._files[self._asked_for]
            self._asked_for += 1
            threading.Thread(target=upcoming.read_ahead, name="read-ahead", daemon=True).start()

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            near = difflib.get_close_matches(name, self.names, n=5, cutoff=0.6)
            like = f" Names like it: {', '.join(near)}." if near else ""
            raise StartupError(
                f"The checkpoint in {self.model_dir} has no tensor `{name}`.{like}",
                "Check that config.json belongs to these weights.",
                ExitCode.MODEL,
            )
        return self._places[name]


def _no_weights(model_dir: Path) -> StartupError:
    pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in model_dir.glob(suffix))
    if pickled:
        return StartupError(
            f"{model_dir} has its weights only as pickle files ({', '.join(pickled[:3])}), not as safetensors.",
            f"Convert them once: tgi-serve download-weights {model_dir}",
            ExitCode.MODEL,
        )
    return StartupError(
        f"{model_dir} has no weights: no *.safetensors file.",
        "Point --model-id at a folder with safetensors weights, a GGUF file or a hub repository that has them.",
        ExitCode.MODEL,
    )
