"""The engine process: builds the shard, warms it up, then runs the loop until it is told to stop."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tgi_core.config import EngineConfig, EngineInfo, ServerConfig
from tgi_core.contract import Backend, Capabilities, KVBudget, ShardLimits, ShardSpec
from tgi_core.engine.attention import choose_attention
from tgi_core.engine.channel import EngineChannel
from tgi_core.engine.control import Heartbeat, Loading, Ready, Refused, Shutdown, receive_control, send_control
from tgi_core.engine.limits import check_unsupported, find_decoder_prompt, may_chunk_prefill
from tgi_core.engine.loop import EngineLoop
from tgi_core.errors import DeviceLostError, DeviceMemoryError, ExitCode, LateCompileError, StartupError
from tgi_core.logs import configure_logging
from tgi_core.model_folder import ModelFolder
from tgi_core.plugins import Plugins, ask_capabilities
from tgi_core.sampling.grammar import Constraints, Vocabulary
from tgi_core.scheduler import Scheduler, SchedulerConfig

_LOG = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 0.5
HUNG_STEP_EXIT_CODE = 70
OUT_OF_MEMORY_EXIT_CODE = 71
DEVICE_LOST_EXIT_CODE = 72
LATE_COMPILE_EXIT_CODE = 73
_MIN_STEP_DEADLINE_S = 10.0
_STEP_DEADLINE_FACTOR = 20.0
_LONGEST_FIRST_STEP_S = 30.0
"""Warm-up runs the largest step, and so bounds the time of the first; but not where it also compiles or exports."""
_PAUSED_AFTER_S = 4 * HEARTBEAT_INTERVAL_S


def run_engine(config: ServerConfig, address: str, control: Connection) -> None:
    """Entry of the engine process; returns when the supervisor asks or is gone.

    A refusal is reported over ``control`` before the process ends; any later exception is a fault of the replica and
    ends the process, with an exit code of its own where the supervisor has words for it and else with a traceback.
    """
    # Both may reach the whole process group; stopping is the supervisor's decision, and running requests come first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logging(json_output=config.api.json_output, level=config.api.log_level)
    faulthandler.enable()
    try:
        engine = _Engine(config, address, control)
    except StartupError as refusal:
        send_control(control, Refused(refusal.cause, refusal.fix, refusal.exit_code))
        return
    try:
        engine.serve()
    except DeviceMemoryError as error:
        _LOG.critical(
            "A step found no memory on the device: %s. Another program may have taken it; if not, leave more of it "
            "free with a smaller --cuda-memory-fraction or --max-batch-prefill-tokens.",
            error,
        )
        sys.exit(OUT_OF_MEMORY_EXIT_CODE)
    except DeviceLostError as error:
        _LOG.critical("The device failed: %s. Its driver's log (dmesg) may say why.", error)
        sys.exit(DEVICE_LOST_EXIT_CODE)
    except LateCompileError as error:
        _LOG.critical("%s", error)
        sys.exit(LATE_COMPILE_EXIT_CODE)


class _Engine:
    """Start-up in the order it happens, then the loop with its two helper threads."""

    def __init__(self, config: ServerConfig, address: str, control: Connection) -> None:
        self._control = control
        self._folder = Path(address.removeprefix("ipc://")).parent
        backend = Plugins.discover().choose_backend(config.engine.backend)
        capabilities = ask_capabilities(backend)
        folder = ModelFolder(config.model.model_dir, tokenizer_config_path=config.model.tokenizer_config_path)
        dtype = choose_dtype(config.engine.dtype, folder.dtype_name, backend, capabilities)
        block_size = config.engine.block_size or capabilities.block_sizes[0]
        attention = choose_attention(
            backend,
            config.engine.attention,
            config.model.model_dir,
            dtype,
            block_size,
            trust_remote_code=config.model.trust_remote_code,
        )
        started = time.monotonic()
        self._constraints = _open_constraints(config.engine.grammar_engine, folder)
        self._shard = backend.create_shard(
            ShardSpec(
                model_dir=config.model.model_dir,
                dtype=dtype,
                load_format=config.engine.load_format,
                cpu_threads=config.engine.cpu_threads,
                eos_token_ids=tuple(sorted(folder.eos_token_ids)),
                attention=attention,
                trust_remote_code=config.model.trust_remote_code,
                world_size=config.engine.world_size,
                options=config.engine.backend_options,
            )
        )
        self._shard.load(self._report_loading)
        loaded = time.monotonic()
        chunked_prefill = may_chunk_prefill(config.engine, capabilities) and not self._shard.whole_prompts
        limits = ShardLimits(
            max_slots=config.engine.max_slots,
            max_step_tokens=config.engine.max_step_tokens,
            block_size=block_size,
            max_total_tokens=choose_max_total_tokens(
                config.engine, folder.max_position_embeddings, chunked_prefill=chunked_prefill
            ),
            kv_cache_bytes=config.engine.kv_cache_bytes,
            kv_cache_tokens=config.engine.kv_cache_tokens,
            memory_fraction=config.engine.memory_fraction,
            max_encoder_tokens=config.engine.max_input_tokens,
            strict_shapes=config.engine.strict_shapes,
        )
        budget = self._shard.warm_up(limits)
        decoder_prompt = find_decoder_prompt(folder, budget)
        warm = time.monotonic()
        scheduler = Scheduler(
            SchedulerConfig(
                max_slots=limits.max_slots,
                max_step_tokens=limits.max_step_tokens,
                eos_token_ids=folder.eos_token_ids,
                prefix_cache=capabilities.prefix_cache and config.engine.prefix_cache,
                chunked_prefill=chunked_prefill,
                mixed_batches=capabilities.mixed_batches,
            ),
            budget,
        )
        run_ahead = capabilities.run_ahead if config.engine.run_ahead is None else config.engine.run_ahead
        self._channel = EngineChannel(address)
        self._loop = EngineLoop(
            self._shard,
            scheduler,
            self._channel,
            run_ahead=run_ahead,
            max_total_tokens=budget.max_total_tokens,
            constraints=self._constraints,
            decoder_prompt=decoder_prompt,
            max_encoder_tokens=budget.max_encoder_tokens,
        )
        self._loop.longest_step_s = min(warm - loaded, _LONGEST_FIRST_STEP_S)
        max_input_tokens = choose_max_input_tokens(config.engine, budget)
        notes = list(self._shard.notes)
        if self._constraints is not None and (obstacle := self._constraints.wait_open()):
            notes.append(f"requests that constrain their output are refused: {obstacle}")
        self._info = EngineInfo(
            max_input_tokens=max_input_tokens,
            max_total_tokens=budget.max_total_tokens,
            max_step_tokens=limits.max_step_tokens,
            max_slots=limits.max_slots,
            kv_tokens=scheduler.kv.main_pool.num_blocks * budget.block_size,
            block_size=budget.block_size,
            vocab_size=folder.vocab_size,
            dtype=dtype,
            device=backend.probe().devices[0].name,
            load_seconds=loaded - started,
            warm_up_seconds=warm - loaded,
            memory=[(line.name, line.size_bytes) for line in budget.memory],
            notes=notes,
            extra_parameters=list(self._shard.extra_parameters),
            decoder_prompt=list(decoder_prompt),
            unsupported_parameters=check_unsupported(self._shard.unsupported_parameters),
        )

    def serve(self) -> None:
        # Everything alive now stays alive: keep the collector from walking it on every pass.
        gc.collect()
        gc.freeze()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        send_control(self._control, Ready(self._info))
        self._loop.run()
        self._channel.close()
        if self._constraints is not None:
            self._constraints.close()
        self._shard.close()

    def _report_loading(self, done_bytes: int, total_bytes: int) -> None:
        send_control(self._control, Loading(done_bytes, total_bytes))

    def _beat(self) -> None:
        """Tell the supervisor that the process lives, and end it when a step hangs: a stuck device never returns."""
        while True:
            slept_from = time.monotonic()
            time.sleep(HEARTBEAT_INTERVAL_S)
            if time.monotonic() - slept_from > _PAUSED_AFTER_S and self._loop.busy_since is not None:
                # The whole process was paused, and so was the step: its time starts anew.
                self._loop.busy_since = time.monotonic()
            busy_since = self._loop.busy_since
            deadline_s = max(_MIN_STEP_DEADLINE_S, _STEP_DEADLINE_FACTOR * self._loop.longest_step_s)
            if busy_since is not None and time.monotonic() - busy_since > deadline_s:
                faulthandler.dump_traceback(all_threads=True)
                os._exit(HUNG_STEP_EXIT_CODE)
            send_control(self._control, Heartbeat())

    def _listen(self) -> None:
        try:
            while not isinstance(receive_control(self._control), Shutdown):
                pass
        except (EOFError, OSError):
            # The supervisor is gone: nobody is served any more, and nobody else removes the sockets' folder.
            shutil.rmtree(self._folder, ignore_errors=True)
        self._loop.stop()


def _open_constraints(engine: str | None, folder: ModelFolder) -> Constraints | None:
    """Structured output, being opened on a thread; None where it is switched off or there is no text to constrain."""
    if engine is None or not folder.has_tokenizer:
        return None
    vocabulary = Vocabulary(folder.tokenizer_file, folder.vocab_size, tuple(sorted(folder.eos_token_ids)))
    return Constraints(Plugins.discover().choose_grammar_engine(engine), vocabulary)


def choose_dtype(asked: str, checkpoint: str, backend: Backend, capabilities: Capabilities) -> str:
    """The dtype to compute in: the one asked for, or with "auto" the checkpoint's if the backend has it.

    Raises:
        StartupError: the backend does not have the one asked for.
    """
    if asked == "auto":
        return checkpoint if checkpoint in capabilities.dtypes else capabilities.dtypes[0]
    if asked not in capabilities.dtypes:
        known = ", ".join(capabilities.dtypes)
        raise StartupError(
            f"Backend `{backend.info.name}` cannot compute in {asked} on this machine.",
            f"Use --dtype with one of: {known}, or leave it out.",
            ExitCode.BACKEND,
        )
    return asked


def choose_max_total_tokens(config: EngineConfig, model_max_tokens: int | None, *, chunked_prefill: bool) -> int | None:
    """The longest sequence to ask the shard for; None leaves it to model and memory.

    Without chunked prefill a step must hold the longest sequence there can be: a preempted request computes all it has
    in one step.

    Raises:
        StartupError: a step does not hold the sequence that was asked for.
    """
    asked = config.max_total_tokens
    if chunked_prefill:
        return asked
    if asked is None:
        return min(config.max_step_tokens, model_max_tokens or config.max_step_tokens)
    if asked > config.max_step_tokens:
        raise StartupError(
            f"Without chunked prefill a step of {config.max_step_tokens} tokens cannot hold a sequence of {asked}.",
            f"Use --max-batch-prefill-tokens {asked} or more, or a smaller --max-total-tokens.",
            ExitCode.USAGE,
        )
    return asked


def choose_max_input_tokens(config: EngineConfig, budget: KVBudget) -> int:
    """The longest prompt: what was asked for, or one less than the longest sequence; or all that an encoder reads.

    Raises:
        StartupError: the limits contradict each other.
    """
    if budget.max_encoder_tokens:
        # What was asked for has gone into it.
        return budget.max_encoder_tokens
    longest = budget.max_total_tokens - 1
    asked = config.max_input_tokens
    if asked is None:
        return longest
    if asked > longest:
        raise StartupError(
            f"`max_input_tokens` is {asked}, but prompts here have at most {longest} tokens.",
            f"Use --max-input-tokens {longest} or less, or raise --max-total-tokens.",
            ExitCode.USAGE,
        )
    return asked


__all__ = ["HEARTBEAT_INTERVAL_S", "choose_dtype", "choose_max_input_tokens", "choose_max_total_tokens", "run_engine"]
