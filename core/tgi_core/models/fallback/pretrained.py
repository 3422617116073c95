"""A model folder as transformers reads it: configuration, class, weights; and whether its own code may run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.fallback.refusal import refuse
from tgi_core.models.hf_config import MOST_LAYERS, HFConfig
from tgi_core.models.model import LoadOptions
from tgi_core.models.quantization import find_quantization
from tgi_core.transformers_log import tell_in_our_log
from tgi_core.weights.checkpoint import Checkpoint

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "context_length")
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_CAUSAL, _SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"


class Pretrained:
    """The model in ``model_dir``, not loaded.

    Args:
        model_dir: the model's folder.
        trust_remote_code: code in the folder may run, where transformers has none for this type of model.

    Attributes:
        config: transformers' configuration.
        has_encoder: an encoder reads the prompt.
        runs_code: the folder's own code is used.

    Raises:
        StartupError: transformers does not know it, or knows it by code that is not trusted.
    """

    def __init__(self, model_dir: Path, *, trust_remote_code: bool = False) -> None:
        self._model_dir = model_dir
        values = HFConfig.read(model_dir)
        # Damage that would make transformers build layers for hours.
        for key in _LAYER_KEYS:
            if values.has(key):
                values.size(key, most=MOST_LAYERS)
        if find_quantization(model_dir, values) is not None:
            raise refuse("its weights are quantized")
        self.runs_code = _needs_code(values)
        if self.runs_code and not trust_remote_code:
            raise StartupError(
                f"it cannot run, because its code is no part of transformers: it lies in {model_dir}, and code from a "
                "model's repository runs only with --trust-remote-code.",
                "Read that code. If you trust it as much as this server, add --trust-remote-code.",
                ExitCode.MODEL,
            )
        self.config = self._read_config()
        self.has_encoder = bool(getattr(self.config, "is_encoder_decoder", False))
        self._auto_class = _SEQ2SEQ if self.has_encoder else _CAUSAL
        self._text = self.config.get_text_config(decoder=True) if self.has_encoder else self.config.get_text_config()

    def _read_config(self) -> Any:
        from transformers import AutoConfig

        tell_in_our_log()
        trusts = self.runs_code
        try:
            config = AutoConfig.from_pretrained(self._model_dir, local_files_only=True, trust_remote_code=trusts)
            # A folder may name a package that is not here, or code in another repository. What attends is our choice.
            config._attn_implementation = None
        except Exception as error:  # a configuration's class may raise anything
            first, *rest = str(error).strip().splitlines() or [type(error).__name__]
            told = f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first
            raise refuse(f"transformers does not know it: {told.rstrip('.')}") from error
        return config

    @property
    def _class(self) -> Any:
        import transformers

        return getattr(transformers, self._auto_class)

    @property
    def class_name(self) -> str:
        """The class of the language model.

        Raises:
            StartupError: there is none.
        """
        if self.runs_code:
            reference = getattr(self.config, "auto_map", {}).get(self._auto_class)
            if reference is None:
                raise refuse(f"its `auto_map` names no `{self._auto_class}`")
            return str(reference).rpartition(".")[2]
        from transformers.models.auto import modeling_auto

        causal, seq2seq = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
        name = getattr(modeling_auto, seq2seq if self.has_encoder else causal).get(self.config.model_type)
        if name is None:
            raise refuse("transformers has no language model of this type")
        return str(name)

    @property
    def vocab_size(self) -> int:
        """As the configuration says; the width of the logits, unless they are padded."""
        size = getattr(self._text, "vocab_size", None)
        if not isinstance(size, int):
            raise refuse("its configuration has no `vocab_size`")
        return size

    @property
    def rotation_follows_length(self) -> bool:
        """Whether rotary embeddings depend on the longest sequence of a forward."""
        text = self._text
        ropes = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
        every = [ropes, *(rope for rope in ropes.values() if isinstance(rope, dict))]
        return any(rope.get(key) in ("dynamic", "longrope") for rope in every for key in ("rope_type", "type"))

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the configuration speaks of; where there is an encoder, the decoder's."""
        return self._longest("max_decoder_position_embeddings")

    @property
    def max_encoder_positions(self) -> int | None:
        """The longest input of the encoder that the configuration speaks of."""
        return self._longest("max_encoder_position_embeddings")

    def _longest(self, key_of_side: str) -> int | None:
        for key in (key_of_side, *_CONTEXT_KEYS):
            try:
                value = getattr(self._text, key, None)
            except NotImplementedError:  # a property of models that know no limit
                continue
            if isinstance(value, int) and value > 0:
                return value
        return None

    def build(self, **how: Any) -> Any:
        """The model with random weights; ``how`` goes to transformers.

        Raises:
            Exception: whatever the architecture's code raises.
        """
        # A copy: what is asked of attention is written into it.
        config = copy.deepcopy(self.config)
        return self._class.from_config(config, trust_remote_code=self.runs_code, **how).eval()

    def load(self, options: LoadOptions, **how: Any) -> Any:
        """The model with its weights on the device; ``how`` goes to transformers.

        Raises:
            StartupError: weights are missing, are left over, or have other shapes.
        """
        from transformers.utils import logging

        if options.load_format == "dummy":
            return self.build(**how).to(options.device)
        stored = Checkpoint.open(self._model_dir)
        _refuse_whole_numbers(stored)
        total_bytes = stored.total_bytes
        options.progress(0, total_bytes)
        logging.disable_progress_bar()
        try:
            model, report = self._class.from_pretrained(
                self._model_dir,
                config=copy.deepcopy(self.config),
                **how,
                local_files_only=True,
                trust_remote_code=self.runs_code,
                use_safetensors=True,
                output_loading_info=True,
                # The report names them, and the error would not.
                ignore_mismatched_sizes=True,
            )
        except Exception as error:  # an architecture's code may raise anything
            raise StartupError(
                f"Transformers cannot load the weights in {self._model_dir}: {str(error) or type(error).__name__}.",
                "Check that config.json belongs to these weights, and that what the model's code imports is installed.",
                ExitCode.MODEL,
            ) from error
        for entry in sorted(report["mismatched_keys"]):
            # transformers 5 tells the shapes too.
            name = entry if isinstance(entry, str) else entry[0]
            found = f"shape {list(stored.shape(name))}" if name in stored.names else "another shape"
            expected = list(model.state_dict()[name].shape)
            raise StartupError(
                f"Tensor `{name}` in {self._model_dir} has {found}, the model asks for {expected}.",
                "Check that config.json belongs to these weights.",
                ExitCode.MODEL,
            )
        for kind, told in (("missing_keys", "lacks"), ("unexpected_keys", "has, beyond what the model uses,")):
            names = sorted(report[kind])
            if names:
                raise StartupError(
                    f"The checkpoint in {self._model_dir} {told} {len(names)} tensors: {', '.join(names[:5])}.",
                    "Check that config.json belongs to these weights.",
                    ExitCode.MODEL,
                )
        options.progress(total_bytes, total_bytes)
        return model.eval().to(options.device)


def _refuse_whole_numbers(stored: Checkpoint) -> None:
    """Transformers would take them for weights; masks and indexes are no matrices of that name."""
    for name in sorted(stored.names):
        is_float = stored.dtype(name).startswith(("F", "BF"))
        if name.endswith("weight") and len(stored.shape(name)) > 1 and not is_float:
            raise StartupError(
                f"Tensor `{name}` in {stored.file_name(name)} has type {stored.dtype(name)}, config.json says of no "
                "quantization that makes weights of it.",
                "Check that config.json belongs to these weights.",
                ExitCode.MODEL,
            )


def dtype_argument(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """What makes transformers build a model in ``dtype``."""
    import transformers

    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}


def size_bytes(*modules: Any) -> int:
    """Memory of all weights; what is tied counts once."""
    sizes = {
        tensor.data_ptr(): tensor.nbytes for module in modules for tensor in (*module.parameters(), *module.buffers())
    }
    return sum(sizes.values())


def _needs_code(values: HFConfig) -> bool:
    """Whether only the folder's code knows the model; what transformers has itself is taken from there."""
    if not values.has("auto_map"):
        return False
    from transformers import CONFIG_MAPPING

    return values.get("model_type", str, "") not in CONFIG_MAPPING
