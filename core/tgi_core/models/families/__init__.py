"""The architectures that ship with the core. A new one is a function that fills a spec and an ``Architecture``."""

from __future__ import annotations

from tgi_core.models.families.alibi import ALIBI
from tgi_core.models.families.deepseek import DEEPSEEK
from tgi_core.models.families.delta import DELTA
from tgi_core.models.families.gemma import GEMMA
from tgi_core.models.families.gpt import GPT
from tgi_core.models.families.llama import LLAMA
from tgi_core.models.families.llama4 import LLAMA4
from tgi_core.models.families.moe import MOE
from tgi_core.models.families.out_norm import OUT_NORM
from tgi_core.models.families.parallel import PARALLEL
from tgi_core.models.families.qwen import QWEN
from tgi_core.models.family import Architecture

ARCHITECTURES: tuple[Architecture, ...] = (
    *LLAMA,
    *QWEN,
    *GEMMA,
    *PARALLEL,
    *OUT_NORM,
    *GPT,
    *ALIBI,
    *MOE,
    *DEEPSEEK,
    *LLAMA4,
    *DELTA,
)
