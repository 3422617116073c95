"""Typed questions to a model folder in Hugging Face's layout. Needs neither torch nor transformers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.generation_config import read_sampling_defaults
from tgi_core.lenient_json import decode_object
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.text_defaults import TEXT_DEFAULTS

T = TypeVar("T")

_DOWNLOAD_AGAIN = "Download or copy the model again."
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_LARGEST_VOCABULARY = 1 << 24

DEFAULT_TEMPLATE = "default"
"""Name of the chat template that is taken unless a request names another."""


class ModelFolder:
    """A model's configuration, special tokens and chat templates.

    Every property raises StartupError, with the file, the cause and a fix, when what it reads is missing or malformed.

    Attributes:
        path: the folder.
        config: the parsed ``config.json``.
        text_config: the settings of the text model: ``config`` itself, or for a multimodal model the nested
            ``text_config`` on top of it.
        model_type: the text model's type, such as ``llama`` or ``gemma3_text``.
    """

    def __init__(
        self, path: Path, *, tokenizer_config_path: Path | None = None, chat_template: Path | None = None
    ) -> None:
        """Read ``config.json``; everything else is read when it is asked for.

        ``tokenizer_config_path`` replaces the folder's ``tokenizer_config.json``, ``chat_template`` is a file with a
        Jinja template that replaces the model's own.

        Raises:
            StartupError: there is no such folder, or its ``config.json`` is missing or malformed.
        """
        self.path = path
        self._tokenizer_config_path = tokenizer_config_path
        self._chat_template_path = chat_template
        if not path.is_dir():
            raise _refuse(f"There is no folder {path}.", "Check --model-id.")
        config = _read_object(path / "config.json")
        if config is None:
            raise _refuse(
                f"{path} has no config.json, so it is no model folder.",
                "Point --model-id at a folder in Hugging Face's layout, a GGUF file or a hub repository.",
            )
        self.config: dict[str, Any] = config
        self.text_config = _text_config(config)
        self.model_type = self._text_value("model_type", str, "Add the model's `model_type`, such as llama.")

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        fix = "Set `vocab_size` to the number of rows of the embedding."
        size = self._text_value("vocab_size", int, fix)
        if not 1 <= size <= _LARGEST_VOCABULARY:
            raise _refuse(f"{self.path / 'config.json'} has a `vocab_size` of {size}.", fix)
        return size

    @property
    def max_position_embeddings(self) -> int | None:
        """Longest context the model was made for, in tokens; None where the configuration does not say."""
        for key in _CONTEXT_KEYS:
            if self.text_config.get(key) is not None:
                return self._text_value(key, int, "Set it to a number of tokens.")
        return None

    @property
    def dtype_name(self) -> str:
        """The checkpoint's dtype as torch names it, without the ``torch.``; float32 where nothing is said."""
        for config in (self.config, self.text_config):
            name = config.get("dtype") or config.get("torch_dtype")
            if isinstance(name, str):
                return name.removeprefix("torch.")
        return "float32"

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end a reply: those of ``generation_config.json``, ``config.json`` and the tokenizer together.

        Releases of chat models differ in which of these names the end of a turn, and which the end of a text. Ids
        beyond the vocabulary, as of a configuration taken over from another model, do not count. Empty for a model that
        has none.
        """
        found = set(self._tokenizer_eos_ids())
        for file_name, values in (
            ("generation_config.json", self._generation_config),
            ("config.json", self.config),
            ("config.json", self.text_config),
        ):
            ids = values.get("eos_token_id")
            if ids is not None:
                found |= self._checked_ids(file_name, ids)
        return (
            frozenset(found) if self.text_config.get("vocab_size") is None else frozenset(filter(self._is_token, found))
        )

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """What ``generation_config.json`` says of sampling."""
        return read_sampling_defaults(self.path / "generation_config.json", self._generation_config)

    @cached_property
    def decoder_prompt(self) -> tuple[int, ...]:
        """The tokens that every output of an encoder-decoder follows; empty for any other model.

        They are the token that the decoder starts with, and the first one of the output where that is forced.
        """
        if not self.config.get("is_encoder_decoder"):
            return ()
        start = self._generation_token("decoder_start_token_id", "bos_token_id")
        if start is None:
            raise _refuse(
                f"{self.path} does not say which token the decoder starts with.",
                "Set `decoder_start_token_id` in its generation_config.json.",
            )
        forced = self._generation_token("forced_bos_token_id")
        return (start,) if forced is None else (start, forced)

    @property
    def suppressed_token_ids(self) -> tuple[int, ...]:
        """Tokens that the model must never choose: the ``bad_words_ids`` of one token."""
        for values in (self._generation_config, self.config):
            found = values.get("bad_words_ids")
            if isinstance(found, list):
                words = [word for word in found if isinstance(word, list) and len(word) == 1]
                return tuple(token for (token,) in words if self._is_token(token))
        return ()

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by role: ``bos_token``, ``eos_token``, ``pad_token`` and whatever else the tokenizer names.

        From ``tokenizer_config.json``, where it says nothing from ``special_tokens_map.json``.
        """
        extra = self._tokenizer_config.get("extra_special_tokens")
        special_map = _read_object(self.path / "special_tokens_map.json") or {}
        found = {}
        for source in (special_map, extra if isinstance(extra, dict) else {}, self._tokenizer_config):
            for role, value in source.items():
                text = _token_text(value)
                if role.endswith("_token") and text is not None:
                    found[role] = text
        return found

    @property
    def bos_token(self) -> str | None:
        """The text of the token that begins a sequence."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The text of the token that ends a sequence."""
        return self.special_tokens.get("eos_token")

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a fast tokenizer; one that is Python code has no such file, and a benchmark needs none."""
        return (self.path / "tokenizer.json").exists()

    @cached_property
    def tokenizer_file(self) -> Path:
        """The path of ``tokenizer.json``."""
        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise _refuse(
                f"{self.path} has no tokenizer.json.",
                f'Make it with transformers: AutoTokenizer.from_pretrained("{self.path}").save_pretrained'
                f'("{self.path}").',
            )
        return path

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Jinja chat templates by name, from the first source that has any; empty for a model without.

        Sources: the file given to the constructor; ``chat_template.jinja`` with ``additional_chat_templates/*.jinja``;
        ``chat_template.json``; the tokenizer's configuration.
        """
        if self._chat_template_path is not None:
            return {DEFAULT_TEMPLATE: _read_text(self._chat_template_path)}
        return (
            self._jinja_templates()
            or self._templates_of("chat_template.json", _read_object(self.path / "chat_template.json") or {})
            or self._templates_of("tokenizer_config.json", self._tokenizer_config)
        )

    @cached_property
    def _generation_config(self) -> dict[str, Any]:
        return _read_object(self.path / "generation_config.json") or {}

    def _generation_token(self, *keys: str) -> int | None:
        """The token that the first of ``keys`` names, in ``generation_config.json`` or ``config.json``."""
        for key in keys:
            for values in (self._generation_config, self.config):
                token = values.get(key)
                if token is not None:
                    if not self._is_token(token):
                        raise _refuse(f"{self.path} has the `{key}` {token!r}.", "Make it the number of a token.")
                    return int(token)
        return None

    def _is_token(self, token: object) -> bool:
        return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < self.vocab_size

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        if self._tokenizer_config_path is None:
            return _read_object(self.path / "tokenizer_config.json") or {}
        config = _read_object(self._tokenizer_config_path)
        if config is None:
            raise _refuse(f"There is no file {self._tokenizer_config_path}.", "Check --tokenizer-config-path.")
        return config

    def _text_value(self, key: str, kind: type[T], fix: str) -> T:
        value = self.text_config.get(key)
        if value is None:
            raise _refuse(f"{self.path / 'config.json'} has no `{key}`.", fix)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _refuse(f"{self.path / 'config.json'} has `{key}` {value!r}, not {kind.__name__}.", fix)
        return value

    def _checked_ids(self, file_name: str, ids: object) -> frozenset[int]:
        numbers = ids if isinstance(ids, list) else [ids]
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            raise _refuse(
                f"{self.path / file_name} has the `eos_token_id` {ids!r}.", "Make it a number or a list of numbers."
            )
        return frozenset(numbers)

    def _tokenizer_eos_ids(self) -> frozenset[int]:
        if self.eos_token is None:
            return frozenset()
        added = self._tokenizer_config.get("added_tokens_decoder")
        for key, entry in added.items() if isinstance(added, dict) else ():
            if key.isdigit() and _token_text(entry) == self.eos_token:
                return frozenset([int(key)])
        return self._fast_eos_ids(self.eos_token) if self.has_tokenizer else frozenset()

    def _fast_eos_ids(self, eos_token: str) -> frozenset[int]:
        from tokenizers import Tokenizer

        try:
            # The list of added tokens is read in a fraction of the time that the whole tokenizer takes.
            for token in msgspec.json.decode(self.tokenizer_file.read_bytes(), type=_AddedTokens).added_tokens:
                if token.content == eos_token:
                    return frozenset([token.id])
            tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        except Exception as error:  # the library raises plain exceptions
            raise _refuse(f"{self.tokenizer_file} cannot be read: {error}.", _DOWNLOAD_AGAIN) from error
        number = tokenizer.token_to_id(eos_token)
        return frozenset() if number is None else frozenset([number])

    def _jinja_templates(self) -> dict[str, str]:
        default = self.path / "chat_template.jinja"
        paths = {path.stem: path for path in sorted((self.path / "additional_chat_templates").glob("*.jinja"))}
        if default.is_file():
            paths[DEFAULT_TEMPLATE] = default
        return {name: _read_text(path) for name, path in paths.items()}

    def _templates_of(self, file_name: str, holder: dict[str, Any]) -> dict[str, str]:
        found = holder.get("chat_template")
        if found is None:
            return {}
        if isinstance(found, str):
            return {DEFAULT_TEMPLATE: found}
        try:
            return {entry.name: entry.template for entry in msgspec.convert(found, list[_NamedTemplate])}
        except msgspec.ValidationError as error:
            raise _refuse(
                f"{self.path / file_name} has a malformed `chat_template`: {error}.",
                "Make it a string or a list of objects with `name` and `template`, or give --chat-template.",
            ) from error


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    if not isinstance(nested, dict):
        return config
    shared = {key: value for key, value in config.items() if not key.endswith("_config")}
    named = {key: value for key, value in nested.items() if value is not None}
    return shared | dict(TEXT_DEFAULTS.get(str(config.get("model_type")), {})) | named


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(f"{path} cannot be read: {error}.", "Check the path and its permissions.") from error


def _read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None where there is no such file."""
    if not path.exists():
        return None
    try:
        return decode_object(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise _refuse(f"{path} cannot be read as JSON: {error}.", _DOWNLOAD_AGAIN) from error


def _refuse(cause: str, fix: str) -> StartupError:
    return StartupError(cause, fix, ExitCode.MODEL)
