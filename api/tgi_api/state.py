"""What all handlers of one server share."""

from __future__ import annotations

import re

from tgi_api.admission import Permits
from tgi_api.errors import AnyRequest
from tgi_api.metrics import Metrics
from tgi_api.running import RunningCalls
from tgi_core import __version__
from tgi_core.config import EngineInfo, ServerConfig
from tgi_core.engine.client import EngineClient
from tgi_core.errors import TemplateError
from tgi_core.requests import EncoderLimits, RequestLimits, TextTokenizer, keep_supported
from tgi_core.requests.chat_format import ChatFormats
from tgi_core.requests.tokenizer_python import grammar_obstacle
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.grammar.checker import GrammarChecker

MAX_TOKENIZATIONS = 32
"""They take milliseconds each, on a few threads: more at once would only wait."""


class AppState:
    """The server behind the routes; made when the first engine is up, so that its limits are known.

    Attributes:
        config: the configuration.
        client: the way to the engine.
        tokenizer: the model's.
        chat: how the model talks, or why it does not.
        grammars: tests constraints on the output; None where there may be none.
        defaults: what holds for parameters that a request does not name, as far as the device can do it.
        metrics: what was counted.
        permits: places for generations.
        tokenizations: places for requests that only tokenize; a server full of generations still takes them.
        running: calls that can be cancelled.
        fingerprint: ``system_fingerprint`` of OpenAI's replies.
        compute_type: value of the ``x-compute-type`` header.
    """

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        tokenizer: TextTokenizer,
        chat: ChatFormats | TemplateError,
        grammars: GrammarChecker | None,
        *,
        defaults: SamplingDefaults | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.tokenizer = tokenizer
        self.chat = chat
        self.grammars = grammars
        self.defaults = keep_supported(defaults or SamplingDefaults(), self.unsupported)
        self.metrics = Metrics(client, self.info)
        self.permits = Permits(config.api.max_concurrent_requests)
        self.tokenizations = Permits(MAX_TOKENIZATIONS, "tokenizations")
        self.running = RunningCalls()
        self.fingerprint = f"{__version__}-native"
        device = re.sub(r"[^a-z0-9.]+", "-", self.info.device.lower()).strip("-")
        self.compute_type = config.api.compute_type or f"1-{device}"
        client.on_step = self.metrics.observe_step

    @property
    def model_id(self) -> str:
        """The served model's name."""
        return self.config.model.model_id

    @property
    def model_names(self) -> tuple[str, ...]:
        """What the model may be called: its id first, then what ``--served-model-name`` adds."""
        return tuple(dict.fromkeys((self.model_id, *self.config.api.served_model_names)))

    @property
    def model_sha(self) -> str | None:
        """The commit of the hub repository; what was asked for where that is not known."""
        model = self.config.model
        # The hub's cache keeps each commit in a folder of its name.
        return model.model_dir.name if model.model_dir.parent.name == "snapshots" else model.revision

    @property
    def info(self) -> EngineInfo:
        """Limits of the engine that is up, or was last."""
        assert self.client.info is not None
        return self.client.info

    @property
    def unsupported(self) -> dict[str, str]:
        """What the device cannot do for a request, and why."""
        return {parameter.name: parameter.reason for parameter in self.info.unsupported_parameters}

    @property
    def limits(self) -> RequestLimits:
        """Limits of one request."""
        info, api, unsupported = self.info, self.config.api, self.unsupported
        no_grammars = unsupported.get("grammar", "") or ("" if self.grammars is not None else self._no_grammars)
        return RequestLimits(
            max_input_tokens=info.max_input_tokens,
            max_total_tokens=info.max_total_tokens,
            vocab_size=info.vocab_size,
            max_best_of=api.max_best_of,
            max_stop_sequences=api.max_stop_sequences,
            max_top_n_tokens=api.max_top_n_tokens,
            watermark_gamma=api.watermark_gamma,
            watermark_delta=api.watermark_delta,
            grammar_obstacle=no_grammars,
            extra_parameters=frozenset(info.extra_parameters),
            encoder=EncoderLimits(tuple(info.decoder_prompt), info.max_step_tokens) if info.decoder_prompt else None,
            defaults=self.defaults,
            unsupported=unsupported,
        )

    @property
    def _no_grammars(self) -> str:
        """Why outputs cannot be constrained."""
        return grammar_obstacle(self.tokenizer) or "it was started with --disable-grammar-support"

    @property
    def ill_health(self) -> str:
        """Why requests are not served at the moment; "" while they are."""
        if self.permits.is_closed:
            return "the server is shutting down"
        return self.client.trouble

    def require_chat(self) -> ChatFormats:
        """How the model talks.

        Raises:
            TemplateError: it has no chat template that works.
        """
        if isinstance(self.chat, TemplateError):
            raise TemplateError(self.chat.detail)
        return self.chat


def server_of(request: AnyRequest) -> AppState:
    """The state of the server that ``request`` came to."""
    server: AppState = request.app.state.server
    return server
