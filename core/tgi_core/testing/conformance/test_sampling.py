"""Level shard: every sampling parameter gives the reference's tokens, whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.oracle import check_same
from tgi_core.testing.conformance.running import Ask, Reply, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.tolerance import TOLERANCES
from tgi_core.testing.levels import Level
from tgi_core.testing.reference_backend import ReferenceBackend
from tgi_core.testing.sampling_rows import EVERY_PARAMETER

pytestmark = pytest.mark.tgi_level(Level.SHARD)

_EOS = (5,)


def test_every_parameter(computing: Subject, tmp_path: Path) -> None:
    """In one batch here, and one by one on the reference backend."""
    dtype = computing.exact_dtype
    if dtype != "float32":
        pytest.skip("without float32 another rounding may draw another token")
    write_checkpoint(tmp_path, model_configs(computing.head_dim)["qwen3"])
    count = len(EVERY_PARAMETER)
    with start(computing.backend, tmp_path, dtype, max_slots=count, eos_token_ids=_EOS) as running:
        scores_prompts = all(cannot.name != "prompt_logprobs" for cannot in running.shard.unsupported_parameters)
        asks = [
            Ask([7 + index, 9, 11, 12], 12, params, prompt_logprobs=scores_prompts and index % 2 == 0)
            for index, params in enumerate(EVERY_PARAMETER)
        ]
        together = running.serve(asks)
    with start(ReferenceBackend(), tmp_path, dtype, eos_token_ids=_EOS) as running:
        alone = [running.serve([ask])[0] for ask in asks]
    bound = TOLERANCES[dtype].logprob
    for reply, expected in zip(together, alone, strict=True):
        what = f"{reply.ask.sampling} in a batch, and alone on the reference"
        if reply.token_ids != expected.token_ids:
            raise ConformanceError(f"{what}: {reply.token_ids} and {expected.token_ids}.")
        check_same([reply], [expected], bound, what)
        _check_tops(reply, expected, bound, what)
        if reply.prompt_logprobs != pytest.approx(expected.prompt_logprobs, abs=bound):
            raise ConformanceError(
                f"Log-probabilities of the prompt, {what}: {reply.prompt_logprobs} and {expected.prompt_logprobs}."
            )


def _check_tops(reply: Reply, expected: Reply, bound: float, what: str) -> None:
    for top, other in zip(reply.tops, expected.tops, strict=True):
        if (top is None) != (other is None):
            raise ConformanceError(f"Alternatives, {what}: {top} and {other}.")
        if top is None or other is None:
            continue
        known = dict(zip(other.token_ids, other.logprobs, strict=True))
        # Which of those that are about equally likely are still told, and in which order, roundings decide.
        strange = [
            token_id
            for token_id, logprob in zip(top.token_ids, top.logprobs, strict=True)
            if abs(logprob - known.get(token_id, other.logprobs[-1])) > bound
        ]
        if strange or top.logprobs != pytest.approx(other.logprobs, abs=bound):
            raise ConformanceError(f"Alternatives, {what}: {top} and {other}.")
