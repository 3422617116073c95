"""How an engine's limits come out of what was asked for, the model and the backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.paged_model import make_budget
from tgi_core.config import ApiConfig, EngineConfig, ModelConfig, ServerConfig
from tgi_core.contract import Capabilities, ShardLimits
from tgi_core.engine.process import choose_dtype, choose_max_input_tokens
from tgi_core.errors import ExitCode, StartupError
from tgi_core.testing.null_backend import NullBackend

LIMITS = ShardLimits(max_slots=4, max_step_tokens=64, block_size=16)
BUDGET = make_budget(16, [64], [None], 512)


def config(max_input_tokens: int | None) -> ServerConfig:
    return ServerConfig(
        model=ModelConfig(model_id="m", model_dir=Path("m")),
        engine=EngineConfig(backend="null", dtype="auto", max_input_tokens=max_input_tokens),
        api=ApiConfig(),
    )


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
    assert choose_max_input_tokens(config(None), BUDGET, LIMITS, chunked_prefill=True) == 511
    assert choose_max_input_tokens(config(100), BUDGET, LIMITS, chunked_prefill=True) == 100


def test_without_chunks_a_prompt_must_fit_a_step() -> None:
    assert choose_max_input_tokens(config(None), BUDGET, LIMITS, chunked_prefill=False) == 64


def test_a_prompt_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(StartupError, match="511"):
        choose_max_input_tokens(config(512), BUDGET, LIMITS, chunked_prefill=True)
