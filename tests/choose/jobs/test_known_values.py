"""Known values of functions of `planner.choose.jobs`."""

from __future__ import annotations

import pytest

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.jobs.neighbours import uneven
from planner.describe.workload import Workload


def test_uneven() -> None:
    assert (uneven(60, 1024), uneven(56, 1024), uneven(64, 1024)) == (15, 7, 1)


@pytest.mark.parametrize(
    ("model", "length"),
    [("gpt2", 1024), ("llama-3-8b", 2048), ("bert-large", 512), ("vit-h-14", 257)],
)
def test_a_job_without_a_workload_has_sequences_that_its_model_takes(
    model: str, length: int
) -> None:
    assert JobSpec(model, "polaris").workload == Workload(sequence_length=length)
