"""What a model is compiled for, as optimum-neuron keeps it beside the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from optimum.neuron.utils.version_utils import get_neuronxcc_version
from optimum.neuron.version import __version__

CONFIG_FILE = "neuron_config.json"


class NxDNeuronConfig:
    """The configuration of 0.4.5: its arguments in their order, and the rules between them."""

    def __init__(  # noqa: PLR0917 - the library's signature
        self,
        checkpoint_id: str | None = None,
        checkpoint_revision: str | None = None,
        batch_size: int | None = 1,
        max_batch_size: int | None = None,
        continuous_batching: bool | None = False,
        speculation_length: int | None = 0,
        sequence_length: int | None = 128,
        tp_degree: int | None = 1,
        ep_degree: int | None = 1,
        pp_degree: int | None = 1,
        torch_dtype: str | torch.dtype | None = torch.bfloat16,
        n_active_tokens: int | None = None,
        max_context_length: int | None = None,
        output_logits: bool | None = False,
        fused_qkv: bool | None = False,
        target: str | None = None,
        on_device_sampling: bool | None = False,
        max_topk: int | None = 256,
        start_rank_id: int | None = 0,
        local_ranks_size: int | None = None,
        capacity_factor: float | None = None,
        glu_mlp: bool = True,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.checkpoint_revision = checkpoint_revision
        self.batch_size = batch_size
        self.max_batch_size = batch_size if max_batch_size is None else max_batch_size
        self.continuous_batching = continuous_batching
        self.speculation_length = speculation_length
        self.sequence_length = sequence_length
        self.tp_degree = tp_degree
        self.ep_degree = ep_degree
        self.pp_degree = pp_degree
        self.torch_dtype = getattr(torch, torch_dtype) if isinstance(torch_dtype, str) else torch_dtype
        self.n_active_tokens = sequence_length if n_active_tokens is None else n_active_tokens
        self.max_context_length = sequence_length if max_context_length is None else max_context_length
        self.output_logits = output_logits
        self.fused_qkv = fused_qkv
        self.target = target
        self.on_device_sampling = on_device_sampling
        self.max_topk = max_topk
        self.start_rank_id = start_rank_id
        self.local_ranks_size = tp_degree if local_ranks_size is None else local_ranks_size
        self.capacity_factor = capacity_factor
        self.glu_mlp = glu_mlp

    @property
    def ctx_batch_size(self) -> int | None:
        """Rows of a prompt's program."""
        return 1 if self.continuous_batching else self.batch_size

    def save_pretrained(self, save_directory: str) -> None:
        """Write it, with the versions it belongs to."""
        values = {**vars(self), "torch_dtype": str(self.torch_dtype).removeprefix("torch.")}
        values |= {"_serialized_key": "NxDNeuronConfig", "optimum_neuron_version": __version__}
        values["neuronxcc_version"] = get_neuronxcc_version()
        (Path(save_directory) / CONFIG_FILE).write_text(json.dumps(values, indent=2, sort_keys=True))

    @classmethod
    def from_pretrained(cls, pretrained_model_name: str) -> NxDNeuronConfig:
        """Read it.

        Raises:
            ValueError, RuntimeError: it belongs to another release of the library, or of the compiler.
        """
        values: dict[str, Any] = json.loads((Path(pretrained_model_name) / CONFIG_FILE).read_text())
        if values.pop("optimum_neuron_version") != __version__:
            raise ValueError("This neuron configuration file was generated with another optimum-neuron version")
        if values.pop("neuronxcc_version") != get_neuronxcc_version():
            raise RuntimeError("This neuron configuration corresponds to a model exported using another neuronxcc")
        assert values.pop("_serialized_key") == "NxDNeuronConfig"
        return cls(**values)
