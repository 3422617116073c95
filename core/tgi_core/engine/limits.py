"""What backend, user and model together leave possible. Imported without the engine's channel."""

from __future__ import annotations

from tgi_core.config import EngineConfig
from tgi_core.contract import Capabilities, KVBudget
from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder


def may_chunk_prefill(config: EngineConfig, capabilities: Capabilities) -> bool:
    """Whether backend and user let a prompt be computed over several steps; the model may still not."""
    return capabilities.chunked_prefill and config.chunked_prefill


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
