"""The rule in docs/sampling.md, as a plugin of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.driver import Driver, Generation
from tests.support.plugins import write_distribution
from tests.support.sampling import Row, make_inputs
from tests.support.shards import start_shard
from tests.support.tiny_models import make_model
from tgi_core.plugins import Plugins
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.sampling.rules import LogitsRule
from tgi_core.sampling.watermark import detect

PAGE = (Path(__file__).parents[3] / "docs/sampling.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogitsRule:
    monkeypatch.syspath_prepend(tmp_path)
    (source,) = [example for example in EXAMPLES if "tgi_logits_rules" in example]
    write_distribution(tmp_path, "cool-down", "cool_down_plugin", source)
    return Plugins.discover().logits_rules()[-1]


def test_both_of_its_forms_agree(rule: LogitsRule) -> None:
    logits_BV = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    values = (0.0, 0.3, -1.0)
    rows = [Row(SamplingParams(extra={"cool_down": value}), [1, 2, 3, 4], 2) for value in values]
    inputs = make_inputs(rows, logits_BV, rules=[rule])
    assert inputs.tier is Tier.FULL
    assert inputs.rule_rows is not None
    result_BV = rule.apply(logits_BV, inputs.rule_rows)
    assert torch.equal(result_BV[0], logits_BV[0])
    for row, scores_V, result_V in zip(rows, logits_BV, result_BV, strict=True):
        torch.testing.assert_close(result_V, torch.tensor(rule.reference(scores_V.tolist(), row.context())))


def test_a_shard_applies_it_to_the_requests_that_ask(rule: LogitsRule, tmp_path: Path) -> None:
    make_model("llama", tmp_path / "model")
    shard, budget = start_shard(tmp_path / "model", ReferenceKernels())
    assert shard.extra_parameters == ("cool_down",)
    plain = SamplingParams(do_sample=True, temperature=3.0, seed=1)
    cooled = SamplingParams(do_sample=True, temperature=3.0, seed=1, extra={"cool_down": 0.5})
    neutral = SamplingParams(do_sample=True, temperature=3.0, seed=1, extra={"cool_down": 0.0})
    generations = [Generation([1, 2, 3], 12, sampling) for sampling in (plain, cooled, neutral)]
    Driver(shard, budget).run(generations)
    shard.close()
    one, other, same = (generation.token_ids for generation in generations)
    assert one == same
    assert one[0] == other[0]
    assert one != other


def test_the_page_names_every_rule() -> None:
    names = [parameter.name for rule in Plugins.discover().logits_rules() for parameter in rule.parameters]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert "logit_bias" in PAGE


def test_the_example_of_detection(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [example for example in EXAMPLES if "detect(" in example]
    exec(compile(example, "docs/sampling.md", "exec"), {})
    assert f"of {detect([1, 5, 17, 3, 99, 5, 17], 0.5).num_scored} green" in capsys.readouterr().out
