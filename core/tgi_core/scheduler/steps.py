"""A step in the making, a step under way, and what a step has given."""

from __future__ import annotations

from tgi_core.contract import AppendedBlocks, NewSlot, StepPlan, TopTokens
from tgi_core.sampling.params import Tier
from tgi_core.scheduler.request import Finish, Request


class Outputs:
    """What a collected step gave, as columns; one entry a token that is delivered.

    ``tops`` is empty in a step without alternatives, ``prompts`` names the requests whose prompt's log-probabilities
    became complete with their first token here.
    """

    __slots__ = ("finishes", "logprobs", "prompts", "requests", "token_ids", "tops")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finishes: list[Finish] = []
        self.tops: list[TopTokens | None] = []
        self.prompts: list[Request] = []


class Launched:
    """A step whose result is awaited: the requests of its rows, in row order."""

    __slots__ = ("epochs", "q_lens", "requests", "samples", "slots", "step")

    def __init__(self, step: int, requests: list[Request], plan: StepPlan) -> None:
        self.step = step
        self.requests = requests
        self.slots = plan.slots
        self.epochs = plan.epochs
        # Copies: a row that sits its sampling out has computed less than the plan says.
        self.q_lens = list(plan.q_lens)
        self.samples = list(plan.samples)


class PlanBuilder:
    """The columns of a plan in the making.

    Attributes:
        budget: tokens that rows may still compute.
        encoder_budget: tokens of inputs that encoders may still compute, which they do before the rows.
    """

    __slots__ = (
        "appended",
        "budget",
        "encoder_budget",
        "epochs",
        "kv_lens",
        "late",
        "new_slots",
        "prompt_logprobs",
        "q_lens",
        "requests",
        "samples",
        "slots",
        "tier",
    )

    def __init__(self, budget: int, new_slots: list[NewSlot], appended: list[AppendedBlocks]) -> None:
        self.budget = budget
        self.encoder_budget = budget
        self.new_slots = new_slots
        self.appended = appended
        self.requests: list[Request] = []
        self.slots: list[int] = []
        self.epochs: list[int] = []
        self.q_lens: list[int] = []
        self.kv_lens: list[int] = []
        self.samples: list[bool] = []
        self.prompt_logprobs: list[int] = []
        self.tier = Tier.GREEDY
        self.late = False

    def enter(self, request: Request) -> None:
        """Tell the device tables of a request that has got a slot."""
        token_ids, encoder_ids = list(request.token_ids), request.encoder_ids
        self.new_slots.append(
            NewSlot(request.slot, token_ids, request.prompt_len, request.sampling, encoder_ids=encoder_ids)
        )
        self.encoder_budget -= len(encoder_ids)

    def add_row(self, request: Request, q_len: int, step: int) -> None:
        """Let ``request`` compute its next ``q_len`` tokens, and sample when these are all it has."""
        kv_len = request.computed + q_len
        samples = kv_len == request.total
        if request.needs_prompt_logprobs:
            self.prompt_logprobs.append(len(self.slots))
        self.requests.append(request)
        self.slots.append(request.slot)
        self.epochs.append(request.epoch)
        self.q_lens.append(q_len)
        self.kv_lens.append(kv_len)
        self.samples.append(samples)
        self.budget -= q_len
        request.computed = kv_len
        request.last_step = step
        if samples:
            request.total += 1
            request.in_flight += 1
            self.tier = max(self.tier, request.tier)
            if request.matcher is not None:
                self.late = True
