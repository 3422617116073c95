"""The facts about a started server that its user wants to see."""

from __future__ import annotations

import msgspec

from tgi_core.config import EngineInfo, ServerConfig

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Summary(msgspec.Struct, frozen=True):
    """What is shown when the server takes requests.

    Attributes:
        url: where to reach it from this machine.
        facts: (name, value) rows.
        memory: (name, bytes) rows of the engine's memory table.
        notes: sentences a user should know.
        needs_key: whether requests must carry the API key.
    """

    url: str
    facts: tuple[tuple[str, str], ...]
    memory: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    needs_key: bool


def make_summary(config: ServerConfig, info: EngineInfo) -> Summary:
    """Collect what was configured and what the engine found out."""
    model = config.model.model_id + (f" at {config.model.revision}" if config.model.revision else "")
    devices = info.device if config.engine.world_size == 1 else f"{config.engine.world_size} × {info.device}"
    facts = (
        ("Model", model),
        ("Backend", f"{config.engine.backend} on {devices}, {info.dtype}"),
        ("Request", f"up to {info.max_input_tokens} input tokens, {info.max_total_tokens} in all"),
        ("Step", f"up to {info.max_slots} requests and {info.max_step_tokens} tokens"),
        ("KV cache", f"{info.kv_tokens} tokens in blocks of {info.block_size}"),
        ("Admission", f"up to {config.api.max_concurrent_requests} requests at once, then 429"),
        ("API key", "required" if config.api.api_key else "none: anyone who reaches the port can use the server"),
        ("Start", f"loaded in {info.load_seconds:.1f} s, warmed up in {info.warm_up_seconds:.1f} s"),
    )
    return Summary(
        url=server_url(config.api.hostname, config.api.port),
        facts=facts,
        memory=tuple(info.memory),
        notes=(*info.notes, *_tell_unsupported(info)),
        needs_key=config.api.api_key is not None,
    )


def _tell_unsupported(info: EngineInfo) -> list[str]:
    """A sentence for each reason why requests cannot ask for something."""
    # Not for the help to wait for.
    from tgi_core.requests.unsupported import GENERATE_FIELDS

    names_of: dict[str, list[str]] = {}
    for parameter in info.unsupported_parameters:
        names_of.setdefault(parameter.reason, []).append(GENERATE_FIELDS.get(parameter.name, parameter.name))
    return [
        f"refused in requests are {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in names_of.items()
    ]


def server_url(hostname: str, port: int) -> str:
    """An address that works in a browser on this machine; "any address" becomes the local one."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(hostname, hostname)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl_line(summary: Summary) -> str:
    """A command that makes the server generate; it names the API key's variable, never the key."""
    key = ' -H "authorization: Bearer $API_KEY"' if summary.needs_key else ""
    body = '\'{"inputs": "The sky is", "parameters": {"max_new_tokens": 20}}\''
    return f"curl {summary.url}/generate -H 'content-type: application/json'{key} -d {body}"


def size_text(size_bytes: int) -> str:
    """An amount of memory for people, such as ``1.5 GiB``."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
