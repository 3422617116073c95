"""Which way a model runs, and at what cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.tiny_models import make_model
from tgi_core.models.choose import choose_model
from tgi_core.models.decoder import attention_specs
from tgi_core.models.own import OwnModel

_CHOOSE = """
import sys
from pathlib import Path
from tgi_core.models.choose import choose_model
print(choose_model(Path(sys.argv[1])).path, "transformers" in sys.modules)
"""


def test_an_architecture_of_ours_is_chosen_without_transformers(tmp_path: Path) -> None:
    make_model("gemma2", tmp_path)
    command = [sys.executable, "-c", _CHOOSE, str(tmp_path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told == "architecture `gemma2` of tgi-serve False\n"


def test_layers_share_a_group_by_their_attention(tmp_path: Path) -> None:
    make_model("gemma2", tmp_path)
    model = choose_model(tmp_path)
    assert isinstance(model, OwnModel)
    assert model.attention == attention_specs(model.spec)
    assert [spec.window for spec in model.attention] == [20, None]
    assert model.group_of_layer == (0, 1, 0, 1)
    assert model.reason == ""
