"""``quantize``, TGI's command to make GPTQ weights: scripts that call it are told what to do instead."""

from __future__ import annotations

import click


@click.command(
    "quantize",
    help="Not supported: refuses, and says what helps.",
    # Whatever it is given, the answer is the same.
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1)
def _quantize(words: tuple[str, ...]) -> None:
    raise click.UsageError(
        f"quantize {' '.join(words)} is not supported: models are not quantized here. Quantize the model with the "
        "library of its format, or serve a GGUF file, whose weights are converted when it is loaded."
    )


QUANTIZE: click.Command = _quantize
