"""Replies that are held to calls: what the grammar lets through is what the family writes, and is read as calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.support.replies import TOOLS, parse
from tests.support.text_tokenizers import byte_level_json
from tgi_core.errors import ValidationError
from tgi_core.plugins import Plugins
from tgi_core.requests.chat_format import call_form
from tgi_core.requests.replies import ReplyContext, collect_reply
from tgi_core.requests.tools import ARGUMENTS, NAME, ToolParser, ToolUse, read_tools
from tgi_core.requests.tools.grammar import ReplyGrammar
from tgi_core.sampling.grammar import Grammar, GrammarCompiler, GrammarKind, Vocabulary

EOS_ID = 1
SPECIAL = sorted({token for parser in TOOLS.values() for token in parser.special_tokens if not token.startswith("`")})
MARKED = [*SPECIAL, "</think>"]
ONE_SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "$defs": {"city": {"enum": ["Rome", "Bonn"]}},
}
FREE = read_tools(
    [{"function": {"name": "weather", "parameters": ONE_SCHEMA}}, {"function": {"name": "now"}}], None, None
)
ARGUMENTS_OF = {"weather": '{"city": "Rome"}', "now": "{}"}
ANSWER = Grammar(
    GrammarKind.JSON_SCHEMA, '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
)


def use() -> ToolUse:
    assert FREE is not None
    return FREE


class Model:
    """A tokenizer with the special tokens of all families, and the grammars that it makes."""

    def __init__(self, folder: Path, special: list[str]) -> None:
        self.tokenizer = Tokenizer.from_str(byte_level_json())
        self.tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
        file = folder / "tokenizer.json"
        self.tokenizer.save(str(file))
        vocabulary = Vocabulary(file, self.tokenizer.get_vocab_size(), (EOS_ID,))
        self.compiler: GrammarCompiler = Plugins.discover().choose_grammar_engine("llguidance").open(vocabulary)
        self.special_ids = {token: self.tokenizer.token_to_id(token) for token in special}

    def takes(self, grammar: Grammar, text: str) -> bool:
        """Whether ``text`` is a whole reply."""
        matcher = self.compiler.compile(grammar)
        ids = [*self.tokenizer.encode(text, add_special_tokens=False).ids, EOS_ID]
        return all(matcher.accept(token_id) for token_id in ids)

    def grammar(self, think_end: str | None = None) -> ReplyGrammar:
        return ReplyGrammar(self.special_ids, think_end)


@pytest.fixture(scope="module", params=["special", "plain"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"), MARKED if request.param == "special" else [])


def write(parser: ToolParser, *names: str) -> str:
    """Calls of ``names`` as the family writes them."""
    form = call_form(parser)
    calls = [form.call.replace(NAME, name).replace(ARGUMENTS, ARGUMENTS_OF[name]) for name in names]
    return form.begin + form.between.join(calls) + form.end


@pytest.mark.parametrize("parser", TOOLS.values(), ids=TOOLS)
def test_calls_are_written_and_read(model: Model, parser: ToolParser) -> None:
    tools = use()
    reader = parser if parser.form is not None else TOOLS["json"]
    grammar = model.grammar().demand_calls(tools.tools, call_form(parser), None)
    assert model.takes(grammar, write(parser, "weather"))
    assert model.takes(grammar, write(parser, "now"))
    assert not model.takes(grammar, "It is warm in Rome.")
    assert not model.takes(grammar, write(parser, "weather").replace("Rome", "Oslo"))
    assert not model.takes(grammar, write(parser, "weather").replace("weather", "whether"))
    (call,) = collect_reply(parse([reader], write(parser, "weather"), context=ReplyContext("", tools.names))).calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Rome"}')


@pytest.mark.parametrize("parser", TOOLS.values(), ids=TOOLS)
def test_several_calls(model: Model, parser: ToolParser) -> None:
    both = write(parser, "weather", "now")
    form = call_form(parser)
    assert model.takes(model.grammar().demand_calls(use().tools, form, None), both) == form.is_parallel
    assert not model.takes(model.grammar().demand_calls(use().tools, form, 1), both)
    if form.is_parallel:
        reader = parser if parser.form is not None else TOOLS["json"]
        parsed = collect_reply(parse([reader], both, context=ReplyContext("", use().names)))
        assert [(call.name, call.arguments) for call in parsed.calls] == list(ARGUMENTS_OF.items())


def test_calls_or_an_answer(model: Model) -> None:
    hermes = TOOLS["hermes"]
    grammar = model.grammar().allow_calls(use().tools, call_form(hermes), None, ANSWER)
    assert model.takes(grammar, write(hermes, "now"))
    assert model.takes(grammar, '{"ok": true}')
    assert not model.takes(grammar, '{"ok": 1}')


@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        (ANSWER, '{"ok":true}', "true"),
        (Grammar(GrammarKind.REGEX, "[a-z]+/[0-9]\n"), "abc/1\n", "abc"),
        (Grammar(GrammarKind.CHOICE, '["yes", "n\\"o"]'), 'n"o', "maybe"),
    ],
)
def test_reasoning_comes_before_what_is_constrained(model: Model, answer: Grammar, good: str, bad: str) -> None:
    grammar = model.grammar("</think>").answer(answer)
    assert model.takes(grammar, f"Let me\nsee. </think>\n\n{good}")
    assert not model.takes(grammar, f"Let me see.</think>{bad}")
    assert not model.takes(grammar, good)
    assert model.grammar().answer(answer) is answer


def test_reasoning_comes_before_demanded_calls(model: Model) -> None:
    hermes = TOOLS["hermes"]
    grammar = model.grammar("</think>").demand_calls(use().tools, call_form(hermes), None)
    assert model.takes(grammar, f"Which?\n</think>\n\n{write(hermes, 'weather')}")
    assert not model.takes(grammar, "Which?</think>None.")


def test_a_grammar_of_its_own_cannot_be_combined() -> None:
    answer = Grammar(GrammarKind.EBNF, "start: /a/")
    with pytest.raises(ValidationError, match="cannot be combined"):
        ReplyGrammar({}, "</think>").answer(answer)
    assert ReplyGrammar({}, None).answer(answer) is answer
