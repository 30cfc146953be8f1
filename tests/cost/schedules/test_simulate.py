"""The simulated pipeline: equal to the closed form where stages are uniform, sound elsewhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.schedules.bubble import (
    REGISTRY,
    chunks_in_flight,
    chunks_waiting,
    in_flight,
)
from planner.cost.schedules.schedule import Task
from planner.cost.schedules.simulate import StageTime, simulate
from planner.cost.schedules.timeline import Event, Timeline
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import SCHEDULES, Layout
from planner.errors import LayoutError
from tests.cost.schedules import length_s

_KINDS = list(REGISTRY)


def _closed_form(schedule: str, p: int, m: int, v: int, time: StageTime) -> float:
    return length_s(schedule, m, v, [time] * p)


def _chunks(schedule: str, several: int) -> int:
    known = REGISTRY[schedule]  # type: ignore[index]
    return several if known.interleaves else 2 if known.v_shaped else 1


@pytest.mark.parametrize("schedule", _KINDS)
@pytest.mark.parametrize("p", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("time", [StageTime(1, 2, 0, 1), StageTime(1.5, 3, 0.75, 1.25)])
def test_equals_the_closed_form(schedule: str, p: int, rounds: int, time: StageTime) -> None:
    chunks = _chunks(schedule, 3)
    if REGISTRY[schedule].defers_weight_gradients and time.recompute_s:  # type: ignore[index]
        time = StageTime(time.forward_s, time.backward_s, 0.0, time.weight_gradient_s)
    rounds = max(rounds, 1 + REGISTRY[schedule].needs_two_rounds)  # type: ignore[index]
    timeline = simulate([time] * p, rounds * p, schedule, chunks)
    expected = _closed_form(schedule, p, rounds * p, chunks, time)
    assert timeline.makespan_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [2, 4, 12])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 11])
def test_few_micro_batches_leave_few_weight_gradients_to_fill_with(p: int, m: int) -> None:
    time = StageTime(1, 3, 0, 1)
    timeline = simulate([time] * p, m, "zero-bubble", 1)
    assert timeline.makespan_s == pytest.approx(_closed_form("zero-bubble", p, m, 1, time))


def test_published_example_of_narayanan() -> None:
    # arXiv:2104.04473, section 2.2: bubble over ideal time is (p - 1) / m, interleaved 1/v of it
    plain = simulate([StageTime(1, 2)] * 4, 8, "1f1b").makespan_s
    interleaved = simulate([StageTime(1, 2)] * 4, 8, "interleaved-1f1b", 2).makespan_s
    assert plain / 24 - 1 == pytest.approx(3 / 8)
    assert interleaved / 24 - 1 == pytest.approx(3 / 8 / 2)


@pytest.mark.parametrize("schedule", _KINDS)
def test_in_flight_equals_the_closed_form(schedule: str) -> None:
    p, m, v = 4, 16, _chunks(schedule, 2)
    timeline = simulate([StageTime(1, 2, 0, 1)] * p, m, schedule, v)
    layouts = Layouts.broadcast(
        pp=p, vpp=v, grad_accumulation=m, schedule=SCHEDULES.index(schedule)
    )
    for stage in range(p):
        assert max(timeline.in_flight(stage)[1]) == pytest.approx(float(in_flight(layouts, stage)))


_TIMES = st.builds(
    StageTime,
    st.floats(0.1, 5),
    st.floats(2.0, 9),
    st.floats(0, 3),
    st.floats(0.1, 1.9),
    st.floats(0, 0.5),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_TIMES, min_size=1, max_size=6),
    st.integers(1, 5),
    st.sampled_from(_KINDS),
    st.integers(1, 3),
)
def test_is_sound(stages: list[StageTime], rounds: int, schedule: str, chunks: int) -> None:
    chunks = _chunks(schedule, chunks)
    m = rounds * len(stages)
    timeline = simulate(stages, m, schedule, chunks)
    for stage, time in enumerate(stages):
        mine = sorted(
            (e.start_s, e.end_s)
            for e in timeline.events
            if e.stage == stage and e.kind != "communication"
        )
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))
        once = time.forward_s + time.backward_s + time.recompute_s
        assert timeline.busy_s(stage) == pytest.approx(m * once)
        assert timeline.makespan_s >= timeline.busy_s(stage) - 1e-9
        assert timeline.in_flight(stage)[1][-1] == 0
    _is_critical(timeline)
    forward = {(e.micro_batch, e.chunk, e.stage): e for e in timeline.events if e.kind == "forward"}
    assert len(forward) == m * chunks * len(stages)
    turns = timeline.layout.v_shaped
    for (micro_batch, chunk, stage), event in forward.items():
        near = stage + 1 if turns and chunk else stage - 1
        if 0 <= near < len(stages):
            before = forward[(micro_batch, chunk, near)]
            assert event.start_s >= before.end_s + stages[near].send_s - 1e-9


_UNEVEN = [
    [
        StageTime(1, 2, 0.5, 1, 0.25),
        StageTime(1.5, 2.5, 0.5, 1, 0.25),
        StageTime(1, 3, 0.5, 1, 0.1),
    ],
    [StageTime(1, 2, 0, 1), StageTime(4, 8, 0, 3), StageTime(1, 2, 0, 1), StageTime(1, 2, 0, 1)],
    [StageTime(1, 2, 1, 1, 3), StageTime(1, 2, 1, 1, 3)],  # transfers as long as a pass
    [StageTime(2, 3, 1, 1)],
]


def _needs(event: Event, before: Event, timeline: Timeline) -> bool:
    """Whether an event waits for another: its stage is busy with it, or it brings its input; of
    tasks that run together all wait for what one of them needs."""
    if event.stage == before.stage and "communication" not in (event.kind, before.kind):
        return True
    together = {task: group for group in timeline.groups for task in group}
    done = (
        (before.task,)
        if before.kind == "communication"
        else together.get(before.task, (before.task,))
    )
    if event.kind == "communication":
        return event.task in done and before.kind != "communication"
    started = together.get(event.task, (event.task,))
    return any(_brings(task, source, timeline.layout) for task in started for source in done)


def _brings(task: Task, source: Task, place: Layout) -> bool:
    """Whether a task's input is what another has made."""
    if task.micro_batch != source.micro_batch or task.kind != source.kind:
        return False
    step = 1 if task.kind == "forward" else -1
    return place.chunk(*task[::3]) == place.chunk(*source[::3]) + step


def _is_critical(timeline: Timeline) -> None:
    path = timeline.critical_path()
    assert sum(e.duration_s for e in path) == pytest.approx(timeline.makespan_s, rel=1e-12)
    assert path[0].start_s == 0
    assert path[-1].end_s == timeline.makespan_s
    for before, event in pairwise(path):
        assert event.start_s == pytest.approx(before.end_s, rel=1e-12)
        assert _needs(event, before, timeline), (before, event)


@pytest.mark.parametrize("schedule", _KINDS)
@pytest.mark.parametrize("stages", _UNEVEN)
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_the_longest_path_lasts_as_long_as_the_step(
    schedule: str, stages: list[StageTime], rounds: int
) -> None:
    chunks = _chunks(schedule, 2)
    _is_critical(simulate(stages, rounds * len(stages), schedule, chunks))


def test_the_critical_path_follows_the_slow_stage() -> None:
    # 1F1B with one slow stage: all its work, its first input and where its last gradient goes;
    # the fast stage behind it is done before it is waited for
    stages = [StageTime(1, 2), StageTime(4, 8), StageTime(1, 2)]
    path = simulate(stages, 6, "1f1b").critical_path()
    on = [sum(e.duration_s for e in path if e.stage == stage) for stage in range(3)]
    assert on == [1 + 2, 6 * (4 + 8), 0]


def test_transfers_delay_gpipe_by_its_fill() -> None:
    plain = simulate([StageTime(1, 2)] * 4, 8, "gpipe").makespan_s
    sent = simulate([StageTime(1, 2, send_s=0.25)] * 4, 8, "gpipe").makespan_s
    assert sent == pytest.approx(plain + 2 * 3 * 0.25)


@pytest.mark.parametrize(("chunks", "micro_batches"), [(2, 12), (4, 16), (2, 4)])
def test_interleaved_transfers_delay_by_the_way_through_all_chunks(
    chunks: int, micro_batches: int
) -> None:
    """The first micro-batch comes round v times before its backward pass, and so does the last
    one's gradient; where every transfer blocks its stage, these are what it waits for."""
    p, sent = 4, 0.125
    shape = (micro_batches, "interleaved-1f1b", chunks)
    plain = simulate([StageTime(1, 2)] * p, *shape).makespan_s
    hidden = simulate([StageTime(1, 2, send_s=sent)] * p, *shape).makespan_s
    assert hidden == pytest.approx(plain + 2 * (chunks * p - 1) * sent)
    awaited = simulate([StageTime(1, 2, send_s=sent, blocked_s=sent)] * p, *shape).makespan_s
    assert awaited == pytest.approx(plain + 2 * (p - 1 + chunks * micro_batches) * sent)


def test_activations_are_freed_when_their_backward_ends() -> None:
    """However short a step is."""
    timeline = simulate([StageTime(1e-4, 2e-4)] * 2, 3, "1f1b")
    times, held = timeline.in_flight(1)
    assert times[-1] == pytest.approx(timeline.makespan_s - 2e-4)
    assert (max(held), held[-1]) == (1, 0)


def test_same_input_same_events() -> None:
    stages = [StageTime(1, 2), StageTime(1.5, 2.5, 0.5), StageTime(1, 1)]
    assert simulate(stages, 6, "1f1b") == simulate(stages, 6, "1f1b")


def test_without_a_pipeline_one_micro_batch_is_held() -> None:
    assert max(simulate([StageTime(1, 2)], 8, "none").in_flight(0)[1]) == 1


def test_wrong_numbers_name_the_remedy() -> None:
    with pytest.raises(LayoutError, match=r"multiples of pp = 4, not 6; use 4"):
        simulate([StageTime(1, 2)] * 4, 6, "interleaved-1f1b", 2)
    with pytest.raises(LayoutError, match="use vpp = 1"):
        simulate([StageTime(1, 2)] * 4, 8, "1f1b", 2)


def test_a_blocked_stage_computes_nothing() -> None:
    """With transfers that block, every pass takes as much longer, and the path says why."""
    free = simulate([StageTime(1, 2)] * 4, 8, "1f1b")
    blocked = simulate([StageTime(1, 2, send_s=0.25, blocked_s=0.25)] * 4, 8, "1f1b")
    # (m + p - 1) (t_f + t_b), m passes of either kind longer, and p - 1 transfers there and back
    assert blocked.makespan_s == pytest.approx(free.makespan_s + 2 * 8 * 0.25 + 2 * 3 * 0.25)
    assert any(event.kind == "pipeline_transfer" for event in blocked.critical_path())
    assert sum(e.duration_s for e in blocked.critical_path()) == pytest.approx(blocked.makespan_s)


# --- the V ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(1, 30),
    st.floats(0.5, 2),
    st.floats(1, 3),
    st.floats(0, 1),
)
def test_zero_bubble_v_equals_the_closed_form(
    p: int, m: int, forward: float, more: float, weights: float
) -> None:
    """Weight gradients take no longer than a forward pass, which takes no longer than the rest of
    a backward pass. Exact but where micro-batches are too few to fill what they could."""
    back, weight = more * forward, weights * forward
    time = StageTime(forward, back + weight, 0, weight)
    played = simulate([time] * p, m, "zero-bubble-v", 2).makespan_s
    expected = _closed_form("zero-bubble-v", p, m, 2, time)
    if p < m < 2 * p - 1:
        assert played <= expected + 1e-9
        # each misses at most what one more would have filled
        assert expected - played <= (m - p) * weight + 1e-9
    else:
        assert played == pytest.approx(expected, rel=1e-12)


def test_zero_bubble_v_waits_for_equal_passes_only_to_fill() -> None:
    # Qi et al. 2023, arXiv:2401.10241, section 6: no bubble inside a stage's own span where
    # forward, input and weight gradients take as long; the last stage starts p - 1 chunks late
    timeline = simulate([StageTime(2, 4, 0, 2)] * 4, 12, "zero-bubble-v", 2)
    assert timeline.makespan_s == 12 * 6 + 3 * 1
    for stage in range(4):
        mine = timeline.computed(stage)
        assert mine[0].start_s == stage
        assert mine[-1].end_s - mine[0].start_s == timeline.busy_s(stage)


@pytest.mark.parametrize("p", [2, 3, 5])
@pytest.mark.parametrize("m", [1, 2, 5, 9, 16])
def test_zero_bubble_v_holds_what_its_order_does(p: int, m: int) -> None:
    """In flight at the peak, of chunks of unlike length, and when no forward pass follows."""
    layouts = Layouts.broadcast(
        pp=p, vpp=2, grad_accumulation=m, schedule=SCHEDULES.index("zero-bubble-v")
    )
    for stage in range(p):
        order = REGISTRY["zero-bubble-v"].order(p, stage, m, 2)
        for layers in ((1.0, 1.0), (3.0, 2.0), (1.0, 4.0)):
            alive, most = np.zeros(2), 0.0
            for task in order:
                alive[task.chunk] += {"forward": 1, "backward": 0}.get(task.kind, -1)
                most = max(most, float(alive @ layers))
            held = chunks_in_flight(layouts, stage, np.array(layers))
            assert float(held @ layers) == most
        held, waiting = chunks_waiting(layouts, stage, np.ones(2))
        last = max(i for i, task in enumerate(order) if task.kind == "forward")
        backward, most_waiting = np.zeros(2), 0.0
        for number, task in enumerate(order):
            backward[task.chunk] += {"forward": 0, "backward": 1}.get(task.kind, -1)
            if number > last:
                most_waiting = max(most_waiting, backward.sum())
        # of few micro-batches each pass has its weight gradients at once
        assert waiting.sum() == most_waiting or (m < p and most_waiting == 1)
        assert np.all(waiting <= held)


def test_the_turn_of_a_v_sends_nothing() -> None:
    timeline = simulate([StageTime(1, 2, 0, 0.5, 0.1)] * 3, 6, "zero-bubble-v", 2)
    sent = [e for e in timeline.events if e.kind == "communication"]
    # of 6 chunks 5 hand on activations and 5 gradients; the third's and the fourth's stay
    assert len(sent) == 6 * (4 + 4)
    assert not any((e.stage, e.chunk, e.task.kind) == (2, 0, "forward") for e in sent)
    assert not any((e.stage, e.chunk, e.task.kind) == (2, 1, "backward") for e in sent)


@pytest.mark.parametrize("weight", [0.4, 1.0])
@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 4), (4, 12), (6, 24)])
def test_transfers_delay_a_v_by_its_way_down_and_up(p: int, m: int, weight: float) -> None:
    sent = 0.01
    plain = simulate([StageTime(1, 2.6, 0, weight)] * p, m, "zero-bubble-v", 2)
    later = simulate([StageTime(1, 2.6, 0, weight, sent)] * p, m, "zero-bubble-v", 2)
    hops = (later.makespan_s - plain.makespan_s) / sent / 2
    most = 2 * p - 2 + (p - 2) * (m > p)
    assert 2 * p - 2 - 0.51 <= hops <= most + 1e-6
    if weight < 0.5 or m <= p:
        assert hops == pytest.approx(most)


def test_a_v_has_two_chunks() -> None:
    with pytest.raises(LayoutError, match="use vpp = 2"):
        simulate([StageTime(1, 2)] * 4, 8, "zero-bubble-v", 1)


# --- passes in pairs --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 12),
    st.floats(0.5, 2),
    st.floats(0.5, 3),
    st.floats(0, 1),
)
def test_dualpipe_v_equals_the_closed_form(
    p: int, more: int, forward: float, back: float, weights: float
) -> None:
    """Weight gradients take no longer than a forward pass."""
    weight = weights * forward
    time = StageTime(forward, back * forward + weight, 0, weight)
    played = simulate([time] * p, 2 * p + more, "dualpipe-v", 2).makespan_s
    expected = _closed_form("dualpipe-v", p, 2 * p + more, 2, time)
    assert played == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_dualpipe_v_waits_as_published(p: int) -> None:
    # deepseek-ai/DualPipe, README.md: (PP/2 - 1)(F&B + B - 3W) on PP/2 devices, and PP + 1 passes
    # in flight; of chunks that take 1, 2 and of it 1
    timeline = simulate([StageTime(2, 4, 0, 2)] * p, 3 * p, "dualpipe-v", 2)
    assert timeline.makespan_s == 3 * p * 6 + (p - 1) * (3 + 2 - 3)
    for stage in range(p):
        assert 2 * max(timeline.in_flight(stage)[1]) == 2 * p + 1


def test_passes_in_a_pair_start_together_and_hand_on_together() -> None:
    timeline = simulate([StageTime(1, 2.5, 0, 0.5)] * 3, 9, "dualpipe-v", 2)
    drawn = {(e.task, e.kind): e for e in timeline.events}
    pairs = [group for group in timeline.groups if group[0].kind == "forward"]
    assert pairs
    for ahead, back, weight in pairs:
        assert (back.kind, back.chunk) == ("backward", 1 - ahead.chunk)
        assert (weight.micro_batch, weight.chunk) == (back.micro_batch, back.chunk)
        assert drawn[ahead, "forward"].end_s == drawn[back, "backward"].start_s
        after = Task(1 if ahead.stage == 0 else ahead.stage - 1, "forward", ahead.micro_batch, 0)
        if ahead.stage == 0 and ahead.chunk == 0:
            done = drawn[weight, "weight_gradient"].end_s
            assert drawn[after, "forward"].start_s >= done


@pytest.mark.parametrize("p", [2, 3, 5])
@pytest.mark.parametrize("more", [0, 1, 7])
def test_dualpipe_v_holds_what_its_order_does(p: int, more: int) -> None:
    layouts = Layouts.broadcast(
        pp=p, vpp=2, grad_accumulation=2 * p + more, schedule=SCHEDULES.index("dualpipe-v")
    )
    for stage in range(p):
        order = REGISTRY["dualpipe-v"].order(p, stage, 2 * p + more, 2)
        for layers in ((1.0, 1.0), (3.0, 2.0), (1.0, 4.0)):
            alive, most = np.zeros(2), 0.0
            for task in order:
                alive[task.chunk] += {"forward": 1, "backward": 0}.get(task.kind, -1)
                most = max(most, float(alive @ layers))
            assert float(chunks_in_flight(layouts, stage, np.array(layers)) @ layers) == most
        held, waiting = chunks_waiting(layouts, stage, np.ones(2))
        last = max(i for i, task in enumerate(order) if task.kind == "forward")
        alive, backward = np.zeros(2), np.zeros(2)
        moments = []
        for number, task in enumerate(order):
            alive[task.chunk] += {"forward": 1, "backward": 0}.get(task.kind, -1)
            backward[task.chunk] += {"forward": 0, "backward": 1}.get(task.kind, -1)
            if number > last:
                moments.append((backward.sum(), alive.sum()))
        assert waiting.sum() == max(moments)[0]
        assert (waiting.sum(), held.sum()) in moments
        assert np.all(waiting <= held)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 12), (6, 24)])
@pytest.mark.parametrize("weight", [0.4, 1.0])
def test_transfers_delay_pairs_by_their_way_down_and_up(p: int, m: int, weight: float) -> None:
    """Where one stage is slower than the others, behind which theirs arrive."""
    sent = 0.01
    times = [(1.0, 1.6 + weight, weight)] * (p - 1) + [(1.2, 2.0 + weight, weight)]
    plain = simulate([StageTime(f, b, 0, w) for f, b, w in times], m, "dualpipe-v", 2)
    later = simulate([StageTime(f, b, 0, w, sent) for f, b, w in times], m, "dualpipe-v", 2)
    hops = (later.makespan_s - plain.makespan_s) / sent / 2
    assert p - 1 - 1e-6 <= hops <= 2 * p - 2 + 1e-6
