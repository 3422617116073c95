"""Which implementation of attention a model gets. Loads torch only where the backend has several of them."""

from __future__ import annotations

from pathlib import Path

from tgi_core.contract import AttentionChoice, AttentionOption, AttentionUse, Backend
from tgi_core.errors import ExitCode, StartupError

AUTO = "auto"


def check_attention_name(backend: Backend, wanted: str) -> None:
    """Refuse a name that the backend does not know.

    Raises:
        StartupError: there is no such implementation; the message lists those there are.
    """
    names = backend.capabilities().attention
    if wanted not in (AUTO, *names):
        raise StartupError(
            f"Backend `{backend.info.name}` has no attention `{wanted}`.",
            f"Use --attention with one of: {', '.join((AUTO, *names))}, or leave it out.",
            ExitCode.BACKEND,
        )


def list_attention(
    backend: Backend, model_dir: Path, dtype: str, block_size: int, *, trust_remote_code: bool = False
) -> tuple[AttentionUse, tuple[AttentionOption, ...]]:
    """What the model asks of attention, and every implementation the backend has, in the order "auto" tries them.

    Args:
        backend: whose implementations.
        model_dir: a folder with the model's config.json.
        dtype: of activations and KV cache.
        block_size: tokens in a KV block.
        trust_remote_code: code in the model's folder may run.

    Raises:
        StartupError: the backend has several, and the model's architecture is not known.
    """
    names = backend.capabilities().attention
    if len(names) == 1:
        # The backend may own whole models whose configuration says nothing to the core.
        use = AttentionUse(specs=(), dtype=dtype, block_size=block_size)
        return use, (AttentionOption(name=names[0], remark="the only one of this backend"),)
    from tgi_core.models.choose import choose_model

    specs = choose_model(model_dir, trust_remote_code=trust_remote_code).attention
    use = AttentionUse(specs=specs, dtype=dtype, block_size=block_size)
    return use, backend.attention_options(use)


def choose_attention(
    backend: Backend, wanted: str, model_dir: Path, dtype: str, block_size: int, *, trust_remote_code: bool = False
) -> AttentionChoice:
    """The implementation called ``wanted``, or with "auto" the first that may be taken; see ``list_attention``.

    Raises:
        StartupError: there is no such implementation, or something stands in its way.
    """
    check_attention_name(backend, wanted)
    use, options = list_attention(backend, model_dir, dtype, block_size, trust_remote_code=trust_remote_code)
    if wanted == AUTO:
        option = next(option for option in options if option.automatic and not option.obstacle)
        return AttentionChoice(option.name, option.remark, use)
    option = next(option for option in options if option.name == wanted)
    if option.obstacle:
        raise StartupError(
            f"Attention `{wanted}` cannot be used, because {option.obstacle}.",
            f"{option.fix} Or use --attention auto.".lstrip(),
            ExitCode.BACKEND,
        )
    return AttentionChoice(option.name, "it was asked for", use)
