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
from tgi_core.requests import ChatTemplate, RequestLimits, TextTokenizer
from tgi_core.sampling.grammar.checker import GrammarChecker


class AppState:
    """The server behind the routes; made when the first engine is up, so that its limits are known.

    Attributes:
        config: the configuration.
        client: the way to the engine.
        tokenizer: the model's.
        template: the model's chat template, or why there is none.
        grammars: tests constraints on the output; None where there may be none.
        metrics: what was counted.
        permits: places for generations.
        running: calls that can be cancelled.
        fingerprint: ``system_fingerprint`` of OpenAI's replies.
        compute_type: value of the ``x-compute-type`` header.
    """

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        tokenizer: TextTokenizer,
        template: ChatTemplate | TemplateError,
        grammars: GrammarChecker | None,
    ) -> None:
        self.config = config
        self.client = client
        self.tokenizer = tokenizer
        self.template = template
        self.grammars = grammars
        self.metrics = Metrics(client, self.info)
        self.permits = Permits(config.api.max_concurrent_requests)
        self.running = RunningCalls()
        self.fingerprint = f"{__version__}-native"
        self.compute_type = f"1-{re.sub(r'[^a-z0-9.]+', '-', self.info.device.lower()).strip('-')}"
        client.on_step = self.metrics.observe_step

    @property
    def model_id(self) -> str:
        """The served model's name."""
        return self.config.model.model_id

    @property
    def info(self) -> EngineInfo:
        """Limits of the engine that is up, or was last."""
        assert self.client.info is not None
        return self.client.info

    @property
    def limits(self) -> RequestLimits:
        """Limits of one request."""
        info, api = self.info, self.config.api
        return RequestLimits(
            max_input_tokens=info.max_input_tokens,
            max_total_tokens=info.max_total_tokens,
            vocab_size=info.vocab_size,
            max_best_of=api.max_best_of,
            max_stop_sequences=api.max_stop_sequences,
            max_top_n_tokens=api.max_top_n_tokens,
            watermark_gamma=api.watermark_gamma,
            watermark_delta=api.watermark_delta,
            allows_grammar=self.grammars is not None,
            extra_parameters=frozenset(info.extra_parameters),
        )

    @property
    def ill_health(self) -> str:
        """Why requests are not served at the moment; "" while they are."""
        if self.permits.is_closed:
            return "the server is shutting down"
        return self.client.trouble

    def require_template(self) -> ChatTemplate:
        """The chat template.

        Raises:
            TemplateError: the model has none that works.
        """
        if isinstance(self.template, TemplateError):
            raise TemplateError(self.template.detail)
        return self.template


def server_of(request: AnyRequest) -> AppState:
    """The state of the server that ``request`` came to."""
    server: AppState = request.app.state.server
    return server
