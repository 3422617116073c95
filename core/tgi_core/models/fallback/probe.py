"""What a transformers model asks of attention, found by running it on tensors without data."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec
from tgi_core.errors import StartupError
from tgi_core.models.fallback.hook import attending, build_arguments, register
from tgi_core.models.fallback.pretrained import Pretrained
from tgi_core.models.fallback.refusal import refuse
from tgi_core.models.fallback.split import SplitModel

_TOKENS = 5


class Probed(NamedTuple):
    """What was found.

    Attributes:
        class_name: of the model.
        layers: the attention of each layer that attends.
        vocab_size: width of the logits.
    """

    class_name: str
    layers: tuple[AttentionSpec, ...]
    vocab_size: int


class RecordsCalls:
    """Notes what each layer's call asks for; attends to nothing."""

    def __init__(self) -> None:
        self.layers: list[AttentionSpec] = []

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, arguments: dict[str, Any]) -> Tensor:
        """See ``Attends``.

        Raises:
            StartupError: the call asks for what paged attention does not do.
        """
        self.layers.append(attention_of_call(q_THD, k_TKD, v_TKD, arguments))
        return q_THD.new_zeros(q_THD.shape[0], q_THD.shape[1], v_TKD.shape[2])


def attention_of_call(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, arguments: dict[str, Any]) -> AttentionSpec:
    """The attention that one call asks for.

    Raises:
        StartupError: it is not causal, or has an argument that paged attention does not know.
    """
    if not arguments.get("is_causal", True):
        raise refuse("its attention looks ahead")
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            raise refuse(f"its attention takes `{name}`, which is not known here")
    head_dim, value_dim = q_THD.shape[2], v_TKD.shape[2]
    if value_dim > head_dim:
        raise refuse(f"its values have {value_dim} features a head, more than the {head_dim} of its keys")
    scale = arguments.get("scaling")
    return AttentionSpec(
        num_heads=q_THD.shape[1],
        num_kv_heads=k_TKD.shape[1],
        head_dim=head_dim,
        scale=head_dim**-0.5 if scale is None else float(scale),
        window=arguments.get("sliding_window"),
        soft_cap=arguments.get("softcap"),
    )


def probe(pretrained: Pretrained) -> Probed:
    """Build the model without weights and run a few tokens through it.

    Raises:
        StartupError: it does not call our attention as it must; the message says how.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    register()
    calls = RecordsCalls()
    # Tensors without data that say they are on the CPU: transformers 4 asks devices for what "meta" does not have.
    # bfloat16, the only type that grouped matrix products of experts take.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        try:
            model = pretrained.build(**build_arguments(torch.bfloat16))
        except Exception as error:  # each architecture has its own way to refuse an attention or a configuration
            raise refuse(f"transformers does not build it with another attention: {_first_line(error)}") from error
        split = SplitModel(model)
        try:
            with torch.no_grad(), attending(calls):
                hidden_TE = split.hidden(torch.zeros(_TOKENS, dtype=torch.int64), torch.arange(_TOKENS))
                vocab_size = split.logits(hidden_TE).shape[-1]
        except StartupError:
            raise
        except Exception as error:  # whatever the architecture's code trips over
            raise refuse(f"its forward cannot be followed without weights: {_first_line(error)}") from error
    _check_layers(calls.layers, pretrained.config.get_text_config())
    return Probed(type(model).__name__, tuple(calls.layers), int(vocab_size))


def _check_layers(layers: list[AttentionSpec], text: Any) -> None:
    expected = text.num_hidden_layers
    if len(layers) != expected:
        raise refuse(f"it called the attention it was given {len(layers)} times for {expected} layers")
    kinds = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    if kinds is None:
        asks = window is not None and getattr(text, "use_sliding_window", True)
        if asks and all(layer.window is None for layer in layers):
            raise refuse(f"its configuration has a sliding window of {window}, of which its attention is not told")
        return
    for kind, layer in zip(kinds, layers, strict=True):
        if kind not in ("full_attention", "sliding_attention"):
            raise refuse(f"it has layers of the type `{kind}`")
        if (kind == "sliding_attention") != (layer.window is not None):
            raise refuse(f"a layer of the type `{kind}` asked for a window of {layer.window}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
