"""A model that transformers describes, run over our paged attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.fallback.decoder import TransformersDecoder
from tgi_core.models.fallback.guard import check_model
from tgi_core.models.fallback.hook import build_arguments
from tgi_core.models.fallback.probe import probe
from tgi_core.models.fallback.refusal import refuse
from tgi_core.models.hf_config import MOST_LAYERS, HFConfig
from tgi_core.models.model import Loaded, LoadOptions, SlotState
from tgi_core.models.spec import RopeSpec
from tgi_core.weights.checkpoint import Checkpoint

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


class TransformersModel:
    """See ``Model``.

    Args:
        model_dir: the model's folder.
        reason: why no architecture of ours runs it.

    Raises:
        StartupError: transformers does not know it either, or it cannot run over our attention.
    """

    ropes: tuple[RopeSpec, ...] = ()
    states: tuple[SlotState, ...] = ()

    def __init__(self, model_dir: Path, *, reason: str) -> None:
        self.reason = reason
        self._model_dir = model_dir
        self._config = _read_config(model_dir)
        probed = probe(self._config)
        self._layers = probed.layers
        self.path = f"transformers' `{probed.class_name}` over paged attention"
        self.vocab_size = probed.vocab_size
        self.max_positions = _max_positions(self._config.get_text_config())
        self.attention: tuple[AttentionSpec, ...] = tuple(dict.fromkeys(probed.layers))
        self.group_of_layer = tuple(self.attention.index(layer) for layer in probed.layers)

    def records(self, kernels: Kernels) -> bool:  # noqa: ARG002 - whatever they can
        """Transformers' code may look at values on the host."""
        return False

    @torch.inference_mode()
    def load(self, options: LoadOptions) -> Loaded:
        """Let transformers load its model, then prove that it computes the same over our attention."""
        split, hidden_E = check_model(self._load(options).eval(), self._layers)
        decoder = TransformersDecoder(split, hidden_E, self.attention, self.group_of_layer, options.attention_kernels)
        return Loaded(decoder, split.size_bytes())

    def _load(self, options: LoadOptions) -> Any:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        if options.load_format == "dummy":
            return AutoModelForCausalLM.from_config(self._config, **build_arguments(options.dtype)).to(options.device)
        total_bytes = Checkpoint.open(self._model_dir).total_bytes
        options.progress(0, total_bytes)
        logging.disable_progress_bar()
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                self._model_dir,
                config=self._config,
                **build_arguments(options.dtype),
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise StartupError(
                f"Transformers cannot load the weights in {self._model_dir}: {error}.",
                "Check that config.json belongs to these weights.",
                ExitCode.MODEL,
            ) from error
        for kind, told in (("missing_keys", "lacks"), ("unexpected_keys", "has, beyond what the model uses,")):
            names = sorted(report[kind])
            if names:
                raise StartupError(
                    f"The checkpoint in {self._model_dir} {told} {len(names)} tensors: {', '.join(names[:5])}.",
                    "Check that config.json belongs to these weights.",
                    ExitCode.MODEL,
                )
        options.progress(total_bytes, total_bytes)
        return model.to(options.device)


def _read_config(model_dir: Path) -> Any:
    values = HFConfig.read(model_dir)
    # Damage that would make transformers build layers for hours.
    values.size("num_hidden_layers", 1, most=MOST_LAYERS)
    if values.has("quantization_config"):
        raise refuse("its weights are quantized")
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a configuration's class may raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise refuse(f"transformers does not know it: {lines[0].rstrip('.')}") from error


def _max_positions(text: Any) -> int:
    for key in _CONTEXT_KEYS:
        value = getattr(text, key, None)
        if isinstance(value, int) and value > 0:
            return value
    raise refuse("its configuration does not say how long a sequence may be")
