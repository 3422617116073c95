"""Grammar engines opened on small tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.real_tokenizers import smollm2
from tests.support.text_tokenizers import byte_level_json, metaspace_json
from tgi_core.plugins import Plugins
from tgi_core.sampling.grammar import GrammarCompiler, GrammarEngine, Vocabulary


@pytest.fixture(scope="session")
def engine() -> GrammarEngine:
    return Plugins.discover().choose_grammar_engine("llguidance")


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """500 tokens of GPT-2's kind; 0 and 1 are special, 1 is EOS."""
    file = tmp_path_factory.mktemp("byte-level") / "tokenizer.json"
    file.write_text(byte_level_json(), encoding="utf-8")
    return Vocabulary(file, 500, (1,))


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """Llama 2's kind, with byte fallback; 0, 1, 2 are special, 2 is EOS; there are more logits than tokens."""
    file = tmp_path_factory.mktemp("metaspace") / "tokenizer.json"
    file.write_text(metaspace_json(), encoding="utf-8")
    return Vocabulary(file, 450, (2,))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """The demo model's."""
    return smollm2(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def compiler(engine: GrammarEngine, byte_level: Vocabulary) -> GrammarCompiler:
    return engine.open(byte_level)


@pytest.fixture(scope="session")
def demo_compiler(engine: GrammarEngine, demo: Vocabulary) -> GrammarCompiler:
    return engine.open(demo)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a plugin that this process and those it starts find."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder
