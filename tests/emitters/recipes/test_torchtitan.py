"""torchtitan: what its configuration must hold for a run to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli import main


def test_a_run_saves_its_optimizer_states_also_in_the_last_step(tmp_path: Path) -> None:
    """A last checkpoint of the model alone cannot be resumed."""
    job = "emit llama-3-8b -m polaris -n 4 --seq-length 4096 -f torchtitan -o"
    with pytest.raises(SystemExit) as end:
        main([*job.split(), str(tmp_path / "out")])
    assert end.value.code == 0
    text = (tmp_path / "out" / "torchtitan_plan.py").read_text(encoding="utf-8")
    assert "config.checkpoint.last_save_model_only = False" in map(str.strip, text.splitlines())
