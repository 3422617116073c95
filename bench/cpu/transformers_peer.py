"""transformers' ``generate`` as a process in the peers' environment; transformers_worker.py holds its other end.

Set up as well as it can be without compiling: bf16, SDPA attention, key/value cache, no gradient bookkeeping, greedy,
and no end-of-sequence check, so that every run makes exactly the tokens asked for.

One JSON object a line: ``{"name"}`` once it is ready, then ``{"seconds"}`` for each ``{"prompts", "new_tokens"}``.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import transformers


def main() -> None:
    """Arguments: model folder, threads."""
    model_dir, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    settings = transformers.GenerationConfig(do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
    model.generation_config = settings
    print(json.dumps({"name": f"transformers {transformers.__version__}, torch {torch.__version__}"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids_BT = torch.tensor(request["prompts"])
        new_tokens = request["new_tokens"]
        with torch.inference_mode():
            start = time.perf_counter()
            output_BT = model.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=new_tokens)
            seconds = time.perf_counter() - start
        made = output_BT.shape[1] - ids_BT.shape[1]
        if made != new_tokens:
            raise RuntimeError(f"transformers made {made} tokens instead of {new_tokens}")
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
