"""The model class: compiles by copying, computes on the host, and takes nothing but what the real one is made for.

Stricter than the real one where that one does something else than its caller means: a batch smaller than the compiled
one, which it fills up with copies of the first row written into other sequences' caches; sequences out of order; a
position that two tokens of a prompt share as the largest; a top-k of -1. What of a cache no token has been written to
holds no numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from optimum.neuron.configuration import NxDNeuronConfig
from torch import Tensor

from tgi_core.contract import ShardSpec
from tgi_core.testing.stand_ins.slot_shard import SlotLibrary

MODEL_TYPES = ("granite", "llama", "llama4_text", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")
AVAILABLE_CORES = 2
COMPILED_MODEL_FILE_NAME = "model.pt"
CHECKPOINT_DIR = "checkpoint"


class MisuseError(AssertionError):
    """A call that the compiled programs cannot take, or that does not mean what it seems to."""


def check(holds: bool, message: str) -> None:
    if not holds:
        raise MisuseError(message)


class NeuronModelForCausalLM:
    """As ``optimum.neuron.NeuronModelForCausalLM``."""

    def __init__(self, source: Path, config: SimpleNamespace, neuron_config: NxDNeuronConfig) -> None:
        self.config = config
        self.neuron_config = neuron_config
        self._source = source
        self._library: SlotLibrary | None = None
        self._filled: list[int] = []

    @classmethod
    def get_neuron_config(  # noqa: PLR0917 - the library's signature
        cls,
        model_name_or_path: str | Path,
        config: Any = None,
        token: bool | str | None = None,
        revision: str | None = None,
        instance_type: str | None = None,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        tensor_parallel_size: int | None = None,
    ) -> NxDNeuronConfig:
        model = _read_config(Path(model_name_or_path))
        if model.model_type not in MODEL_TYPES:
            raise ValueError(f"Model type {model.model_type} is not supported for task text-generation in neuron")
        batch_size = batch_size or 1
        cores = AVAILABLE_CORES if tensor_parallel_size is None else tensor_parallel_size
        # What compilers of an older SDK got wrong.
        broken = model.model_type == "qwen2" and batch_size > 1 and cores == 2
        return NxDNeuronConfig(
            batch_size=batch_size,
            sequence_length=sequence_length or min(model.max_position_embeddings, 4096),
            tp_degree=cores,
            torch_dtype=getattr(model, "torch_dtype", "float32"),
            target="trn1",
            on_device_sampling=not broken,
            continuous_batching=batch_size > 1,
        )

    @classmethod
    def export(  # noqa: PLR0917 - the library's signature
        cls,
        model_id: str,
        neuron_config: NxDNeuronConfig,
        config: Any = None,
        token: bool | str | None = None,
        revision: str | None = None,
        load_weights: bool | None = False,
        **kwargs: Any,
    ) -> NeuronModelForCausalLM:
        check(not kwargs, f"arguments that are ignored: {sorted(kwargs)}")
        check(not torch.is_inference_mode_enabled(), "a model is traced in inference mode")
        return cls(Path(model_id), _read_config(Path(model_id)), neuron_config)

    def save_pretrained(self, save_directory: str, **kwargs: Any) -> None:
        target = Path(save_directory)
        weights = target / CHECKPOINT_DIR
        weights.mkdir(parents=True)
        dtype = str(self.neuron_config.torch_dtype).removeprefix("torch.")
        content = json.dumps({**vars(self.config), "torch_dtype": dtype})
        for folder in (target, weights):
            (folder / "config.json").write_text(content)
        for path in self._source.glob("*.safetensors*"):
            try:
                os.link(path.resolve(), weights / path.name)
            except OSError:
                shutil.copyfile(path, weights / path.name)
        self.neuron_config.save_pretrained(save_directory)
        # As torch saves TorchScript.
        with zipfile.ZipFile(target / COMPILED_MODEL_FILE_NAME, "w") as archive:
            archive.writestr("model/constants.pkl", b"")

    @classmethod
    def from_pretrained(cls, model_id: str | Path, **kwargs: Any) -> NeuronModelForCausalLM:
        check(not kwargs, f"arguments that are ignored: {sorted(kwargs)}")
        check(not torch.is_inference_mode_enabled(), "a model is loaded in inference mode")
        folder = Path(model_id)
        neuron_config = NxDNeuronConfig.from_pretrained(str(folder))
        if neuron_config.tp_degree > AVAILABLE_CORES:
            raise ValueError(f"The model requires at least {neuron_config.tp_degree} Neuron cores")
        if not (folder / COMPILED_MODEL_FILE_NAME).is_file():
            raise ValueError(f"The provided filename {folder / COMPILED_MODEL_FILE_NAME} does not exist")
        model = cls(folder, _read_config(folder), neuron_config)
        model._load()
        return model

    def forward(  # noqa: PLR0917 - the library's signature
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        seq_ids: Tensor | None = None,
        sampling_params: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Tensor:
        check(not (output_attentions or output_hidden_states or return_dict), "an output that is not supported")
        check(self._library is not None, "the weights are not loaded")
        check(seq_ids is not None and sampling_params is not None, "the programs have four inputs")
        self._check_tensors(input_ids, position_ids, seq_ids, sampling_params)
        if input_ids.shape[1] > 1 and not position_ids.min().item():
            logits_BV = self._encode_context(input_ids, position_ids, seq_ids)
        else:
            logits_BV = self._generate(input_ids, position_ids, seq_ids)
        if self.neuron_config.on_device_sampling:
            self._check_sampling(sampling_params)
            top_k_B, top_p_B, temperature_B = sampling_params.unbind(1)
            most_B = top_k_B.clamp(max=self.neuron_config.max_topk)
            return self._library.choose(logits_BV, most_B, top_p_B, temperature_B).int()
        # The last core's share of the vocabulary is filled up.
        padding = (0, self.neuron_config.tp_degree - 1)
        return F.pad(logits_BV, padding, value=torch.finfo(torch.float32).min)[:, None]

    def _load(self) -> None:
        compiled = self.neuron_config
        dtype = str(compiled.torch_dtype).removeprefix("torch.")
        self._library = SlotLibrary(ShardSpec(model_dir=self._source / CHECKPOINT_DIR, dtype=dtype))
        self._library.load(lambda done_bytes, total_bytes: None)
        self._library.allocate(compiled.max_batch_size, compiled.sequence_length)
        self._filled = [0] * compiled.max_batch_size
        for sequence in range(compiled.max_batch_size):
            self._library.forget(sequence)

    def _check_tensors(self, input_ids: Tensor, position_ids: Tensor, seq_ids: Tensor, parameters: Tensor) -> None:
        for name, tensor in {"input_ids": input_ids, "position_ids": position_ids, "seq_ids": seq_ids}.items():
            check(tensor.dtype == torch.int32 and tensor.is_cpu, f"{name} is {tensor.dtype} on {tensor.device}")
        rows = len(input_ids)
        check(input_ids.shape == position_ids.shape, "ids and positions differ in shape")
        check(seq_ids.shape == (rows,), f"seq_ids has the shape {tuple(seq_ids.shape)}")
        check(parameters.shape == (rows, 3), f"sampling_params has the shape {tuple(parameters.shape)}")
        check(parameters.dtype == torch.float32, f"sampling_params is {parameters.dtype}")
        numbers = seq_ids.tolist()
        check(numbers == sorted(set(numbers)), f"seq_ids {numbers} repeat, or are out of order")
        check(
            numbers[0] >= 0 and numbers[-1] < self.neuron_config.max_batch_size, f"seq_ids {numbers} are not all there"
        )
        check(bool(((input_ids >= 0) & (input_ids < self.config.vocab_size)).all()), "ids outside of the vocabulary")
        longest = self.neuron_config.sequence_length
        check(bool(((position_ids >= 0) & (position_ids < longest)).all()), "positions outside of the cache")

    def _check_sampling(self, parameters: Tensor) -> None:
        top_k_B, top_p_B, temperature_B = parameters.unbind(1)
        most = self.neuron_config.max_topk
        check(bool(((top_k_B >= 1) & (top_k_B <= most) & (top_k_B == top_k_B.floor())).all()), f"top_k is {top_k_B}")
        check(bool(((top_p_B > 0) & (top_p_B <= 1)).all()), f"top_p is {top_p_B}")
        check(bool((temperature_B > 0).all()), f"temperature is {temperature_B}")

    def _encode_context(self, input_ids: Tensor, position_ids: Tensor, seq_ids: Tensor) -> Tensor:
        shape = (self.neuron_config.ctx_batch_size, self.neuron_config.max_context_length)
        check(input_ids.shape == shape, f"a prompt of the shape {tuple(input_ids.shape)}; compiled is {shape}")
        check(len(input_ids) == 1, "prompts of several sequences")
        positions = position_ids[0].tolist()
        length = positions.index(max(positions)) + 1
        check(positions[:length] == list(range(length)), "a prompt that does not begin at the left, or has gaps")
        check(positions.count(length - 1) == 1, "padding with the position of the prompt's last token")
        (sequence,) = seq_ids.tolist()
        self._library.forget(sequence)
        self._filled[sequence] = length
        return self._library.encode_context(sequence, input_ids[0, :length].long())[-1:]

    def _generate(self, input_ids: Tensor, position_ids: Tensor, seq_ids: Tensor) -> Tensor:
        shape = (self.neuron_config.batch_size, 1)
        check(input_ids.shape == shape, f"tokens of the shape {tuple(input_ids.shape)}; compiled is {shape}")
        positions = position_ids[:, 0].tolist()
        for sequence, position in zip(seq_ids.tolist(), positions, strict=True):
            filled = self._filled[sequence]
            check(position <= filled, f"sequence {sequence} holds {filled} tokens, and one comes at {position}")
            self._filled[sequence] = max(filled, position + 1)
        return self._library.generate(seq_ids.tolist(), input_ids[:, 0].long(), position_ids[:, 0].long())


def _read_config(folder: Path) -> SimpleNamespace:
    values = json.loads((folder / "config.json").read_text())
    return SimpleNamespace(**{"pad_token_id": None, **values})
