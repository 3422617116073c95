"""What a server would run with and where each value comes from: from settings, backend and model, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tgi_api.cli.backend_choice import choose_world_size
from tgi_api.cli.inspection import Inspection
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.options import Effect, Group, Option
from tgi_api.cli.settings import ServeSettings
from tgi_core.contract import AttentionChoice, AttentionOption, Backend
from tgi_core.plugins import Plugins, find_devices

DEFAULT, FROM_MODEL, FROM_BACKEND, AT_START = "default", "model", "backend", "measured at start"

Shown = str | int | float | bool | None


class Value(msgspec.Struct, frozen=True):
    """One effective value.

    Attributes:
        name: the option's flag, or variable where it has no flag.
        group: the heading of the option's kind in the help.
        value: what holds; None where only a started engine knows.
        source: command line, environment variable, model, backend, default, or measured at start.
        why: what more there is to say.
    """

    name: str
    group: str
    value: Shown
    source: str
    why: str = ""


class BackendFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe of a backend found: devices, or the reason for none with what would help.

    ``automatic`` says whether ``--backend auto`` may take it.
    """

    name: str
    title: str
    chosen: bool
    automatic: bool
    devices: list[str]
    reason: str = ""
    fix: str = ""


class AttentionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """An implementation of attention that the backend knows; without a reason it could be used for this model."""

    name: str
    chosen: bool
    reason: str = ""
    fix: str = ""
    remark: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known before a server starts.

    Attributes:
        model: facts about the model, by name.
        backends: every installed backend.
        attention: what the chosen backend has, in the order in which "auto" tries it.
        values: every effective value of an option.
        warnings: options that have no effect.
        notes: what else a user should know.
    """

    model: dict[str, str]
    backends: list[BackendFinding]
    attention: list[AttentionFinding]
    values: list[Value]
    warnings: list[str]
    notes: list[str]


def explain_backends(plugins: Plugins, chosen: Backend) -> list[BackendFinding]:
    """Probe every backend, in the order in which "auto" tries them, those it never takes last."""
    findings = []
    for backend in sorted(plugins.backends().values(), key=lambda backend: (-backend.info.priority, backend.info.name)):
        probe = find_devices(backend)
        findings.append(
            BackendFinding(
                name=backend.info.name,
                title=backend.info.title,
                chosen=backend.info.name == chosen.info.name,
                automatic=backend.info.priority >= 0,
                devices=[device.name for device in probe.devices],
                reason=probe.reason,
                fix=probe.fix,
            )
        )
    return findings


def explain_attention(options: tuple[AttentionOption, ...], chosen: AttentionChoice) -> list[AttentionFinding]:
    """Every implementation with what stands in its way."""
    return [
        AttentionFinding(
            name=option.name,
            chosen=option.name == chosen.name,
            reason=option.obstacle,
            fix=option.fix,
            remark=option.remark,
        )
        for option in options
    ]


def explain_values(
    inspection: Inspection, sources: Mapping[str, str], backend_options: Mapping[str, str]
) -> list[Value]:
    """One value for each option that a server uses, in the order of the help; last those of the backend's own.

    Args:
        inspection: without refusals.
        sources: where the options that were given come from, by name.
        backend_options: the backend's own that were given, by flag.
    """
    found = _Found(inspection, sources)
    values = [_explain(option, found) for option in LAUNCHER_OPTIONS if option.effect is Effect.USED]
    for option in inspection.backend.options:
        source = found.source(option.flag.removeprefix("--").replace("-", "_"))
        values.append(
            Value(option.flag, Group.DEVICE.value, option.value(backend_options), source, "the backend's own")
        )
    return values


class _Found(NamedTuple):
    """What the values follow from."""

    inspection: Inspection
    sources: Mapping[str, str]

    @property
    def settings(self) -> ServeSettings:
        return self.inspection.settings

    def source(self, name: str) -> str:
        return self.sources.get(name, DEFAULT)


def _explain(option: Option, found: _Found) -> Value:
    special = _SPECIAL.get(option.name)
    if special is not None:
        value, source, why = special(found)
        return Value(option.label, option.group.value, value, source, why)
    value = getattr(found.settings, option.name)
    if option.secret and value is not None:
        value = "<hidden>"
    source = found.source(option.name)
    return Value(
        option.label, option.group.value, _UNSET.get(option.name, "none") if value is None else _plain(value), source
    )


_UNSET: Mapping[str, str] = {
    "revision": "the repository's main branch",
    "huggingface_hub_cache": "the hub library's own",
    "tokenizer_config_path": "the model's own",
    "max_batch_total_tokens": "as many as fit",
    "cpu_threads": "the backend's choice",
    "sharded": "as --num-shard says",
    "compute_type": "1 and the device's name",
    "api_key": "none: anyone who reaches the port can use the server",
}
"""What holds where an option of this name is not given."""

_Explained = tuple[Shown, str, str]


def _backend(found: _Found) -> _Explained:
    asked = found.settings.backend
    if asked != "auto":
        return asked, found.source("backend"), ""
    return (
        found.inspection.backend.info.name,
        found.source("backend"),
        "of those that find a device the one of highest priority",
    )


def _dtype(found: _Found) -> _Explained:
    if found.settings.dtype != "auto":
        return found.inspection.dtype, found.source("dtype"), ""
    if found.inspection.dtype == found.inspection.checkpoint_dtype:
        return found.inspection.dtype, FROM_MODEL, "the checkpoint's own"
    return (
        found.inspection.dtype,
        FROM_BACKEND,
        f"its preferred one; it does not compute in the checkpoint's {found.inspection.checkpoint_dtype}",
    )


def _block_size(found: _Found) -> _Explained:
    asked = found.settings.block_size
    if asked is not None:
        return asked, found.source("block_size"), ""
    return found.inspection.capabilities.block_sizes[0], FROM_BACKEND, "its preferred one"


def _attention(found: _Found) -> _Explained:
    if found.settings.attention != "auto":
        return found.inspection.attention.name, found.source("attention"), ""
    return found.inspection.attention.name, FROM_BACKEND, found.inspection.attention.reason


def _num_shard(found: _Found) -> _Explained:
    settings, size = found.settings, choose_world_size(found.inspection.backend, found.settings)
    if settings.num_shard is None and settings.sharded:
        return size, found.source("sharded"), "all devices that the backend finds"
    return size, found.source("num_shard"), ""


def _kv_cache_memory(found: _Found) -> _Explained:
    asked = found.settings.kv_cache_memory
    if asked is not None:
        return asked, found.source("kv_cache_memory"), ""
    share = f"{found.settings.cuda_memory_fraction:g}"
    return None, AT_START, f"what weights, activations and recorded steps leave of {share} of the free memory"


def _prefix_caching(found: _Found) -> _Explained:
    obstacle = found.inspection.no_prefix_caching
    possible = found.inspection.capabilities.prefix_cache
    return _switch(found, "prefix_caching", found.settings.prefix_caching, possible, (not obstacle, obstacle))


def _prefill_chunking(found: _Found) -> _Explained:
    return _switch(
        found,
        "prefill_chunking",
        found.settings.prefill_chunking,
        found.inspection.capabilities.chunked_prefill,
        found.inspection.prefill_chunking,
    )


def _switch(found: _Found, name: str, wanted: bool, backend_can: bool, model: tuple[bool | None, str]) -> _Explained:
    """``model``: whether it can, None where only loading it tells, and why."""
    if wanted and not backend_can:
        return False, FROM_BACKEND, "it cannot"
    model_can, why = model
    if wanted and not model_can:
        return model_can, AT_START if model_can is None else FROM_MODEL, why
    return wanted, found.source(name), ""


def _max_concurrent_requests(found: _Found) -> _Explained:
    settings = found.settings
    why = "" if settings.max_concurrent_requests is not None else "follows --max-batch-size"
    return settings.admitted_requests, found.source("max_concurrent_requests"), why


def _max_total_tokens(found: _Found) -> _Explained:
    if found.settings.max_total_tokens is not None:
        return (
            found.inspection.max_total_tokens,
            found.source("max_total_tokens"),
            "refused at start if memory holds less",
        )
    if found.inspection.max_total_tokens is not None:
        return (
            found.inspection.max_total_tokens,
            DEFAULT,
            "without prefill chunking a step must hold the longest sequence",
        )
    if found.inspection.model_max_tokens is None:
        return None, AT_START, "what memory holds; the model's configuration names no limit"
    return (
        None,
        AT_START,
        f"the {found.inspection.model_max_tokens} tokens the model was made for, or what memory holds if less",
    )


def _max_input_tokens(found: _Found) -> _Explained:
    for name in ("max_input_tokens", "max_input_length"):
        if getattr(found.settings, name) is not None:
            return found.settings.longest_input, found.source(name), ""
    longest = None if found.inspection.max_total_tokens is None else found.inspection.max_total_tokens - 1
    return longest, AT_START if longest is None else DEFAULT, "one less than --max-total-tokens"


def _chat_template(found: _Found) -> _Explained:
    path = found.settings.chat_template
    if path is not None:
        return str(path), found.source("chat_template"), ""
    if found.inspection.chat is not None:
        return "the model's own", FROM_MODEL, ""
    return "none", FROM_MODEL, "it has none: chat is refused, everything else works"


def _tool_call_parser(found: _Found) -> _Explained:
    if found.settings.tool_call_parser != "auto" or found.inspection.chat is None:
        return found.settings.tool_call_parser, found.source("tool_call_parser"), ""
    names = dict.fromkeys(chat.tool_parser.name for chat in found.inspection.chat)
    return ", ".join(names), FROM_MODEL, "told from the chat template"


def _reasoning_parser(found: _Found) -> _Explained:
    if found.settings.reasoning_parser != "auto" or found.inspection.chat is None:
        return found.settings.reasoning_parser, found.source("reasoning_parser"), ""
    parsers = (chat.reasoning_parser for chat in found.inspection.chat)
    names = dict.fromkeys(parser.name for parser in parsers if parser is not None)
    return ", ".join(names) or "none", FROM_MODEL, "told from the chat template"


def _served_model_name(found: _Found) -> _Explained:
    return ", ".join(found.settings.served_model_name) or "none", found.source("served_model_name"), ""


def _cors_allow_origin(found: _Found) -> _Explained:
    return ", ".join(found.settings.cors_allow_origin) or "any origin", found.source("cors_allow_origin"), ""


def _grammar_engine(found: _Found) -> _Explained:
    used = found.settings.used_grammar_engine
    why = "" if used is not None else "requests that constrain their output are refused"
    return used or "none", found.source("grammar_engine"), why


_SPECIAL: Mapping[str, Callable[[_Found], _Explained]] = {
    "backend": _backend,
    "dtype": _dtype,
    "block_size": _block_size,
    "attention": _attention,
    "kv_cache_memory": _kv_cache_memory,
    "num_shard": _num_shard,
    "prefix_caching": _prefix_caching,
    "prefill_chunking": _prefill_chunking,
    "max_concurrent_requests": _max_concurrent_requests,
    "max_total_tokens": _max_total_tokens,
    "max_input_tokens": _max_input_tokens,
    "chat_template": _chat_template,
    "tool_call_parser": _tool_call_parser,
    "reasoning_parser": _reasoning_parser,
    "served_model_name": _served_model_name,
    "cors_allow_origin": _cors_allow_origin,
    "grammar_engine": _grammar_engine,
}
"""Options whose effective value follows from more than what was given."""


def _plain(value: object) -> Shown:
    return str(value) if isinstance(value, Path) else value  # type: ignore[return-value]
