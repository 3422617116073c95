"""Another engine by plugin: the example of the documentation, from the trial in the API process to the last token."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.constrained import sample_reply
from tests.support.plugins import write_distribution
from tgi_core.errors import StartupError
from tgi_core.plugins import Plugins
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import Constraints, Grammar, GrammarError, GrammarKind, Vocabulary
from tgi_core.sampling.grammar.checker import GrammarChecker

PAGE = (Path(__file__).parents[3] / "docs/structured-output.md").read_text()
CHOICES = ["red", "reddish", "größe", "語"]
GRAMMAR = Grammar(GrammarKind.CHOICE, json.dumps(CHOICES))


@pytest.fixture
def example(site: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    write_distribution(site, "tgi-choices", "tgi_choices", source)


@pytest.mark.usefixtures("example")
def test_the_example_of_the_documentation_works(byte_level: Vocabulary) -> None:
    engine = Plugins.discover().choose_grammar_engine("choices")
    compiler = engine.open(byte_level)
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    rng = np.random.default_rng(1)
    texts = set()
    for _ in range(30):
        reply = sample_reply(compiler, compiler.compile(GRAMMAR).copy(), byte_level, rng, max_tokens=30)
        assert reply.is_complete
        texts.add(tokenizer.decode(reply.token_ids, False))
    assert texts == set(CHOICES)

    async def check() -> None:
        checker = GrammarChecker("choices", byte_level)
        assert await checker.check(GRAMMAR) == GRAMMAR
        with pytest.raises(GrammarError, match="this engine knows choices only"):
            await checker.check(Grammar(GrammarKind.REGEX, "a"))
        await checker.close()

    asyncio.run(check())


@pytest.mark.usefixtures("example")
def test_the_example_serves_rows(byte_level: Vocabulary) -> None:
    constraints = Constraints(Plugins.discover().choose_grammar_engine("choices"), byte_level)
    good, bad = (constraints.prepare(GRAMMAR).result(20) for _ in range(2))
    assert not bad.accept(0)
    assert "token 0 begins no choice" in bad.error
    job = constraints.start_masks([good])
    assert job.wait(20)
    assert np.unpackbits(np.frombuffer(job.masks([0]), np.uint8)).sum() >= 3
    constraints.close()


def test_unknown_and_doubled_engines_are_refused_at_start(site: Path) -> None:
    with pytest.raises(StartupError, match="There is no grammar engine `nope`; installed are: llguidance"):
        Plugins.discover().choose_grammar_engine("nope")
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for number in (1, 2):
        write_distribution(site, f"tgi-twice-{number}", f"tgi_twice_{number}", source)
    with pytest.raises(StartupError, match="Two plugins offer a grammar engine named `choices`"):
        Plugins.discover().grammar_engines()
