"""Models with transformers' own cache: transformers' greedy tokens, with chunks, changing batches and preemptions."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.hf_versions import rope_settings
from tests.support.other_models import VOCAB, make_other
from tests.support.own_cache_models import CONFIGS
from tests.support.shards import WatchedReference, start_shard
from tests.support.tiny_models import rewrite_config
from tgi_core.contract.states import StepRows
from tgi_core.errors import StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.fallback.own_cache import decoder as decoder_module
from tgi_core.models.fallback.own_cache.decoder import OwnCacheDecoder
from tgi_core.models.fallback.own_cache.forward import Forward
from tgi_core.models.fallback.own_cache.model import OwnCacheModel
from tgi_core.models.fallback.own_cache.rows import merge_caches
from tgi_core.models.fallback.pretrained import Pretrained
from tgi_core.models.model import LoadOptions, OwnCache
from tgi_core.models.step import Step
from tgi_core.reference import ReferenceKernels

_STATES = CONFIGS["falcon_h1"]


@pytest.mark.parametrize("model_type", CONFIGS)
def test_tokens_and_logits_equal_transformers(model_type: str, tmp_path: Path) -> None:
    model = make_other(model_type, tmp_path, **CONFIGS[model_type])
    chosen = choose_model(tmp_path)
    assert chosen.path == f"transformers' `{type(model).__name__}` with its own attention and cache"
    assert "there is no architecture of this type" in chosen.reason
    assert "Transformers' model over our attention: it cannot run" in chosen.reason
    replies = reply_under_pressure(tmp_path, WatchedReference(), make_prompts(VOCAB), cache_tokens=112)
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)


@pytest.mark.parametrize("name", ["flash_attention_2", "someone/attention"])
def test_what_a_folder_says_of_attention_is_not_looked_for(name: str, tmp_path: Path) -> None:
    make_other("lfm2", tmp_path, **CONFIGS["lfm2"])
    rewrite_config(tmp_path, {"attn_implementation": name, "_attn_implementation": name})
    load(tmp_path)


def load(folder: Path, *, dtype: torch.dtype = torch.float32) -> tuple[OwnCacheDecoder, OwnCache, tuple[str, ...]]:
    options = LoadOptions("auto", dtype, torch.device("cpu"), ReferenceKernels(), (), lambda done, total: None)
    loaded = OwnCacheModel(Pretrained(folder), reason="").load(options)
    assert isinstance(loaded.model, OwnCacheDecoder)
    assert loaded.own_cache is not None
    return loaded.model, loaded.own_cache, loaded.notes


def compute(decoder: OwnCacheDecoder, tokens: dict[int, list[int]]) -> dict[int, Tensor]:
    """One step: the next tokens of some slots; returns the logits of each slot's last one."""
    q_lens = [len(ids) for ids in tokens.values()]
    q_starts = torch.tensor([0, *accumulate(q_lens)])
    slots = list(tokens)
    ids_T = torch.tensor([token for ids in tokens.values() for token in ids], dtype=torch.int32)
    rows = StepRows(torch.tensor(slots), q_starts, torch.zeros(len(slots)), q_lens, q_lens.count(1), slots)
    logits_TV = decoder.logits(decoder.hidden(Step(ids_T, torch.empty(0), (), rows, (), (), ())))
    return {slot: logits_TV[end - 1] for slot, end in zip(slots, q_starts[1:].tolist(), strict=True)}


@torch.inference_mode()
@pytest.mark.parametrize(("model_type", "changes"), [("gemma2", {"sliding_window": 6}), ("falcon_h1", _STATES)])
def test_slots_come_and_go(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_other(model_type, tmp_path, **changes)
    decoder, own_cache, notes = load(tmp_path)
    # With transformers 4 a cap is left out of attention, and the cache of a hybrid is of its own kind.
    assert bool(notes) == (transformers.__version__ < "5")
    random = Random(0)
    next_lens = [1] if own_cache.whole_prompts else [1, 1, 1, 1, 1, 4]
    sequences: dict[int, list[int]] = {}
    for _ in range(40):
        tokens = {}
        for slot in range(5):
            if slot not in sequences:
                if random.random() < 0.3:
                    tokens[slot] = [random.randrange(VOCAB) for _ in range(random.choice([1, 3, 9, 30]))]
                    sequences[slot] = []
            elif random.random() < 0.1:
                own_cache.free([slot])
                del sequences[slot]
            elif random.random() < 0.9:
                tokens[slot] = [random.randrange(VOCAB) for _ in range(random.choice(next_lens))]
        if not tokens:
            continue
        for slot, logits_V in compute(decoder, tokens).items():
            sequences[slot] += tokens[slot]
            expected_V = model(torch.tensor([sequences[slot]]), use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits_V, expected_V, rtol=1e-4, atol=1e-4)
    own_cache.free(range(5))
    assert not decoder._alone
    assert not decoder._batches


def test_a_batch_lasts_while_the_same_slots_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_other("gpt_neox_japanese", tmp_path)
    decoder, own_cache, _ = load(tmp_path)
    merged: list[list[int]] = []

    def merge(caches: list[Any], lengths: list[int]) -> Any:
        merged.append(list(lengths))
        return merge_caches(caches, lengths)

    monkeypatch.setattr(decoder_module, "merge_caches", merge)
    with torch.inference_mode():
        compute(decoder, {0: [5] * 9, 1: [6] * 7, 2: [7] * 40})
        for _ in range(3):
            compute(decoder, {0: [5], 1: [6], 2: [7]})
        assert merged == [[9, 7]], "two short rows beside a long one: a batch of all would be mostly padding"
        own_cache.free([1])
        compute(decoder, {0: [5], 2: [7]})
        compute(decoder, {0: [5]})
        assert len(merged) == 1, "a row by itself needs no batch"


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({}, []),
        ({3: 5}, [(3,)]),
        ({0: 10, 1: 10, 2: 10}, [(0, 1, 2)]),
        ({0: 10, 1: 9, 2: 100}, [(2,), (0, 1)]),
        ({0: 100, 1: 90, 2: 50, 3: 1, 4: 1}, [(0, 1, 2), (3, 4)]),
    ],
)
def test_batches_are_no_more_than_a_third_padding(lengths: dict[int, int], expected: list[tuple[int, ...]]) -> None:
    assert decoder_module._partition(lengths) == expected


def test_caches_are_counted_as_memory(tmp_path: Path) -> None:
    make_other("falcon_h1", tmp_path, **CONFIGS["falcon_h1"])
    shard, budget = start_shard(tmp_path, WatchedReference())
    _, own_cache, _ = load(tmp_path)
    # Keys and values of 3 layers with 2 heads of 16 features.
    keys_values_bytes = 3 * 2 * 2 * 16 * 4
    assert own_cache.bytes_per_token in (keys_values_bytes, 2 * keys_values_bytes)
    [group] = budget.groups
    assert group.group.bytes_per_block == 16 * own_cache.bytes_per_token
    assert group.group.window is None
    assert budget.has_states
    sizes = {line.name: line.size_bytes for line in budget.memory}
    assert sizes["slot states"] == 7 * own_cache.bytes_per_slot > 0
    shard.close()


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta"])
def test_models_that_look_ahead_are_refused(model_type: str, tmp_path: Path) -> None:
    make_other(model_type, tmp_path, pad_token_id=1)
    with pytest.raises(StartupError, match=r"logits change by \d+\.\d% with the tokens behind them"):
        start_shard(tmp_path, WatchedReference())


def test_types_without_a_language_model_are_refused(tmp_path: Path) -> None:
    make_other("gpt_neox_japanese", tmp_path)
    for change in ({"is_encoder_decoder": True}, {"model_type": "vit", "is_encoder_decoder": False}):
        rewrite_config(tmp_path, change)
        with pytest.raises(StartupError, match=r"its own cache: .* transformers has no language model of this type"):
            choose_model(tmp_path)


def test_rotation_that_depends_on_the_longest_sequence_runs_alone_and_whole(tmp_path: Path) -> None:
    make_other("arcee", tmp_path, **rope_settings({"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}))
    _, own_cache, notes = load(tmp_path)
    assert own_cache.whole_prompts
    assert len(notes) == 2
    assert all("its rotary embeddings depend on the longest sequence of a forward" in note for note in notes)


def test_what_cannot_be_proved_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_other("gpt_neox_japanese", tmp_path)
    go_on = Forward.go_on

    def no_padding(self: Forward, ids_BT: Tensor, cache: Any, start: int, padding: Any = None) -> tuple[Tensor, Any]:
        logits_BTV, cache = go_on(self, ids_BT, cache, start, padding)
        return (logits_BTV if padding is None else -logits_BTV), cache

    monkeypatch.setattr(Forward, "go_on", no_padding)
    _, own_cache, notes = load(tmp_path)
    assert notes == (
        "requests are computed one after the other, since a batch is not possible: its logits were off by 200.0%",
    )
    monkeypatch.setattr(Forward, "go_on", lambda self, ids_BT, cache, start, padding=None: (self.whole(ids_BT), 1))
    _, own_cache, notes = load(tmp_path)
    assert own_cache[:3] == (0, 0, True)
    assert "every token computes its whole sequence" in notes[0]
