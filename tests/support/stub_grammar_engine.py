"""A grammar engine whose constraints say, as regular expressions, how compiling them goes wrong. A plugin's source."""

STUB_ENGINE = """
import os
import sys
import time

from tgi_core.errors import StartupError
from tgi_core.hookspecs import hookimpl
from tgi_core.sampling.grammar import GrammarCompiler, GrammarEngine, GrammarError, Matcher


class StubMatcher(Matcher):
    error = ""
    is_complete = False

    def accept(self, token_id):
        return True

    def copy(self):
        return self


class StubCompiler(GrammarCompiler):
    def compile(self, grammar):
        what, _, how_much = grammar.source.partition(" ")
        if what == "spin":
            while True:
                pass
        elif what == "sleep":
            time.sleep(float(how_much))
        elif what == "eat":
            hoard = []
            while True:
                hoard.append(bytearray(1 << 20))
        elif what == "abort":
            print("last words", file=sys.stderr, flush=True)
            os.abort()
        elif what == "recurse":
            self.compile(grammar)
        elif what == "raise":
            raise ValueError("a bug")
        elif what == "refuse":
            raise GrammarError("not like this", "#/there")
        elif what == "parent":
            raise GrammarError(str(os.getppid()))
        return StubMatcher()

    def fill_masks(self, matchers, masks):
        masks[:] = -1


class StubEngine(GrammarEngine):
    name = "stub"

    def open(self, vocabulary):
        if vocabulary.vocab_size == 0:
            raise StartupError("The vocabulary is empty.", "Fill it.")
        if vocabulary.vocab_size == 1:
            os._exit(3)
        return StubCompiler()


@hookimpl
def tgi_grammar_engines():
    return [StubEngine()]
"""
