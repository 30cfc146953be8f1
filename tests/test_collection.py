"""Collection: what is imported where torch is not installed, and which tests are long."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_TORCH = """
import sys, pytest

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
sys.exit(pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def collect(*rooms: str) -> subprocess.CompletedProcess[str]:
    """Collect the tests of these rooms in a process that cannot import torch."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *rooms], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_tests_of_the_cost_model_are_collected_without_torch() -> None:
    done = collect("tests/cost")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "tests/cost/step/test_step.py::" in done.stdout
    assert "tests/cost/operators/test_convolutions.py::" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["long", "slow"])
def test_every_name_of_the_lists_is_of_a_test(mark: str) -> None:
    listed = Path(__file__).with_name(f"{mark}.txt").read_text(encoding="utf-8").splitlines()
    files = sorted({name.partition("::")[0] for name in listed})
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", mark, *files]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert [name for name in listed if not any(test.startswith(name) for test in found)] == []
    if mark == "long":
        assert [test for test in found if not test.startswith(tuple(listed))] == []
