from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import Api, make_state, open_api, write_tokenizer
from tgi_core.requests import TextTokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextTokenizer]:
    tokenizer = TextTokenizer(write_tokenizer(tmp_path_factory.mktemp("tiny")), workers=1)
    yield tokenizer
    tokenizer.close()


@pytest.fixture
def api(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server that continues everything with " fox jumps"."""
    with open_api(make_state(tokenizer)) as api:
        api.engine.say(" fox jumps")
        yield api


@pytest.fixture(scope="session")
def shared_api(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server for requests that it refuses; nothing about it may be counted or changed."""
    with open_api(make_state(tokenizer)) as api:
        yield api
