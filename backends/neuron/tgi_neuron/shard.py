"""The shard over a compiled model of optimum-neuron: shapes, slots and sampling as its static programs want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.contract import (
    Capabilities,
    Device,
    LoadProgress,
    SampleInputs,
    ShardLimits,
    ShardSpec,
    UnsupportedParameter,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.shards.whole_model import WholeModelShard, beyond_a_library_that_samples
from tgi_neuron.artefact import CompiledFor, Wanted, check_artefact, is_artefact, read_artefact
from tgi_neuron.export import exported_model
from tgi_neuron.sdk import Sdk, open_sdk


class NeuronShard(WholeModelShard):
    """Loads a compiled model, or compiles one, and drives it. See ``WholeModelShard``.

    The model has two programs: a prompt of one sequence, filled up to the longest, and one token of every sequence of
    its cache. Both take int32 ids and positions [rows, tokens], the sequences' numbers [rows] and float32 sampling
    parameters [rows, 3]; they give logits [rows, 1, V] or, where the model samples, tokens [rows].

    Args:
        spec, capabilities, device: see ``WholeModelShard``.
        library_samples: the model is, or is to be, compiled so that it chooses the tokens.
    """

    def __init__(self, spec: ShardSpec, capabilities: Capabilities, device: Device, *, library_samples: bool) -> None:
        super().__init__(spec, capabilities, device)
        self.library_samples = library_samples
        self.unsupported_parameters = (
            beyond_a_library_that_samples("tokens are chosen on the device; start with --neuron-sampling host")
            if library_samples
            else [UnsupportedParameter("prompt_logprobs", "the model gives logits of the last token of a prompt alone")]
        )
        self._spec = spec
        self._num_cores = capabilities.max_world_size
        self._sdk: Sdk | None = None
        self._model: Any = None
        self._compiled: CompiledFor | None = None
        self._next_positions_S = torch.empty(0)

    @property
    def vocab_size(self) -> int:
        size: int = self._model.config.vocab_size
        return size

    def load_weights(self, progress: LoadProgress) -> None:  # noqa: ARG002 - the library says nothing of its progress
        # What the model is compiled for, and so which one is loaded, follows from the limits.
        self._sdk = open_sdk()

    def make_caches(self, limits: ShardLimits) -> tuple[int, int]:
        assert self._sdk is not None, "load comes first"
        wanted = Wanted(self._spec, limits, self._num_cores, self.library_samples)
        # What is traced and loaded in that mode could not be used outside of it.
        with torch.inference_mode(mode=False):
            folder = self._spec.model_dir if is_artefact(self._spec.model_dir) else exported_model(wanted, self._sdk)
            compiled = read_artefact(folder)
            check_artefact(folder, compiled, wanted, self._sdk)
            try:
                self._model = self._sdk.model_class.from_pretrained(str(folder))
            except (OSError, RuntimeError, ValueError) as error:
                cause = f"The compiled model in {folder} cannot be loaded: {error}"
                raise StartupError(cause, "Export it again.", ExitCode.BACKEND) from error
        self.notes = [f"the compiled model lies in {folder}"]
        self._compiled = compiled
        self._next_positions_S = torch.zeros(compiled.batch_size, dtype=torch.int32)
        return limits.max_total_tokens or compiled.max_tokens, self._entry_bytes(compiled)

    def prefill(self, slot: int, ids_T: Tensor, sampling: SampleInputs | None) -> Tensor:
        assert self._compiled is not None
        length = len(ids_T)
        if length == 1:
            # The library tells the programs apart by the number of tokens.
            return self.decode([slot], ids_T, torch.zeros(1, dtype=torch.int64), sampling)
        self._next_positions_S[slot] = length
        padding = (0, self._compiled.max_context_length - length)
        ids_1T = F.pad(ids_T, padding, value=self._model.config.pad_token_id or 0)[None]
        # The logits are those of the largest position. The library pads with 1, the last one of a prompt of two tokens.
        positions_1T = F.pad(torch.arange(length), padding, value=0)[None]
        return self._run(ids_1T, positions_1T, torch.tensor([slot]), self._parameters(sampling, 1))

    def decode(self, slots: Sequence[int], ids_B: Tensor, positions_B: Tensor, sampling: SampleInputs | None) -> Tensor:
        assert self._compiled is not None
        rows = self._compiled.batch_size
        slots_B = torch.tensor(slots)
        # All rows of the cache in order: fewer the library would fill up with copies of the first, written into the
        # caches of whoever is absent. An absent one gets a token where its next one will come, which nothing reads.
        self._next_positions_S[slots_B] = positions_B.int()
        ids_S = torch.zeros(rows, dtype=torch.int64).index_copy_(0, slots_B, ids_B)
        parameters_S3 = self._parameters(None, rows).index_copy_(0, slots_B, self._parameters(sampling, len(slots)))
        output = self._run(ids_S[:, None], self._next_positions_S[:, None], torch.arange(rows), parameters_S3)
        self._next_positions_S[slots_B] += 1
        return output.index_select(0, slots_B)

    def _release(self) -> None:
        super()._release()
        self._model = None

    def _run(self, ids: Tensor, positions: Tensor, sequences: Tensor, parameters: Tensor) -> Tensor:
        """One program: [rows, T] ids and positions -> logits [rows, V], or tokens [rows]."""
        output: Tensor = self._model.forward(ids.int(), positions.int(), sequences.int(), parameters)
        if self.library_samples:
            return output.reshape(len(ids)).long()
        # Where cores share a vocabulary that does not divide by them, it is wider.
        return output.reshape(len(ids), -1)[:, : self.vocab_size].float()

    def _parameters(self, sampling: SampleInputs | None, rows: int) -> Tensor:
        """Top-k, top-p and temperature, all 1 for the best token: float32 [rows, 3]."""
        greedy_B3 = torch.ones(rows, 3)
        if sampling is None:
            return greedy_B3
        assert self._compiled is not None
        most = self._compiled.max_topk
        # It takes -1 for all tokens, but then none of those it has sorted out counts.
        top_k_B = sampling.top_k_B.where(sampling.top_k_B > 0, most).clamp(max=most)
        drawn_B3 = torch.stack((top_k_B.float(), sampling.top_p_B, sampling.temperature_B), dim=1)
        return drawn_B3.where(sampling.do_sample_B[:, None], greedy_B3)

    def _entry_bytes(self, compiled: CompiledFor) -> int:
        """Keys and values of one sequence, over all cores."""
        config = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        element_bytes = getattr(torch, compiled.torch_dtype).itemsize
        num_elements = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * compiled.sequence_length
        return int(num_elements * element_bytes)
