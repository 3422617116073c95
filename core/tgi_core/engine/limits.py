"""What backend, user and model together leave possible. Imported without the engine's channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tgi_core.config import EngineConfig
from tgi_core.contract import Capabilities, KVBudget, UnsupportedParameter
from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder
from tgi_core.sampling.params import SamplingParams

if TYPE_CHECKING:
    from tgi_core.models.model import Model

_ABILITIES = ("grammar", "logprobs", "prompt_logprobs")


def may_chunk_prefill(config: EngineConfig, capabilities: Capabilities) -> bool:
    """Whether backend and user let a prompt be computed over several steps; the model may still not."""
    return capabilities.chunked_prefill and config.chunked_prefill


def prefix_cache_obstacle(model: Model, *, has_encoder: bool) -> str:
    """Why blocks of equal beginnings are not shared, whatever the user asks for; "" where they may be."""
    if has_encoder:
        return "what the decoder computes depends on the encoder's whole input"
    if model.states:
        return "its layers keep a state of each sequence, which blocks do not hold"
    if not model.attention:
        return "it has a cache of its own, which sequences cannot share"
    return ""


def prefill_chunking_of(model: Model, *, has_encoder: bool) -> tuple[bool | None, str]:
    """Whether the model lets a prompt be computed over several steps, and why not; None where loading it tells."""
    if has_encoder:
        return False, "an encoder reads its input in one step"
    if not model.attention and not model.states:
        return None, "a trial of its own cache tells when it is loaded"
    return True, ""


def find_decoder_prompt(folder: ModelFolder, budget: KVBudget) -> tuple[int, ...]:
    """What every output of a model with an encoder follows; empty for other models.

    Raises:
        StartupError: the folder does not say it, or it leaves no room for an output.
    """
    if not budget.max_encoder_tokens:
        return ()
    prompt = folder.decoder_prompt
    if not 0 < len(prompt) < budget.max_total_tokens:
        raise StartupError(
            f"`max_total_tokens` is {budget.max_total_tokens}, and the decoder starts with {len(prompt)} tokens.",
            "Raise --max-total-tokens.",
            ExitCode.USAGE,
        )
    return prompt


def check_unsupported(parameters: Sequence[UnsupportedParameter]) -> list[UnsupportedParameter]:
    """What a shard says it cannot do for requests.

    Raises:
        StartupError: it names a parameter that nothing would ever refuse.
    """
    for parameter in parameters:
        if parameter.name not in (*SamplingParams.__struct_fields__, *_ABILITIES):
            raise StartupError(
                f"The backend's shard does not support `{parameter.name}`, which is no parameter of requests.",
                "Install another release of the backend's plugin.",
                ExitCode.BACKEND,
            )
    return list(parameters)
