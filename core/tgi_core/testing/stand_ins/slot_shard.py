"""The shard of the stand-in for whole-model devices, and the "vendor's library" it drives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, Capabilities, Device, LoadProgress, SampleInputs, ShardLimits, ShardSpec
from tgi_core.contract.states import StepRows
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.model import LoadedModel, LoadOptions
from tgi_core.models.rotary import rotary_table
from tgi_core.models.step import KVView, Step
from tgi_core.reference import ReferenceKernels
from tgi_core.shards.whole_model import WholeModelShard, beyond_a_library_that_samples

_DEFAULT_TOKENS = 2048


class SlotLibrary:
    """A library that owns weights and caches and knows sequences by number, as those of vendors do.

    It is strict: a call computes one prompt, or one token of sequences in ascending order.

    Args:
        spec: the model and the type to compute in.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self._spec = spec
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._noise = torch.Generator().manual_seed(0)
        self._kernels = ReferenceKernels()
        self._model = choose_model(spec.model_dir)
        if self._model.states or any(attention.cross for attention in self._model.attention):
            raise StartupError(
                f"The stand-in for whole-model devices does not run {self._model.path}.",
                "Use another backend.",
                ExitCode.MODEL,
            )
        self.vocab_size = self._model.vocab_size
        self.max_positions = self._model.max_positions
        self._decoder: LoadedModel | None = None
        self._caches: list[Tensor] = []
        self._rotary_tables: list[Tensor] = []
        self._length = 0

    def load(self, progress: LoadProgress) -> None:
        """Read the weights."""
        options = LoadOptions(
            load_format=self._spec.load_format,
            dtype=self._dtype,
            device=torch.device("cpu"),
            kernels=self._kernels,
            attention_kernels=[self._kernels] * len(self._model.attention),
            progress=progress,
        )
        self._decoder = self._model.load(options).model

    def allocate(self, num_sequences: int, length: int) -> int:
        """Make caches for so many sequences of so many tokens; returns the bytes that one takes."""
        groups = self._model.group_of_layer
        self._caches = [
            torch.zeros(self._model.attention[group].cache_shape(num_sequences, length), dtype=self._dtype)
            for group in groups
        ]
        self._rotary_tables = [rotary_table(rope, length, torch.device("cpu")) for rope in self._model.ropes]
        self._length = length
        return sum(cache.nbytes for cache in self._caches) // num_sequences

    def forget(self, sequence: int) -> None:
        """Let a sequence's cache hold no numbers: whoever reads of it what was not written gets none either."""
        for cache_NP2KD in self._caches:
            cache_NP2KD[sequence] = torch.nan

    def encode_context(self, sequence: int, ids_T: Tensor) -> Tensor:
        """A prompt of one sequence: int64 [T] -> logits [T, V]."""
        self.forget(sequence)
        positions_T = torch.arange(len(ids_T))
        return self._run([sequence], ids_T, positions_T, [len(ids_T)])

    def generate(self, sequences: Sequence[int], ids_B: Tensor, positions_B: Tensor) -> Tensor:
        """The next token of some sequences: int64 [B] ids and positions -> logits [B, V]."""
        assert list(sequences) == sorted(set(sequences)), "the library takes sequences in order"
        return self._run(sequences, ids_B, positions_B, [1] * len(sequences))

    def choose(self, logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor, temperature_B: Tensor) -> Tensor:
        """A token of each row by the library's own noise: int64 [B]. The best one is asked for by a top-k of 1."""
        best_BV, ids_BV = logits_BV.float().sort(descending=True, stable=True)
        ranks_V = torch.arange(best_BV.shape[1])
        best_BV = best_BV.masked_fill(ranks_V >= top_k_B[:, None], -torch.inf) / temperature_B[:, None]
        before_BV = best_BV.softmax(dim=-1).cumsum(dim=-1) - best_BV.softmax(dim=-1)
        best_BV = best_BV.masked_fill((before_BV > top_p_B[:, None]) & (ranks_V > 0), -torch.inf)
        picks_B1 = best_BV.softmax(dim=-1).multinomial(1, generator=self._noise)
        return ids_BV.gather(1, picks_B1).squeeze(1)

    def _run(self, sequences: Sequence[int], ids_T: Tensor, positions_T: Tensor, q_lens: list[int]) -> Tensor:
        assert self._decoder is not None, "load comes first"
        ends_B = torch.tensor(q_lens).cumsum(0)
        q_starts_B = torch.cat((torch.zeros(1, dtype=torch.int64), ends_B))
        kv_lens_B = positions_T[ends_B - 1] + 1
        sequences_B = torch.tensor(sequences)
        slot_mapping_T = sequences_B.repeat_interleave(torch.tensor(q_lens)) * self._length + positions_T
        decodes = len(sequences) if max(q_lens) == 1 else 0
        views = []
        for spec in self._model.attention:
            batch = AttentionBatch(
                q_lens=q_lens,
                kv_lens=kv_lens_B.tolist(),
                num_decodes=decodes,
                q_starts_B=q_starts_B,
                kv_lens_B=kv_lens_B.int(),
                block_tables_BM=sequences_B.int()[:, None],
                slot_mapping_T=slot_mapping_T,
                block_size=self._length,
                window=spec.window,
            )
            views.append(KVView(slot_mapping_T, self._kernels.prepare_attention(batch, spec)))
        rotaries = []
        for table_L2R, rope in zip(self._rotary_tables, self._model.ropes, strict=True):
            cos_sin_T2R, half = table_L2R[positions_T], rope.rotary_dim // 2
            rotaries.append((cos_sin_T2R[:, :half], cos_sin_T2R[:, half:]))
        rows = StepRows(sequences_B, q_starts_B, positions_T[q_starts_B[:-1]], q_lens, decodes, sequences)
        step = Step(ids_T.int(), positions_T, rotaries, rows, views, self._caches, ())
        return self._decoder.logits(self._decoder.hidden(step)).float()


class SlotShard(WholeModelShard):
    """Drives the library; see ``WholeModelShard``."""

    def __init__(
        self, spec: ShardSpec, capabilities: Capabilities, device: Device, *, library_samples: bool = False
    ) -> None:
        super().__init__(spec, capabilities, device)
        self._library = SlotLibrary(spec)
        self.library_samples = library_samples
        if library_samples:
            self.unsupported_parameters = beyond_a_library_that_samples("with --slots-cpu-sampling device")

    @property
    def vocab_size(self) -> int:
        return self._library.vocab_size

    def load_weights(self, progress: LoadProgress) -> None:
        self._library.load(progress)

    def make_caches(self, limits: ShardLimits) -> tuple[int, int]:
        length = limits.max_total_tokens or min(self._library.max_positions, _DEFAULT_TOKENS)
        return length, self._library.allocate(limits.max_slots, length)

    def prefill(self, slot: int, ids_T: Tensor, sampling: SampleInputs | None) -> Tensor:
        logits_TV = self._library.encode_context(slot, ids_T)
        return logits_TV if sampling is None else self._choose(logits_TV[-1:], sampling)

    def decode(self, slots: Sequence[int], ids_B: Tensor, positions_B: Tensor, sampling: SampleInputs | None) -> Tensor:
        order_B = torch.tensor(slots).argsort()
        sequences = [slots[row] for row in order_B.tolist()]
        sorted_BV = self._library.generate(sequences, ids_B[order_B], positions_B[order_B])
        logits_BV = torch.empty_like(sorted_BV).index_copy_(0, order_B, sorted_BV)
        return logits_BV if sampling is None else self._choose(logits_BV, sampling)

    def _choose(self, logits_BV: Tensor, sampling: SampleInputs) -> Tensor:
        draws_B = sampling.do_sample_B
        top_k_B = sampling.top_k_B.where(sampling.top_k_B > 0, self.vocab_size).where(draws_B, 1)
        return self._library.choose(logits_BV, top_k_B, sampling.top_p_B, sampling.temperature_B)
