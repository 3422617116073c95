"""Whatever comes and goes, every request gives exactly what it gives alone, and everything is free in the end."""

from __future__ import annotations

from collections import defaultdict, deque

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paged_model import PagedModel, make_budget, solo_output
from tgi_core.contract import StepPlan
from tgi_core.sampling import SamplingParams
from tgi_core.sampling.grammar import Matcher
from tgi_core.scheduler import Finish, Request, Scheduler, SchedulerConfig

EOS = frozenset({7})
WORKER = b"w"
MAX_TOTAL = 40
MAX_ENCODER = 24


class Case(msgspec.Struct):
    """One request of a scenario."""

    prompt: list[int]
    max_new_tokens: int
    arrives: int
    leaves: int | None
    stops_after: int | None
    sits_out: int
    """A constrained request whose mask is late in every step whose number this does not divide; 0 is unconstrained."""
    prompt_logprobs: bool
    encoder_ids: list[int]
    """Only an encoder reads them."""


prompts = st.one_of(
    st.lists(st.integers(10, 13), min_size=1, max_size=24),
    # Equal blocks behind different beginnings, and one long beginning with different tails: the prefix cache's cases.
    st.lists(st.sampled_from([[10, 10, 10, 10], [11, 11, 11, 11]]), min_size=2, max_size=5).map(
        lambda blocks: [token for block in blocks for token in block] + [12]
    ),
    st.integers(0, 3).map(lambda tail: [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 30 + tail]),
)
cases = st.builds(
    Case,
    prompt=prompts,
    max_new_tokens=st.integers(1, 12),
    arrives=st.integers(0, 15),
    leaves=st.one_of(st.none(), st.none(), st.integers(0, 30)),
    stops_after=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    sits_out=st.sampled_from([0, 0, 1, 2, 3]),
    prompt_logprobs=st.sampled_from([False, False, True]),
    encoder_ids=st.lists(st.integers(10, 13), min_size=1, max_size=MAX_ENCODER),
)
settings_of_a_run = st.fixed_dictionaries(
    {
        "run_ahead": st.integers(0, 1),
        "max_slots": st.integers(1, 5),
        "max_step_tokens": st.integers(1, 32),
        "spare_blocks": st.integers(0, 25),
        "spare_encoder_blocks": st.one_of(st.none(), st.integers(0, 12)),
        "windows": st.sampled_from([[None], [None, 5], [5], [None, 3, 9]]),
        "prefix_cache": st.booleans(),
        "chunked_prefill": st.booleans(),
        "mixed_batches": st.booleans(),
    }
)


@settings(max_examples=400, deadline=None)
@given(st.lists(cases, min_size=1, max_size=8), settings_of_a_run)
def test_every_request_gives_its_solo_output(requests: list[Case], run: dict) -> None:
    block_size = 4
    windows = run["windows"]
    step_tokens = run["max_step_tokens"] if run["chunked_prefill"] else MAX_TOTAL
    blocks = [MAX_TOTAL // block_size + 1 + run["spare_blocks"] for _ in windows]
    spare = run["spare_encoder_blocks"]
    cross_blocks = 0 if spare is None else MAX_ENCODER // block_size + spare
    budget = make_budget(block_size, blocks, windows, MAX_TOTAL, cross_blocks)
    inputs = [case.encoder_ids[:step_tokens] if cross_blocks else [] for case in requests]
    config = SchedulerConfig(
        max_slots=run["max_slots"],
        max_step_tokens=step_tokens,
        eos_token_ids=EOS,
        prefix_cache=run["prefix_cache"],
        chunked_prefill=run["chunked_prefill"],
        mixed_batches=run["mixed_batches"],
    )
    scheduler = Scheduler(config, budget)
    model = PagedModel(budget, run["max_slots"])
    outputs: dict[int, list[int]] = defaultdict(list)
    finishes: dict[int, Finish] = {}
    prompt_logprobs: dict[int, list[float]] = {}
    in_flight: deque[int] = deque()
    kept: set[int] = set()

    def collect() -> None:
        in_flight.popleft()
        step = scheduler.apply(model.collect())
        for request in step.prompts:
            assert request.request_id not in outputs, "a prompt comes before the first token"
            assert request.prompt_logprobs is not None
            prompt_logprobs[request.request_id] = list(request.prompt_logprobs)
        for request, token, finish in zip(step.requests, step.token_ids, step.finishes, strict=True):
            number = request.request_id
            assert number not in finishes, "nothing follows a finish"
            outputs[number].append(token)
            if finish:
                finishes[number] = finish
            stops_after = requests[number].stops_after
            if stops_after == len(outputs[number]):
                scheduler.finish(WORKER, number, stops_after)
                finishes.setdefault(number, Finish.NOT)

    tick = 0
    last_arrival = max(case.arrives for case in requests)
    while tick <= last_arrival or scheduler.has_requests or in_flight:
        for number, case in enumerate(requests):
            if case.arrives == tick:
                scheduler.add(make_request(number, case, inputs[number]))
            if case.leaves == tick:
                scheduler.cancel(WORKER, number)
        plan = scheduler.plan()
        if plan is not None:
            # What a model keeps of slots by itself lasts from the plan in which one enters to the plan that frees it.
            kept.difference_update(plan.freed_slots)
            entering = {new.slot for new in plan.new_slots}
            assert not kept & entering, "a slot is freed before another request takes it"
            kept |= entering
            assert kept.issuperset(plan.slots)
            assert sum(len(new.encoder_ids) for new in plan.new_slots) <= step_tokens
            if plan.late:
                # Masks are made from known tokens: everything before the step is collected first.
                while in_flight:
                    collect()
                launch_late(scheduler, model, plan, requests)
            else:
                model.launch(plan)
            in_flight.append(plan.step)
        if len(in_flight) > run["run_ahead"] or (plan is None and in_flight):
            collect()
        tick += 1
        assert tick < 2000, "every request ends"
    for number, case in enumerate(requests):
        expected = solo_output(case.prompt, case.max_new_tokens, EOS, windows, inputs[number])
        got = outputs[number]
        assert got == expected[: len(got)]
        if case.prompt_logprobs and got:
            assert prompt_logprobs.pop(number) == [-float(token) for token in case.prompt[1:]]
        if case.leaves is None and case.stops_after is None:
            assert got == expected
            ended_by_length = len(expected) == case.max_new_tokens
            assert finishes[number] is (Finish.LENGTH if ended_by_length else Finish.EOS)
    assert not prompt_logprobs, "only who asks is told"
    assert scheduler.queue_size == scheduler.batch_size == 0
    assert all(pool.num_used == 0 for pool in scheduler.kv.pools)
    assert scheduler.plan() is None
    assert len(scheduler._free_slots) == run["max_slots"]
    assert kept <= set(scheduler._freed_slots), "the next plan would free what the last requests have left"
    assert not scheduler.kv._pending


def make_request(number: int, case: Case, encoder_ids: list[int]) -> Request:
    request = Request(
        WORKER,
        number,
        list(case.prompt),
        case.max_new_tokens,
        SamplingParams(),
        prompt_logprobs=case.prompt_logprobs,
        encoder_ids=encoder_ids,
    )
    if case.sits_out:
        request.matcher = AnyMatcher()
    return request


def launch_late(scheduler: Scheduler, model: PagedModel, plan: StepPlan, requests: list[Case]) -> None:
    """Some masks are not ready."""
    late = [
        (row, request)
        for row, request in scheduler.constrained_rows()
        if plan.step % requests[request.request_id].sits_out
    ]
    scheduler.sit_out([request for _, request in late])
    model.launch(plan, [row for row, _ in late])


class AnyMatcher(Matcher):
    """Allows everything."""

    error = ""
    is_complete = False

    def accept(self, token_id: int) -> bool:
        return True

    def copy(self) -> Matcher:
        return self
