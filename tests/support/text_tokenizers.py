"""Small tokenizers of the families that language models use, built on the spot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tgi_core.requests import TextTokenizer

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the other foxes look on.",
    "def quick(fox):\n    return [fox, 'brown', 1234567890]\n\n",
    "Grüße aus München: schöne Wörter, café, naïve, “quoted” – dashes…",
    "日本語のテキスト、漢字とかな。中文文本。 한국어 텍스트",
    "Emoji 😀😃 family 👨‍👩‍👧 flag 🇩🇪 thumbs 👍🏽",
)
BOS, EOS = "<s>", "</s>"


def byte_level_json(vocab_size: int = 500) -> str:
    """A ``tokenizer.json`` in the manner of GPT-2: BPE over bytes, no BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def metaspace_json() -> str:
    """A ``tokenizer.json`` in the manner of Llama 2: BPE over characters with byte fallback, BOS in front."""
    tokenizer = _byte_fallback()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer.to_str()


def spaces_json() -> str:
    """A ``tokenizer.json`` in the manner of Gemma: byte fallback, and spaces are replaced and never added."""
    tokenizer = _byte_fallback()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer.to_str()


def unigram_json(vocab_size: int = 300) -> str:
    """A ``tokenizer.json`` in the manner of T5: sentencepiece's unigram model, unknown characters are lost."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", BOS, EOS], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def _byte_fallback() -> Tokenizer:
    """BPE over characters; few of them get tokens of their own, so that the others fall back to bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=150, limit_alphabet=60, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: number for number, name in enumerate(names)},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", BOS, EOS)])
    return tokenizer


def load(folder: Path, source: str) -> TextTokenizer:
    """The tokenizer of a ``tokenizer.json`` with this content."""
    file = folder / "tokenizer.json"
    file.write_text(source, encoding="utf-8")
    return TextTokenizer(file, workers=1)


def encode(tokenizer: TextTokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Encode without an event loop."""
    return asyncio.run(tokenizer.encode(text, add_special_tokens))
