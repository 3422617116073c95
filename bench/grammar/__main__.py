"""``python -m bench.grammar``: what structured output costs the host, at a vocabulary of 262,144 tokens.

For each constraint: the time to compile it, to make the mask of one token, to accept a token, and to make the masks of
64 rows through ``Constraints`` as an engine does. Single masks are measured in processor time, so other processes do
not count. Each reply starts from a copy of the compiled constraint.

Replies are of two kinds. Typical ones are texts that a model would give, in its tokens. Random ones are sampled from
random logits under the masks: such a model writes strings up to their ``maxLength``, and a mask just before that end is
the most expensive kind, since every token has to be looked at for its length.
"""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version
from pathlib import Path

import click
import msgspec

from tgi_core.plugins import Plugins
from tgi_core.sampling.grammar import GrammarEngine, Vocabulary

from .cases import CASES
from .measure import BATCH, Bench, Row
from .tokenizer import VOCAB_SIZE, synthetic_tokenizer

MASK_TARGET_US = {"median": 100.0, "mean": 250.0}
"""Of typical replies under JSON schemas."""


class Report(msgspec.Struct, frozen=True):
    """A run. ``load_average`` says how busy the machine was at its end."""

    tokenizer: str
    vocab_size: int
    engine: str
    engine_version: str
    cpus: int
    load_average: float
    open_s: float
    rows: list[Row]


def _table(report: Report) -> str:
    lines = [
        f"{report.engine} {report.engine_version}, {report.vocab_size:,} tokens ({report.tokenizer}), "
        f"{report.cpus} CPUs, load {report.load_average:.1f}, opened in {report.open_s:.1f} s",
        "",
        "| constraint | replies | compile, ms | mask, us: median | mean | p99 | max | accept, us: median "
        f"| {BATCH} masks, ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report.rows:
        mask = row.mask_us
        lines.append(
            f"| {row.name} | {row.replies} | {row.compile_ms:.1f} | {mask.median:.0f} | {mask.mean:.0f} | "
            f"{mask.p99:.0f} | {mask.max:.0f} | {row.accept_us.median:.1f} | {row.batch_ms:.1f} |"
        )
    return "\n".join(lines)


def run(engine: GrammarEngine, vocabulary: Vocabulary, tokenizer: str, replies: int) -> Report:
    """Measure every constraint under both kinds of replies."""
    bench = Bench(engine, vocabulary)
    rows = [bench.measure(name, typical=typical, replies=replies) for name in CASES for typical in (True, False)]
    bench.close()
    return Report(
        tokenizer=tokenizer,
        vocab_size=vocabulary.vocab_size,
        engine=engine.name,
        engine_version=version(engine.name),
        cpus=os.cpu_count() or 1,
        load_average=round(os.getloadavg()[0], 1),
        open_s=round(bench.open_s, 2),
        rows=rows,
    )


@click.command()
@click.option("--engine", "engine_name", default="llguidance", show_default=True, help="Grammar engine.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json; default: a synthetic one.")
@click.option("--vocab-size", default=VOCAB_SIZE, show_default=True, help="Width of the logits, with --tokenizer.")
@click.option("--eos", default=1, show_default=True, help="Id of the token that ends replies, with --tokenizer.")
@click.option("--replies", default=40, show_default=True, help="Replies sampled for each constraint.")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here too.")
def main(
    *, engine_name: str, tokenizer: Path | None, vocab_size: int, eos: int, replies: int, output: Path | None
) -> None:
    """Print the table; ends with status 1 when a typical reply's mask under a JSON schema misses its target."""
    engine = Plugins.discover().choose_grammar_engine(engine_name)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = (
            synthetic_tokenizer(Path(folder)) if tokenizer is None else Vocabulary(tokenizer, vocab_size, (eos,))
        )
        label = "DeepSeek's, grown by joining pairs" if tokenizer is None else tokenizer.parent.name
        report = run(engine, vocabulary, label, replies)
    click.echo(_table(report))
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    missed = [
        f"{row.name}: {statistic} {getattr(row.mask_us, statistic):.0f} us, target {target:.0f}"
        for row in report.rows
        if row.name.startswith("schema") and row.replies == "typical"
        for statistic, target in MASK_TARGET_US.items()
        if getattr(row.mask_us, statistic) > target
    ]
    if missed:
        raise click.ClickException("; ".join(missed))


if __name__ == "__main__":
    main()
