"""Collection: the tests of the cost model are imported where torch is not installed."""

import subprocess
import sys

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
