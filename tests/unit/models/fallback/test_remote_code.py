"""Code in a model's folder: run with the flag, and only where nothing else knows the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.other_models import VOCAB, make_other
from tests.support.shards import WatchedReference
from tests.support.tiny_models import rewrite_config
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model

_CONFIGURATION = """
from pathlib import Path
from transformers import PretrainedConfig

Path(RAN).touch()

class XConfig(PretrainedConfig):
    model_type = "x"

    def __init__(self, vocab_size=100, hidden_size=32, max_position_embeddings=128, **more):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**more)
"""

_MODELING = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from .configuration_x import XConfig

class XForCausalLM(PreTrainedModel):
    "One layer of attention by distance, with a cache that is a tuple, as models of old had it."
    config_class = XConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mix = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, past_key_values=None, use_cache=None):
        hidden = self.embed(input_ids)
        q, k, v = self.mix(hidden).chunk(3, dim=-1)
        if past_key_values is not None:
            k, v = torch.cat([past_key_values[0], k], dim=1), torch.cat([past_key_values[1], v], dim=1)
        distances = torch.arange(k.shape[1])[-q.shape[1] :, None] - torch.arange(k.shape[1])
        scores = (q @ k.transpose(1, 2) - distances).masked_fill(distances < 0, float("-inf"))
        return CausalLMOutputWithPast(
            logits=self.head(torch.tanh(hidden + scores.softmax(-1) @ v)), past_key_values=(k, v) if use_cache else None
        )
"""


def write_code(folder: Path, ran: Path) -> None:
    """A folder without weights, whose code makes the file ``ran`` when it runs."""
    (folder / "configuration_x.py").write_text(_CONFIGURATION.replace("RAN", repr(str(ran))))
    (folder / "modeling_x.py").write_text(_MODELING)
    classes = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    config = {"model_type": "x", "auto_map": classes, "vocab_size": VOCAB, "hidden_size": 32}
    (folder / "config.json").write_text(json.dumps(config))


def test_with_the_flag_the_model_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where transformers puts copies of code before it imports them.
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "model"
    folder.mkdir()
    write_code(folder, tmp_path / "ran")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    assert (tmp_path / "ran").exists()

    chosen = choose_model(folder, trust_remote_code=True)
    assert chosen.path == "transformers' `XForCausalLM` with its own attention and cache"
    replies = reply_under_pressure(
        folder, WatchedReference(), make_prompts(VOCAB), cache_tokens=112, trust_remote_code=True
    )
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)


def test_without_the_flag_it_is_refused_and_not_run(tmp_path: Path) -> None:
    write_code(tmp_path, tmp_path / "ran")
    with pytest.raises(StartupError, match=r"runs only with --trust-remote-code") as caught:
        choose_model(tmp_path)
    assert caught.value.exit_code is ExitCode.MODEL
    assert "add --trust-remote-code" in caught.value.fix
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("model_type", ["llama", "arcee"])
def test_code_is_not_run_for_a_model_that_is_known(model_type: str, tmp_path: Path) -> None:
    make_other(model_type, tmp_path)
    ran = tmp_path / "ran"
    auto_map = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    (tmp_path / "configuration_x.py").write_text(f"open({str(ran)!r}, 'w')")
    (tmp_path / "modeling_x.py").write_text(f"open({str(ran)!r}, 'w')")
    rewrite_config(tmp_path, {"auto_map": auto_map})
    assert "XForCausalLM" not in choose_model(tmp_path, trust_remote_code=True).path
    assert not ran.exists()
