from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.text_tokenizers import byte_level_json, load, metaspace_json
from tgi_core.requests import TextTokenizer


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextTokenizer]:
    tokenizer = load(tmp_path_factory.mktemp("byte_level"), byte_level_json())
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextTokenizer]:
    tokenizer = load(tmp_path_factory.mktemp("metaspace"), metaspace_json())
    yield tokenizer
    tokenizer.close()
