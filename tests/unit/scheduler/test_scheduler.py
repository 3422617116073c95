"""What the scheduler decides, case by case; the property tests cover what comes of it."""

from __future__ import annotations

from tests.support.paged_model import PagedModel, make_budget, solo_output
from tgi_core.contract import KVBudget, StepPlan, StepResult
from tgi_core.sampling import SamplingParams, Tier
from tgi_core.scheduler import Finish, Request, Scheduler, SchedulerConfig

BLOCK = 4


def make_scheduler(
    *, slots: int = 4, step_tokens: int = 16, blocks: int = 32, budget: KVBudget | None = None, **switches: bool
) -> tuple[Scheduler, PagedModel]:
    budget = budget or make_budget(BLOCK, [blocks], [None], 64)
    config = SchedulerConfig(max_slots=slots, max_step_tokens=step_tokens, eos_token_ids=frozenset({0}), **switches)
    return Scheduler(config, budget), PagedModel(budget, slots)


def add(scheduler: Scheduler, number: int, prompt: list[int], max_new_tokens: int = 8, **sampling: object) -> Request:
    request = Request(b"w", number, list(prompt), max_new_tokens, SamplingParams(**sampling))  # type: ignore[arg-type]
    scheduler.add(request)
    return request


def step(scheduler: Scheduler, model: PagedModel) -> StepPlan | None:
    plan = scheduler.plan()
    if plan is not None:
        model.launch(plan)
        scheduler.apply(model.collect())
    return plan


def test_decodes_come_first_and_prefill_fills_the_budget() -> None:
    scheduler, model = make_scheduler(step_tokens=10)
    add(scheduler, 1, [9, 9, 9])
    step(scheduler, model)
    add(scheduler, 2, list(range(20)))
    plan = step(scheduler, model)
    assert plan is not None
    assert (plan.q_lens, plan.num_decodes, plan.samples) == ([1, 9], 1, [True, False])
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.q_lens == [1, 9]
    plan = step(scheduler, model)
    assert plan is not None
    assert (plan.q_lens, plan.samples) == ([1, 2], [True, True])


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    scheduler, model = make_scheduler(step_tokens=10, chunked_prefill=False)
    add(scheduler, 1, [9] * 6)
    add(scheduler, 2, [8] * 6)
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.q_lens == [6]
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.q_lens == [1, 6]


def test_without_mixing_a_step_is_prefill_or_decode() -> None:
    scheduler, model = make_scheduler(mixed_batches=False)
    add(scheduler, 1, [9] * 3)
    step(scheduler, model)
    add(scheduler, 2, [8] * 5)
    plan = step(scheduler, model)
    assert plan is not None
    assert (plan.q_lens, plan.num_decodes) == ([5], 0)
    plan = step(scheduler, model)
    assert plan is not None
    assert (plan.q_lens, plan.num_decodes) == ([1, 1], 2)


def test_the_step_takes_the_tier_of_its_most_demanding_row() -> None:
    scheduler, model = make_scheduler(step_tokens=4)
    add(scheduler, 1, [9, 9])
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.tier is Tier.GREEDY
    add(scheduler, 2, [8] * 4, do_sample=True)
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.tier is Tier.GREEDY, "a chunk that does not sample costs no sampling"
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.tier is Tier.SAMPLED


def test_a_prefix_hit_leaves_at_least_one_token_to_compute() -> None:
    scheduler, model = make_scheduler()
    add(scheduler, 1, list(range(1, 9)), max_new_tokens=1)
    step(scheduler, model)
    again = add(scheduler, 2, list(range(1, 9)), max_new_tokens=1)
    plan = step(scheduler, model)
    assert plan is not None
    assert (plan.q_lens, again.cached_len) == ([4], 4)


def test_generated_tokens_are_cached_too() -> None:
    scheduler, model = make_scheduler()
    first = add(scheduler, 1, [1, 2, 3], max_new_tokens=12)
    while scheduler.has_requests:
        step(scheduler, model)
    follow_up = add(scheduler, 2, [*first.token_ids, 5, 5, 5])
    step(scheduler, model)
    # The last token's keys and values were never computed, so only full blocks before it can be there.
    assert follow_up.cached_len == (len(first.token_ids) - 1) // BLOCK * BLOCK


def test_equal_prompts_in_flight_wait_for_the_first_ones_blocks() -> None:
    scheduler, model = make_scheduler(step_tokens=64)
    prompt = list(range(1, 18))
    add(scheduler, 1, prompt)
    others = [add(scheduler, number, prompt) for number in (2, 3)]
    unrelated = add(scheduler, 4, [30] * 6)
    plan = scheduler.plan()
    assert plan is not None
    assert plan.q_lens == [17, 6], "an unrelated request passes those that wait"
    assert unrelated.slot >= 0
    model.launch(plan)
    scheduler.apply(model.collect())
    plan = step(scheduler, model)
    assert plan is not None
    assert plan.q_lens == [1, 1, 1, 1]
    assert [other.cached_len for other in others] == [16, 16]


def test_a_cancelled_first_asker_does_not_leave_the_others_waiting() -> None:
    scheduler, _ = make_scheduler()
    prompt = list(range(1, 18))
    add(scheduler, 1, prompt)
    add(scheduler, 2, prompt)
    assert scheduler.plan() is not None
    scheduler.cancel(b"w", 1)
    plan = scheduler.plan()
    assert plan is not None
    assert len(plan.new_slots) == 1


def test_the_youngest_is_preempted_and_comes_back_first() -> None:
    scheduler, model = make_scheduler(blocks=4, slots=2)
    old = add(scheduler, 1, [1, 2, 3, 4, 5, 6, 7], max_new_tokens=9)
    young = add(scheduler, 2, [8, 9, 10], max_new_tokens=9)
    late = add(scheduler, 3, [11], max_new_tokens=2)
    while scheduler.preemptions == 0:
        step(scheduler, model)
    assert young.slot == -1
    assert old.slot >= 0
    assert late.slot == -1
    while young.slot == -1:
        step(scheduler, model)
    assert not late.was_admitted
    while scheduler.has_requests:
        step(scheduler, model)
    assert young.num_output_tokens > 0


def test_a_slot_is_not_reused_before_its_last_step_is_collected() -> None:
    scheduler, model = make_scheduler(slots=1)
    add(scheduler, 1, [1, 2, 3])
    plan = scheduler.plan()
    assert plan is not None
    model.launch(plan)
    scheduler.cancel(b"w", 1)
    add(scheduler, 2, [4, 5])
    assert scheduler.plan() is None
    outputs = scheduler.apply(model.collect())
    assert outputs.requests == []
    plan = scheduler.plan()
    assert plan is not None
    assert plan.epochs == [2]


def test_a_length_finish_beats_an_eos_on_the_last_token() -> None:
    scheduler, _ = make_scheduler()
    add(scheduler, 1, [1], max_new_tokens=1)
    plan = scheduler.plan()
    assert plan is not None
    outputs = scheduler.apply(StepResult(plan.step, plan.slots, plan.epochs, [0], [-1.0]))
    assert outputs.finishes == [Finish.LENGTH]


def test_ignore_eos_goes_on() -> None:
    scheduler, _ = make_scheduler()
    request = Request(b"w", 1, [1], 3, SamplingParams(), ignore_eos=True)
    scheduler.add(request)
    plan = scheduler.plan()
    assert plan is not None
    outputs = scheduler.apply(StepResult(plan.step, plan.slots, plan.epochs, [0], [-1.0]))
    assert outputs.finishes == [Finish.NOT]


def test_a_stop_token_ends_its_request_alone_and_not_before_min_tokens() -> None:
    scheduler, model = make_scheduler()
    output = solo_output([9, 9], 8, frozenset({0}), [None])
    assert len(output) == 3
    sampling = [SamplingParams(), SamplingParams(), SamplingParams(min_tokens=2)]
    stops: list[list[int]] = [[], [output[1]], [output[1]]]
    requests = [Request(b"w", number, [9, 9], 8, sampling[number], stop_token_ids=stops[number]) for number in range(3)]
    for request in requests:
        scheduler.add(request)
    finishes: dict[int, Finish] = {}
    while (plan := scheduler.plan()) is not None:
        model.launch(plan)
        outputs = scheduler.apply(model.collect())
        for request, finish in zip(outputs.requests, outputs.finishes, strict=True):
            finishes[request.request_id] = finish
    assert [request.token_ids[2:] for request in requests] == [output, output[:2], output]
    assert finishes == {0: Finish.EOS, 1: Finish.STOP_TOKEN, 2: Finish.EOS}


def test_window_groups_give_back_what_no_later_token_sees() -> None:
    budget = make_budget(BLOCK, [16, 4], [None, 6], 60)
    scheduler, model = make_scheduler(budget=budget, step_tokens=4)
    request = add(scheduler, 1, list(range(1, 40)), max_new_tokens=20)
    while scheduler.has_requests:
        step(scheduler, model)
        if request.slot >= 0:
            assert scheduler.kv.pools[1].num_used <= 4
    assert request.num_output_tokens > 0
    assert [pool.num_used for pool in scheduler.kv.pools] == [0, 0]


def test_cancelling_a_worker_ends_all_it_asked_for() -> None:
    scheduler, model = make_scheduler(slots=1)
    add(scheduler, 1, [1, 2])
    add(scheduler, 2, [3, 4])
    scheduler.add(Request(b"other", 1, [5], 2, SamplingParams()))
    step(scheduler, model)
    scheduler.cancel_worker(b"w")
    assert (scheduler.batch_size, scheduler.queue_size) == (0, 1)


def test_a_step_reads_no_more_input_than_it_holds_whatever_decodes_beside_it() -> None:
    budget = make_budget(BLOCK, [32], [None], 64, cross_blocks=32)
    scheduler, model = make_scheduler(step_tokens=16, budget=budget)
    for number, length in enumerate((10, 7, 16)):
        request = Request(b"w", number, [5], 8, SamplingParams(), encoder_ids=[9] * length)
        scheduler.add(request)
    inputs = []
    for _ in range(4):
        plan = step(scheduler, model)
        assert plan is not None
        inputs.append([len(new.encoder_ids) for new in plan.new_slots])
    assert inputs == [[10], [7], [16], []]


def test_a_request_waits_until_its_input_fits_the_cache() -> None:
    scheduler, model = make_scheduler(budget=make_budget(BLOCK, [32], [None], 64, cross_blocks=4))
    for number in range(2):
        scheduler.add(Request(b"w", number, [5], 3, SamplingParams(), encoder_ids=[9] * 9))
    step(scheduler, model)
    assert (scheduler.batch_size, scheduler.queue_size) == (1, 1)
    assert scheduler.kv.pools[1].num_used == 3
    assert scheduler.kv.main_pool is scheduler.kv.pools[0]
    while scheduler.has_requests:
        step(scheduler, model)
    assert scheduler.kv.pools[1].num_used == 0


def test_nothing_is_told_of_a_request_that_left_its_slot_before_its_first_row() -> None:
    """Its blocks are another's by the time of the next plan, and what it would have written there would be wrong."""
    scheduler, model = make_scheduler(budget=make_budget(BLOCK, [2], [8], 64, cross_blocks=4))
    scheduler.add(Request(b"w", 1, [5] * 7, 1, SamplingParams(), encoder_ids=[9]))
    first = scheduler.plan()
    assert first is not None
    model.launch(first)
    # Window groups are not asked before a request enters; this one finds no block, and no plan tells of it.
    scheduler.add(Request(b"w", 2, [6], 1, SamplingParams(), encoder_ids=[8] * 12))
    assert scheduler.plan() is None
    assert scheduler.batch_size == 2
    scheduler.cancel(b"w", 2)
    scheduler.apply(model.collect())
    scheduler.add(Request(b"w", 3, [7], 1, SamplingParams(), encoder_ids=[7]))
    plan = scheduler.plan()
    assert plan is not None
    assert [new.encoder_ids for new in plan.new_slots] == [[7]]
    assert [len(entry.block_ids) for entry in plan.appended_blocks] == [1, 1]
