"""What can be known about a start before weights are loaded: what would be chosen, and what would be refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tgi_api.cli.settings import ServeSettings, make_config
from tgi_api.cli.summary import size_text
from tgi_core.contract import AttentionChoice, AttentionOption, AttentionUse, Backend, ShapeMode
from tgi_core.engine.attention import choose_attention, list_attention
from tgi_core.errors import StartupError, TemplateError
from tgi_core.model_folder import ModelFolder
from tgi_core.plugins import ask_capabilities
from tgi_core.requests.chat_format import ChatFormats

T = TypeVar("T")

_NO_ATTENTION = AttentionChoice("", "", AttentionUse(specs=(), dtype="", block_size=0))
"""Stands where the choice was refused."""


class Inspection:
    """Asks what the API process and the engine would ask, in one process and without a device.

    Args:
        settings: checked settings.
        backend: the chosen one.
        model_dir: the model's folder; it may lack weights that a start would bring.

    Attributes:
        settings, backend, capabilities: the settings, the backend and what it can do.
        refusals: everything a start would refuse; the attributes below hold only where there are none.
        model: facts about the model, by name.
        model_max_tokens: the longest sequence the model was made for; None where its configuration does not say.
        max_total_tokens: the longest sequence the engine would ask for; None leaves it to model and memory.
        checkpoint_dtype, dtype: the checkpoint's type, and the one to compute in.
        no_prefix_caching: why the model does not let the cache of equal beginnings be shared; "" where it does.
        prefill_chunking: whether the model lets prompts be computed over several steps, None where only loading it
            tells, and what there is to say about it.
        attention_options, attention: the backend's implementations for this model, and the one that is taken.
        chat: how the model talks; None where chat is not possible.
        notes: what else a user should know.

    Raises:
        StartupError: there is no readable config.json.
    """

    def __init__(self, settings: ServeSettings, backend: Backend, model_dir: Path) -> None:
        from tgi_core.engine.process import choose_dtype, choose_max_total_tokens

        self.settings = settings
        self.backend = backend
        self.capabilities = capabilities = ask_capabilities(backend)
        self.refusals: list[StartupError] = []
        self.notes: list[str] = []
        self._folder = folder = ModelFolder(
            model_dir, tokenizer_config_path=settings.tokenizer_config_path, chat_template=settings.chat_template
        )
        self.no_prefix_caching = ""
        self.prefill_chunking: tuple[bool | None, str] = (True, "")
        self.chat = self._try(self._check_texts, None)
        self.model: dict[str, str] = self._try(self._describe_model, {})
        self.model_max_tokens = self._try(lambda: folder.max_position_embeddings, None)
        config = make_config(settings, backend=backend.info.name, model_dir=model_dir, port=settings.port)
        self.max_total_tokens = self._try(
            lambda: choose_max_total_tokens(
                config.engine,
                self.model_max_tokens,
                chunked_prefill=capabilities.chunked_prefill and settings.prefill_chunking,
            ),
            None,
        )
        self.checkpoint_dtype = folder.dtype_name
        self.dtype = self._try(
            lambda: choose_dtype(settings.dtype, folder.dtype_name, backend, capabilities), capabilities.dtypes[0]
        )
        use = (model_dir, self.dtype, settings.block_size or capabilities.block_sizes[0])
        trusted = settings.trust_remote_code
        self.attention = self._try(
            lambda: choose_attention(backend, settings.attention, *use, trust_remote_code=trusted), _NO_ATTENTION
        )
        self.attention_options: tuple[AttentionOption, ...] = self._try(
            lambda: list_attention(backend, *use, trust_remote_code=trusted)[1], ()
        )

    def _try(self, work: Callable[[], T], otherwise: T) -> T:
        """What ``work`` finds; a refusal is kept, once, though several questions meet it."""
        try:
            return work()
        except StartupError as error:
            if str(error) not in map(str, self.refusals):
                self.refusals.append(error)
            return otherwise

    def _check_texts(self) -> ChatFormats | None:
        """Read what the API process reads; how the model talks, None when it has no usable chat template."""
        from tgi_api.server import find_defaults, load_chat
        from tgi_core.requests.tokenizer_python import describe_python, open_tokenizer

        tokenizer = open_tokenizer(self._folder, workers=1, trust_remote_code=self.settings.trust_remote_code)
        tokenizer.close()
        if note := describe_python(tokenizer):
            self.notes.append(f"{note}.")
        find_defaults(self.settings.generation_config, self._folder)
        chat = load_chat(self._folder, self.settings.tool_call_parser, self.settings.reasoning_parser)
        if isinstance(chat, TemplateError):
            self.notes.append(f"Chat is not available: {chat.detail}.")
            return None
        return chat

    def _describe_model(self) -> dict[str, str]:
        folder = self._folder
        longest = folder.max_position_embeddings
        facts = {
            "folder": str(folder.path),
            "architecture": folder.model_type,
            "vocabulary": f"{folder.vocab_size} tokens",
            "context": "not said" if longest is None else f"{longest} tokens",
            "checkpoint's type": folder.dtype_name,
            "ends with tokens": ", ".join(map(str, sorted(folder.eos_token_ids))) or "none",
        }
        if self.capabilities.shape_mode is ShapeMode.WHOLE_MODEL:
            return facts | {"weights": "the backend's own affair"}
        from tgi_core.engine.limits import prefill_chunking_of, prefix_cache_obstacle
        from tgi_core.models.choose import choose_model
        from tgi_core.shards.memory import check_max_total_tokens

        model = choose_model(folder.path, trust_remote_code=self.settings.trust_remote_code)
        has_encoder = any(spec.cross for spec in model.attention) or bool(folder.config.get("is_encoder_decoder"))
        self.no_prefix_caching = prefix_cache_obstacle(model, has_encoder=has_encoder)
        self.prefill_chunking = prefill_chunking_of(model, has_encoder=has_encoder)
        check_max_total_tokens(self.settings.max_total_tokens, model.max_positions * (1 + has_encoder))
        if has_encoder:
            facts["context"] = f"{model.max_positions} tokens for the encoder, and as many for the decoder"
            facts["decoder starts with tokens"] = ", ".join(map(str, folder.decoder_prompt))
        runs_as = model.path if not model.reason else f"{model.path}. {model.reason}"
        return facts | {"runs as": runs_as, "weights": self._describe_weights()}

    def _describe_weights(self) -> str:
        """Read the headers of what is there."""
        from tgi_core.weights.checkpoint import Checkpoint
        from tgi_core.weights.pickled import find_pickled
        from tgi_core.weights.serving import has_safetensors

        settings, model_dir = self.settings, self._folder.path
        if settings.load_format == "dummy":
            return "random, made on the device"
        given = settings.weights_cache_override or Path(settings.model_id or "").expanduser()
        if not has_safetensors(model_dir) and (given != model_dir or find_pickled(model_dir)):
            return "downloaded or converted at start"
        checkpoint = Checkpoint.open(model_dir)
        return f"{size_text(checkpoint.total_bytes)} in {len(checkpoint.names)} tensors"
