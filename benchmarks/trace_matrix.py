"""Trace matrix: torch's own sharding beside the estimate, layout by layout.

    python benchmarks/trace_matrix.py            # writes docs/validation.md; about 15 minutes

Three models of real widths and few layers, every ZeRO stage, tensor and sequence parallelism,
pipelines and recompute modes, at three world sizes. Traces are kept in a file beside the page
(`--traces`), so that a run that was stopped goes on where it was, and a change of a formula is
compared again without tracing.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.catalogue import load_framework, load_machine, load_model
from planner.errors import PlannerError
from planner.estimation import Question
from planner.layout import Layout
from planner.validate.compare import Comparison, compare
from planner.validate.trace import Collective, Trace, trace
from planner.validate.tracer import Tracer
from planner.workload import Workload

ROOT = Path(__file__).parent.parent
WORLDS = (8, 64, 1024)
MODELS = {"GPT": "gpt3-175b", "Llama": "llama-3-8b", "MoE": "mixtral-8x7b"}
SPLITS = ((1, False), (2, False), (2, True), (8, False), (8, True))
RECOMPUTE = ("none", "selective", "full")
STAGES = (0, 1, 3)
LAYERS = {1: 3, 4: 6}
"""Layers without and with a pipeline, whose stages then hold 1, 2, 2 and 1 of them."""
PASSES = {1: 2, 4: 5}


@dataclass(frozen=True)
class Case:
    """One rank of one layout."""

    family: str
    layout: Layout
    stage: int

    @property
    def key(self) -> str:
        """Its name in the file of traces."""
        return f"{self.family} {self.layout} sp{int(self.layout.sequence_parallel)} s{self.stage}"

    @property
    def question(self) -> Question:
        """The model with few layers, and what is asked."""
        model = load_model(MODELS[self.family]).replaced(
            num_layers=LAYERS[self.layout.pp], dropout=0.0
        )
        workload = Workload(sequence_length=2048, global_batch=self.layout.global_batch)
        return Question(model, load_machine("dgx-h100"), workload, load_framework("fsdp2"))


def cases() -> Iterator[Case]:
    """All legal combinations; a ZeRO stage needs replicas to shard over.

    A pipeline's first, second and last stage take turns.
    """
    for family, world, pp, (tp, sequence) in itertools.product(MODELS, WORLDS, (1, 4), SPLITS):
        if world % (tp * pp):
            continue
        dp = world // (tp * pp)
        for zero, recompute in itertools.product(range(4 if dp > 1 else 1), range(3)):
            layout = Layout(
                dp=dp,
                tp=tp,
                sequence_parallel=sequence,
                pp=pp,
                zero_stage=zero,
                recompute=RECOMPUTE[recompute],
                schedule="1f1b" if pp > 1 else "none",
                grad_accumulation=PASSES[pp],
            )
            stage = STAGES[(zero + recompute + WORLDS.index(world)) % 3] if pp > 1 else 0
            yield Case(family, layout, stage)


# --- tracing ---------------------------------------------------------------------------------


def traced(path: Path, chosen: list[Case]) -> dict[str, dict[str, Any]]:
    """Traces by key, or an error; those in the file are not made again."""
    found = {}
    if path.exists():
        found = {row["key"]: row for row in map(json.loads, path.read_text().splitlines())}
    start = time.monotonic()
    todo = [case for case in chosen if case.key not in found]
    with Tracer() as tracer, path.open("a") as file:
        for number, case in enumerate(todo, 1):
            try:
                made = trace(case.question, case.layout, stage=case.stage, tracer=tracer).as_dict()
            except PlannerError as error:
                made = {"error": str(error)}
            found[case.key] = {"key": case.key, "trace": made}
            file.write(json.dumps(found[case.key]) + "\n")
            file.flush()
            if number % 10 == 0 or number == len(todo):
                passed = time.monotonic() - start
                print(f"{number} of {len(todo)}, {passed:.0f} s", file=sys.stderr, flush=True)
    return found


def compared(case: Case, made: dict[str, Any]) -> Comparison:
    """A kept trace beside today's estimate."""
    collectives = tuple(Collective(**item) for item in made["collectives"])
    again = Trace(**{**made, "layout": case.layout, "collectives": collectives})
    return compare(case.question, case.layout, again)
