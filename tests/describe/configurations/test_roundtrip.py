"""Round trip: what is emitted and read back is the same job, for random layouts."""

from __future__ import annotations

import random

import pytest

from planner.describe.catalogue import load_framework, names
from tests import ROOT

WRITTEN = [name for name in names("framework") if load_framework(name).configuration != "none"]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.mark.slow
@pytest.mark.parametrize("framework", WRITTEN)
def test_emitted_files_are_read_back(framework: str) -> None:
    from roundtrip import differences, emitted

    for job in emitted(framework, random.Random(f"tests {framework}"), 12):
        assert not differences(job), (str(job.case.layout), job.files)


def test_the_round_trip_sees_what_is_lost() -> None:
    """Another stage, another batch and another bucket in the files must not come back the same."""
    from roundtrip import Emitted, differences, emitted

    draw = random.Random("lost")
    jobs = (job for job in emitted("deepspeed", draw, 40) if job.case.layout.zero_stage == 2)
    job = next(jobs)
    text = job.files["ds_config.json"]
    for old, new, what in (
        ('"stage": 2', '"stage": 1', "zero_stage = 2 was read as 1"),
        ('"reduce_bucket_size": 500000000', '"reduce_bucket_size": 2e8', "framework deepspeed"),
    ):
        assert old in text
        changed = Emitted(job.case, job.estimate, {"ds_config.json": text.replace(old, new)})
        assert any(found.startswith(what) for found in differences(changed))
