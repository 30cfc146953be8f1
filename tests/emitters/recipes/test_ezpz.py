"""ezpz: wordplay gets the plan's figures, on the launcher that ezpz calls."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from planner.describe.layout import Layout
from planner.errors import EmitError
from tests.emitters.emitted import Files, files_of, run_on, scripts


def wordplay(machine: str = "polaris", model: str = "wordplay-85m-char", **options: int) -> Files:
    per_node = {"aurora": 12, "summit": 6}.get(machine, 4)
    layout = Layout(dp=2 * per_node, micro_batch=16, grad_accumulation=2)
    precision = {"summit": "fp16"}.get(machine, "bf16")
    return files_of(model, machine, 2, layout, "ezpz", precision=precision, **options)


def test_wordplay_is_told_the_plan() -> None:
    files = wordplay(steps=50000)
    told = dict(line.split("=") for line in files["wordplay.args"].splitlines())
    assert (told["model.n_layer"], told["model.n_embd"]) == ("12", "768")
    assert (told["model.vocab_size"], told["model.bias"]) == ("65", "false")
    # one rank's batch, and its own accumulation: wordplay does not divide it by the ranks
    assert (told["model.batch_size"], told["optimizer.gas"]) == ("16", "2")
    assert told["train.max_iters"] == told["optimizer.lr_decay_iters"] == "50000"
    # "bf16" is float16 there
    assert told["train.dtype"] == "bfloat16"
    # hydra changes into this folder, where wordplay saves
    assert told["hydra.run.dir"] == "checkpoints"
    assert 0 < int(told["train.eval_interval"]) <= 5000
    assert told["train.always_save_checkpoint"] == "true"


@pytest.mark.parametrize(("machine", "ranks"), [("polaris", 4), ("aurora", 12)])
def test_ezpz_starts_every_rank(machine: str, ranks: int) -> None:
    files = wordplay(machine)
    text = files["job.sh"]
    assert f"\nezpz launch -n {2 * ranks} -ppn {ranks} -- python3 -u -m wordplay" in text
    assert "rank.sh" not in files
    assert "mpiexec" not in text
    if machine == "aurora":
        assert "export CCL_PROCESS_LAUNCHER=pmix\n" in text


def test_srun_that_ezpz_calls_gives_the_ranks_their_cpus() -> None:
    text = wordplay("perlmutter")["job.sh"]
    assert "#SBATCH --cpus-per-task=32\n" in text
    assert "export SRUN_CPUS_PER_TASK=32\n" in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("machine", ["polaris", "aurora", "perlmutter", "workstation-4x4090"])
def test_its_scripts_are_clean(machine: str) -> None:
    ranks = {"workstation-4x4090": (1, 4)}.get(machine)
    if ranks:
        layout = Layout(dp=4)
        files = files_of("wordplay-85m-char", machine, 1, layout, "ezpz")
    else:
        files = wordplay(machine)
    for text in scripts(files).values():
        assert run_on(text, "bash", "-n").returncode == 0
        done = run_on(text, "shellcheck", "-S", "info", "-")
        assert (done.returncode, done.stdout) == (0, "")


def test_it_goes_on_for_the_steps_that_are_left(tmp_path: Path) -> None:
    """wordplay counts `max_iters` from where it starts, not from the first step."""
    text = wordplay(steps=50000)["job.sh"]
    (found,) = re.findall(r"^RESUME=\(\)\n(?:.*\n)*?fi\n", text, re.MULTILINE)
    (tmp_path / "torch.py").write_text("def load(*_, **__): return {'iter_num': 1200}\n")

    def resumed() -> str:
        command = ["bash", "-c", f'{found}echo "${{RESUME[*]}}"']
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert resumed() == ""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt.pt").touch()
    assert resumed() == "train.init_from=resume train.max_iters=48800"


def test_what_wordplay_does_not_train_is_refused() -> None:
    with pytest.raises(EmitError, match=r"model .llama-3-8b., .* framework ddp"):
        wordplay(model="llama-3-8b")
    with pytest.raises(EmitError, match=r"ezpz does not support lsf, .* pbs, slurm, none"):
        wordplay("summit")
