"""How an engine's limits come out of what was asked for, the model and the backend."""

from __future__ import annotations

import pytest

from tests.support.paged_model import make_budget
from tgi_core.config import EngineConfig
from tgi_core.contract import Capabilities, UnsupportedParameter
from tgi_core.engine.limits import check_unsupported
from tgi_core.engine.process import choose_dtype, choose_max_input_tokens, choose_max_total_tokens
from tgi_core.errors import ExitCode, StartupError
from tgi_core.testing.null_backend import NullBackend

BUDGET = make_budget(16, [64], [None], 512)


def config(**limits: int) -> EngineConfig:
    return EngineConfig(backend="null", dtype="auto", max_step_tokens=64, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "checkpoint", "expected"),
    [
        ("auto", "bfloat16", "bfloat16"),
        ("auto", "float16", "bfloat16"),
        ("float32", "bfloat16", "float32"),
    ],
)
def test_dtype(asked: str, checkpoint: str, expected: str) -> None:
    capabilities = Capabilities(dtypes=("bfloat16", "float32"))
    assert choose_dtype(asked, checkpoint, NullBackend(), capabilities) == expected


def test_a_dtype_the_backend_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(StartupError) as caught:
        choose_dtype("float16", "bfloat16", NullBackend(), Capabilities(dtypes=("bfloat16", "float32")))
    assert caught.value.exit_code is ExitCode.BACKEND
    assert "bfloat16, float32" in caught.value.fix


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    assert choose_max_input_tokens(config(), BUDGET) == 511
    assert choose_max_input_tokens(config(max_input_tokens=100), BUDGET) == 100


def test_a_prompt_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(StartupError, match="512"):
        choose_max_input_tokens(config(max_input_tokens=512), BUDGET)


def test_without_chunks_a_step_holds_the_longest_sequence() -> None:
    """A preempted request computes its prompt and its output in one step."""
    assert choose_max_total_tokens(config(), 8192, chunked_prefill=False) == 64
    assert choose_max_total_tokens(config(), 32, chunked_prefill=False) == 32
    assert choose_max_total_tokens(config(), 8192, chunked_prefill=True) is None
    with pytest.raises(StartupError, match="--max-batch-prefill-tokens 100"):
        choose_max_total_tokens(config(max_total_tokens=100), 8192, chunked_prefill=False)


def test_a_shard_may_name_what_requests_can_ask_for_and_nothing_else() -> None:
    known = [UnsupportedParameter(name, "no") for name in ("seed", "watermark_delta", "grammar", "prompt_logprobs")]
    assert check_unsupported(known) == known
    with pytest.raises(StartupError, match="`watermark`, which is no parameter"):
        check_unsupported([UnsupportedParameter("watermark", "no")])
