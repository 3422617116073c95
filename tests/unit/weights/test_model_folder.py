"""Configuration, special tokens and chat templates of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder
from tgi_core.sampling.defaults import SamplingDefaults

LLAMA = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 64}


def make(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> Path:
    """A model folder; ``files`` are written as ``<name>.json``."""
    for name, content in {"config": config or LLAMA, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def refusal(caught: pytest.ExceptionInfo[StartupError]) -> StartupError:
    assert caught.value.exit_code == ExitCode.MODEL
    assert caught.value.fix
    return caught.value


def test_plain_text_model(tmp_path: Path) -> None:
    model = ModelFolder(make(tmp_path))
    assert (model.model_type, model.vocab_size, model.max_position_embeddings) == ("llama", 100, 64)
    assert model.config == model.text_config == LLAMA


def test_multimodal_model_answers_for_its_text_part(tmp_path: Path) -> None:
    config = {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 106],
        "vision_config": {"hidden_size": 1},
        "text_config": {"model_type": "gemma3_text", "vocab_size": 107, "eos_token_id": 1},
    }
    model = ModelFolder(make(tmp_path, config))
    assert (model.model_type, model.vocab_size, model.dtype_name) == ("gemma3_text", 107, "bfloat16")
    assert model.eos_token_ids == {1, 106}
    assert "vision_config" not in model.text_config
    assert "vision_config" in model.config


def test_what_a_multimodal_release_leaves_out_is_its_types_default(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "vocab_size": None}}
    model = ModelFolder(make(tmp_path, config))
    assert (model.vocab_size, model.max_position_embeddings) == (262_208, 131_072)


@pytest.mark.parametrize("size", [0, -5, 10**12])
def test_a_vocabulary_that_cannot_be(tmp_path: Path, size: int) -> None:
    with pytest.raises(StartupError, match="vocab_size") as caught:
        _ = ModelFolder(make(tmp_path, LLAMA | {"vocab_size": size})).vocab_size
    refusal(caught)


def test_multimodal_model_whose_text_part_alone_names_eos(tmp_path: Path) -> None:
    config = {"model_type": "m", "eos_token_id": None, "text_config": {"model_type": "t", "eos_token_id": 5}}
    assert ModelFolder(make(tmp_path, config)).eos_token_ids == {5}


def test_older_names_of_the_context_length(tmp_path: Path) -> None:
    assert ModelFolder(make(tmp_path, {"model_type": "gpt2", "n_positions": 12})).max_position_embeddings == 12
    assert ModelFolder(make(tmp_path, {"model_type": "bloom"})).max_position_embeddings is None


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, "float32"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, "bfloat16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"dtype": None, "text_config": {"dtype": "float16"}}, "float16"),
    ],
)
def test_dtype(tmp_path: Path, entries: dict[str, Any], expected: str) -> None:
    assert ModelFolder(make(tmp_path, LLAMA | entries)).dtype_name == expected


def test_eos_of_generation_config_config_and_tokenizer_are_united(tmp_path: Path) -> None:
    make(tmp_path, {**LLAMA, "eos_token_id": 1}, generation_config={"eos_token_id": [2, 3]})
    assert ModelFolder(tmp_path).eos_token_ids == {1, 2, 3}
    make(tmp_path, {**LLAMA, "eos_token_id": 1}, generation_config={}, tokenizer_config={"eos_token": "</s>"})
    Tokenizer(WordLevel({"a": 0, "</s>": 9}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert ModelFolder(tmp_path).eos_token_ids == {1, 9}


def test_eos_of_the_tokenizer_is_looked_up_among_added_tokens_first(tmp_path: Path) -> None:
    make(tmp_path, tokenizer_config={"eos_token": "<end>"})
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 7, "content": "<end>"}]}')
    assert ModelFolder(tmp_path).eos_token_ids == {7}
    make(tmp_path, tokenizer_config={"eos_token": "<end>", "added_tokens_decoder": {"8": {"content": "<end>"}}})
    assert ModelFolder(tmp_path).eos_token_ids == {8}


def test_eos_beyond_the_vocabulary_does_not_count(tmp_path: Path) -> None:
    make(tmp_path, {**LLAMA, "eos_token_id": 100}, generation_config={"eos_token_id": [2]})
    assert ModelFolder(tmp_path).eos_token_ids == {2}


def test_sampling_defaults(tmp_path: Path) -> None:
    assert ModelFolder(make(tmp_path)).sampling_defaults == SamplingDefaults()
    values = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
    folder = make(tmp_path, generation_config=values | {"max_new_tokens": 5, "min_p": None})
    assert ModelFolder(folder).sampling_defaults == SamplingDefaults(**values)
    greedy = ModelFolder(make(tmp_path, generation_config={"temperature": 0.0})).sampling_defaults
    assert greedy == SamplingDefaults(do_sample=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_k", 1.5), ("do_sample", 1), ("min_p", 2)],
)
def test_malformed_sampling_defaults(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(StartupError, match=rf"generation_config\.json has the `{name}`") as caught:
        _ = ModelFolder(make(tmp_path, generation_config={name: value})).sampling_defaults
    assert "--generation-config" in refusal(caught).fix


def test_no_eos_at_all(tmp_path: Path) -> None:
    assert ModelFolder(make(tmp_path)).eos_token_ids == frozenset()


@pytest.mark.parametrize("ids", ["</s>", [1, "2"], True, 1.5])
def test_malformed_eos(tmp_path: Path, ids: object) -> None:
    make(tmp_path, generation_config={"eos_token_id": ids})
    with pytest.raises(StartupError, match=r"generation_config\.json has the `eos_token_id`") as caught:
        _ = ModelFolder(tmp_path).eos_token_ids
    refusal(caught)


def test_special_tokens_as_text_and_as_object(tmp_path: Path) -> None:
    make(
        tmp_path,
        tokenizer_config={
            "bos_token": "<s>",
            "eos_token": {"content": "</s>", "lstrip": False},
            "pad_token": None,
            "add_bos_token": True,
            "extra_special_tokens": {"image_token": "<image>"},
        },
        special_tokens_map={
            "pad_token": {"content": "<pad>"},
            "bos_token": "other",
            "additional_special_tokens": ["x"],
        },
    )
    model = ModelFolder(tmp_path)
    assert (model.bos_token, model.eos_token) == ("<s>", "</s>")
    assert model.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "image_token": "<image>",
    }


def test_tokenizer_config_from_elsewhere(tmp_path: Path) -> None:
    make(tmp_path, tokenizer_config={"bos_token": "old"})
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"bos_token": "new", "chat_template": "new template"}))
    model = ModelFolder(tmp_path, tokenizer_config_path=other)
    assert model.bos_token == "new"
    assert model.chat_templates == {"default": "new template"}


def test_tokenizer_config_from_nowhere(tmp_path: Path) -> None:
    model = ModelFolder(make(tmp_path), tokenizer_config_path=tmp_path / "absent.json")
    with pytest.raises(StartupError, match=r"no file .*absent\.json") as caught:
        _ = model.special_tokens
    refusal(caught)


def test_chat_template_sources_in_order(tmp_path: Path) -> None:
    given = tmp_path / "given.jinja"
    given.write_text("from the command line")
    make(tmp_path)
    assert ModelFolder(tmp_path).chat_templates == {}
    make(tmp_path, tokenizer_config={"chat_template": "tokenizer_config"})
    assert ModelFolder(tmp_path).chat_templates == {"default": "tokenizer_config"}
    make(tmp_path, chat_template={"chat_template": "json"})
    assert ModelFolder(tmp_path).chat_templates == {"default": "json"}
    (tmp_path / "chat_template.jinja").write_text("jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert ModelFolder(tmp_path).chat_templates == {"default": "jinja", "tool_use": "tools"}
    assert ModelFolder(tmp_path, chat_template=given).chat_templates == {"default": "from the command line"}


def test_named_templates(tmp_path: Path) -> None:
    entries = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    make(tmp_path, tokenizer_config={"chat_template": entries})
    assert ModelFolder(tmp_path).chat_templates == {"default": "a", "rag": "b"}


def test_malformed_templates(tmp_path: Path) -> None:
    make(tmp_path, tokenizer_config={"chat_template": [{"name": "default"}]})
    with pytest.raises(StartupError, match=r"tokenizer_config\.json has a malformed `chat_template`") as caught:
        _ = ModelFolder(tmp_path).chat_templates
    refusal(caught)


def test_given_template_that_is_not_there(tmp_path: Path) -> None:
    model = ModelFolder(make(tmp_path), chat_template=tmp_path / "absent.jinja")
    with pytest.raises(StartupError, match=r"absent\.jinja cannot be read") as caught:
        _ = model.chat_templates
    refusal(caught)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="There is no folder") as caught:
        ModelFolder(tmp_path / "absent")
    refusal(caught)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"has no config\.json") as caught:
        ModelFolder(tmp_path)
    refusal(caught)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_unreadable_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(StartupError, match=r"config\.json cannot be read as JSON") as caught:
        ModelFolder(tmp_path)
    refusal(caught)


@pytest.mark.parametrize("config", [{"a": 1}, {"model_type": 3}])
def test_no_model_type(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match=r"config\.json has .*`model_type`") as caught:
        ModelFolder(make(tmp_path, config))
    refusal(caught)


def test_no_vocab_size(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no `vocab_size`") as caught:
        _ = ModelFolder(make(tmp_path, {"model_type": "llama"})).vocab_size
    refusal(caught)


def test_tokenizer_file(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(StartupError, match=r"has no tokenizer\.json") as caught:
        _ = ModelFolder(tmp_path).tokenizer_file
    assert "AutoTokenizer.from_pretrained" in refusal(caught).fix
    (tmp_path / "tokenizer.json").write_text("{}")
    assert ModelFolder(tmp_path).tokenizer_file == tmp_path / "tokenizer.json"


def test_damaged_tokenizer_file(tmp_path: Path) -> None:
    make(tmp_path, tokenizer_config={"eos_token": "</s>"}, tokenizer={})
    with pytest.raises(StartupError, match=r"tokenizer\.json cannot be read") as caught:
        _ = ModelFolder(tmp_path).eos_token_ids
    refusal(caught)


T5 = {"model_type": "t5", "vocab_size": 50, "is_encoder_decoder": True}


def test_what_the_decoder_starts_with(tmp_path: Path) -> None:
    assert ModelFolder(make(tmp_path)).decoder_prompt == ()
    assert ModelFolder(make(tmp_path, T5 | {"decoder_start_token_id": 0})).decoder_prompt == (0,)
    assert ModelFolder(make(tmp_path, T5 | {"bos_token_id": 3})).decoder_prompt == (3,)
    generation = {"decoder_start_token_id": 2, "forced_bos_token_id": 9}
    assert ModelFolder(make(tmp_path, T5 | {"bos_token_id": 3}, generation_config=generation)).decoder_prompt == (2, 9)


@pytest.mark.parametrize("config", [T5, T5 | {"decoder_start_token_id": 50}, T5 | {"decoder_start_token_id": "</s>"}])
def test_a_decoder_that_does_not_know_how_to_start(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="start") as caught:
        _ = ModelFolder(make(tmp_path, config)).decoder_prompt
    refusal(caught)


def test_tokens_that_are_never_chosen(tmp_path: Path) -> None:
    assert ModelFolder(make(tmp_path)).suppressed_token_ids == ()
    words = {"bad_words_ids": [[49], [3, 4], [50], "x"]}
    assert ModelFolder(make(tmp_path, T5 | words)).suppressed_token_ids == (49,)
    folder = make(tmp_path, T5 | words, generation_config={"bad_words_ids": [[7]]})
    assert ModelFolder(folder).suppressed_token_ids == (7,)
