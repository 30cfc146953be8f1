"""Release: build wheel and source archive, check, install and run both in empty environments.

`python -m tests.release` (or `make release`) needs the packages `build` and `twine`. It leaves the
archives in `dist`. Exit code 1, with one sentence, at the first failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

import planner
from tests import ROOT

EXAMPLE = "planner plan mistral-7b --machine vsc-5 --nodes 2 --seq-length 4096 --global-batch 64"
COMMANDS = (
    "planner --version",
    EXAMPLE,
    "planner models",
    EXAMPLE.replace("planner plan", "planner emit") + " --dry-run",
)


class ReleaseError(Exception):
    """A step failed; the message is one sentence."""


def main() -> int:
    """Build, check and try the release."""
    try:
        check_version(planner.__version__)
        archives = build(ROOT / "dist")
        run([sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)], ROOT)
        for archive in archives:
            try_out(archive)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"release: {planner.__version__} is ready in dist: {', '.join(a.name for a in archives)}")
    return 0


def check_version(version: str) -> None:
    """Raise ReleaseError unless every file states the same version."""
    stated = {
        "pyproject.toml": f'version = "{version}"',
        "CITATION.cff": f"version: {version}",
        "CHANGELOG.md": f"## {version}",
    }
    for name, text in stated.items():
        if text not in (ROOT / name).read_text(encoding="utf-8"):
            raise ReleaseError(f"{name} does not state version {version} of planner/__init__.py.")


def build(folder: Path) -> tuple[Path, Path]:
    """Build both archives into a folder; the wheel is built from the source archive."""
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], ROOT)
    stem = f"parallelism_planner-{planner.__version__}"
    return folder / f"{stem}-py3-none-any.whl", folder / f"{stem}.tar.gz"


def try_out(archive: Path) -> None:
    """Install an archive into an empty environment and run the README's commands there."""
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(archive)]
        run([str(programs / "python"), *install], folder)
        for command in COMMANDS:
            program, *options = command.split()
            check_output(command, run([str(programs / program), *options], folder))


def check_output(command: str, output: str) -> None:
    """Raise ReleaseError unless a command printed what the README says."""
    expected = {COMMANDS[0]: planner.__version__, COMMANDS[2]: "mistral-7b"}
    if command == EXAMPLE:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        fits = re.search(r"^Fits: .*", readme, re.MULTILINE)[0]  # type: ignore[index]
        expected[command] = " ".join(fits.split())
    words = " ".join(output.split())
    if expected.get(command, "#SBATCH") not in words:
        raise ReleaseError(f"`{command}` does not print {expected.get(command, '#SBATCH')!r}.")


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command outside the checkout's imports. Raises ReleaseError if it fails."""
    print("+", *command, flush=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    except OSError as error:
        raise ReleaseError(f"`{command[0]}` cannot be started: {error.strerror}.") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        message = last[0].rstrip(".")
        raise ReleaseError(f"`{' '.join(command)}` ended with {done.returncode}: {message}.")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
