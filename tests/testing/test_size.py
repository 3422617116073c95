"""What a backend costs: its own lines of code.

Counted are lines that hold code: not blank ones, comments and docstrings, which are there to be read; not tests, and
not the Triton kernels that several backends share.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = {
    "backends/cpu": 400,
    "backends/gaudi": 700,
    "backends/neuron": 400,
    "backends/rocm": 400,
    "backends/tpu": 700,
    "backends/xpu": 400,
    "examples/backend-plugin": 150,
}
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of code in a module."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for statement in body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    docstrings |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            used |= set(range(token.start[0], token.end[0] + 1))
    return len(used - docstrings)


def count(folder: Path) -> int:
    """Lines of code in a folder, its tests included where it is somebody's whole distribution."""
    return sum(code_lines(path.read_text()) for path in folder.rglob("*.py") if "build" not in path.parts)


SOURCE = '''"""Doc."""

# why
x = [
    1,  # one
]


def f() -> None:
    """Doc
    more."""
    return
'''


def test_what_counts() -> None:
    assert code_lines(SOURCE) == 5


@pytest.mark.parametrize("folder", list(MOST))
def test_a_backend_is_small(folder: str) -> None:
    lines = count(ROOT / folder)
    print(f"{folder}: {lines} lines of code of {MOST[folder]}")
    assert 0 < lines <= MOST[folder]


def test_the_backend_with_most_of_its_own_is_told() -> None:
    print(f"backends/cuda: {count(ROOT / 'backends/cuda')} lines of code")
