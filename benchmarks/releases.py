"""Releases: emitted files read by the oldest release that the catalogue names, and by the newest.

    python -m benchmarks.releases --count 200 --folder DIR

Packages are installed with pip into DIR, without their dependencies, which come from this
environment; a release that pip cannot install is reported with the reason. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.emitted import cases, folders_for, parse, wrong
from planner.describe.catalogue import folder

_BUILD = {"DS_BUILD_OPS": "0", "DS_SKIP_CUDA_CHECK": "1"}


@dataclass(frozen=True)
class Reader:
    """A package that reads the files of frameworks."""

    package: str
    parser: str
    """Name in `benchmarks.parsers`."""
    frameworks: tuple[str, ...]
    """Frameworks whose files it reads."""
    others: tuple[str, ...] = ()
    """Named releases that do not read the file: another file is theirs, or none is written."""
    reads_newest: bool = True
    """Whether the newest release reads the file."""


READERS = (  # no file is written for the switch `transformers`, which names 4.33
    Reader("deepspeed", "DeepSpeedConfig", ("deepspeed", "megatron-deepspeed")),
    Reader("accelerate", "accelerate launch", ("accelerate", "deepspeed")),
    Reader("transformers", "TrainingArguments", ("accelerate", "deepspeed"), ("4.33",)),
    Reader("torchtitan", "torchtitan 0.2.2", ("fsdp2", "torchtitan"), reads_newest=False),
    Reader("torchtitan", "torchtitan 0.3.0", ("fsdp2", "torchtitan"), ("0.2.2",)),
)


def named_releases(package: str) -> list[str]:
    """List the releases of a package that catalogue files name, oldest first."""
    texts = [path.read_text() for kind in ("framework", "bundle") for path in _files(kind)]
    pattern = re.compile(rf"\b{package}(?: ZeRO)? \(?(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
    releases = {match[1] for text in texts for match in pattern.finditer(text)}
    return sorted(releases, key=lambda release: [int(part) for part in release.split(".")])


def _files(kind: str) -> Iterator[Path]:
    return Path(str(folder(kind))).glob("*.toml")


def installed(package: str, release: str, root: Path) -> Path | str:
    """Install a release (empty: the newest) into its own folder; return it, or why not."""
    target = root / f"{package}-{release or 'newest'}"
    if (target / package).is_dir():
        return target
    # a release with two numbers is the first of its series
    version = f"=={release + '.0' * (release.count('.') == 1)}" if release else ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(target), f"{package}{version}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **_BUILD}
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
    return target


def _version(target: Path, package: str) -> str:
    found = next(target.glob(f"{package}-*.dist-info"), None)
    return found.name.removeprefix(f"{package}-").removesuffix(".dist-info") if found else "?"


def table(count: int, seed: int, root: Path) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "| package | release | framework | folders | accepted | equal to the plan | problem |"
    yield "|---|---|---|---:|---:|---:|---|"
    emitted = {
        name: list(cases(count, seed, root / "folders" / name, [name]))
        for name in dict.fromkeys(name for reader in READERS for name in reader.frameworks)
    }
    for reader in READERS:
        named = [each for each in named_releases(reader.package) if each not in reader.others]
        for release in (named[0], "") if reader.reads_newest else named[:1]:
            target = installed(reader.package, release, root)
            if isinstance(target, str):
                yield f"| {reader.package} | {release or 'newest'} | not installed: {target} |"
                continue
            version = _version(target, reader.package)
            for name in reader.frameworks:
                planned = {case.folder: case for case in emitted[name] if case.folder}
                folders = folders_for(reader.parser, emitted[name])
                if not folders:
                    continue
                answers = parse(reader.parser, folders, str(target))
                start = f"| {reader.package} | {version} | {name} | {len(folders)} |"
                if isinstance(answers, str):
                    yield f"{start} not loaded: {answers} |"
                    continue
                read = {path: found for path, found in answers.items() if isinstance(found, dict)}
                odd = {path: what for path in read if (what := wrong(planned[path], read[path]))}
                bad = [why for path, why in answers.items() if path not in read] + [*odd.values()]
                yield f"{start} {len(read)} | {len(read) - len(odd)} | {' '.join(bad[:1])} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=200, help="plans of each framework")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=Path, help="where releases and folders stay")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for line in table(given.count, given.seed, given.folder or Path(temporary)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
