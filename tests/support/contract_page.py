"""docs/backends/contract.md, out of the contract's docstrings.

``python -m tests.support.contract_page`` writes it anew.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import tgi_core.contract

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "contract.md"
MODULES = ("backend", "capabilities", "device", "kernels", "experts", "states", "attention", "shard", "plan", "state")
"""In the order in which an author needs them."""

_INTRODUCTION = """# The contract with a backend

Made from the docstrings of `tgi_core/contract` by `python -m tests.support.contract_page`; edit those. How to write a
backend, step by step: [write-a-backend.md](write-a-backend.md).

"""
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")


def page() -> str:
    """The page in Markdown."""
    parts = [_INTRODUCTION, _prose(inspect.getdoc(tgi_core.contract) or "")]
    folder = Path(tgi_core.contract.__file__).parent
    for name in MODULES:
        source = (folder / f"{name}.py").read_text()
        tree = ast.parse(source)
        parts.append(f"\n## `tgi_core.contract.{name}`\n\n{_prose(ast.get_docstring(tree) or '')}")
        parts += _definitions(tree, source)
    return "".join(parts)


def _definitions(tree: ast.Module, source: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"\n### {node.name}\n\n{_prose(ast.get_docstring(node) or '')}"
            yield from _members(node, source)


def _members(owner: ast.ClassDef, source: str) -> Iterator[str]:
    fields = [node for node in owner.body if isinstance(node, ast.AnnAssign | ast.Assign)]
    values = [ast.get_source_segment(source, node) or "" for node in fields]
    if values:
        yield "\n```python\n" + "\n".join(values) + "\n```\n"
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"\n**`{_signature(node)}`**\n\n{_prose(ast.get_docstring(node) or '')}"


def _signature(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if "property" in decorators:
        return f"{node.name}{returns.replace(' -> ', ': ')}"
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    required = " (to be written)" if "abstractmethod" in decorators else ""
    return f"{node.name}({arguments}){returns}{required}"


def _prose(text: str) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    in_section = False
    for line in text.replace("``", "`").splitlines():
        if _SECTION.match(line):
            in_section = True
            lines += [line, ""]
        elif in_section and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(":")
            lines.append(f"- `{name}`:{rest}" if colon else f"- {name}")
        elif in_section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            in_section = in_section and not line.strip()
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
