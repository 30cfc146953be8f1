"""Shards: live validation on real processes, one at a time, with progress and a stop button."""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, Any

import streamlit as st

from planner.app.draw import draw_table, escape
from planner.units import format_bytes, format_seconds
from planner.validate.train.strategies import strategies_on

_WORLDS = (2, 4)
_LIMIT_S = 60


@dataclass(slots=True)
class _Running:
    """A validation that runs in its own process."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    progress: IO[bytes]

    def lines(self) -> list[str]:
        """Return the progress lines so far."""
        self.progress.seek(0)
        return self.progress.read().decode(errors="replace").splitlines()

    def results(self) -> dict[str, Any] | None:
        """Return the results; None if it printed none."""
        self.output.seek(0)
        try:
            data = json.loads(self.output.read())
        except ValueError:
            return None
        return data if isinstance(data, dict) else None


@st.cache_resource
def _slot() -> list[_Running]:
    """Return the slot for the server's one validation, shared by all sessions."""
    return []


def shards() -> None:
    """Draw the controls and results of a live validation."""
    st.header("Run real shards on this machine's CPU", anchor=False)
    if importlib.util.find_spec("torch") is None:
        st.info("This needs PyTorch, which is not installed here: pip install torch.")
        return
    st.caption(
        "Real processes train a small model, sharded by each strategy. Losses and parameters must "
        "equal one process, and the bytes sent must equal the estimate."
    )
    running = any(item.process.poll() is None for item in _slot())
    # refresh every second while a validation runs
    st.fragment(_panel, run_every=1.0 if running else None)(running)


def _panel(was_running: bool) -> None:
    columns = st.columns([4, 1, 1, 1], vertical_alignment="bottom")
    chosen = columns[0].multiselect(
        "Strategies", strategies_on(_WORLDS[0]), default=["ddp", "zero3"], key="shard_strategies"
    )
    world = columns[1].selectbox("Ranks", _WORLDS, key="shard_world")
    mine: _Running | None = st.session_state.get("shards")
    busy = any(item.process.poll() is None for item in _slot())
    if columns[2].button("Run", key="shard_run", type="primary", disabled=busy or not chosen):
        _start(chosen, world)
        st.rerun()
    running = mine is not None and mine.process.poll() is None
    if columns[3].button("Stop", key="shard_stop", disabled=not running) and mine is not None:
        mine.process.terminate()
        mine.process.wait(timeout=15)
        running = False
    if was_running and not busy:
        st.rerun()
    if mine is not None:
        _show(mine, running)
    elif busy:
        st.info("A validation of another session is running; this page shows when it has ended.")


def _start(chosen: list[str], world: int) -> None:
    command = [sys.executable, *["-m", "planner", "validate", "run", "--json", "--cpu"]]
    command += ["--world", str(world), "--limit", str(_LIMIT_S)]
    command += [f"--strategy={strategy}" for strategy in chosen]
    # kept open as long as the validation, then deleted with it
    output = tempfile.TemporaryFile()  # noqa: SIM115
    progress = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=progress)
    running = _Running(process, output, progress)
    _slot()[:] = [running]
    st.session_state["shards"] = running


def _show(mine: _Running, running: bool) -> None:
    lines = mine.lines()
    if running:
        last = lines[-1] if lines else "starting"
        st.progress(_share(last), text=escape(last))
        return
    if (results := mine.results()) is None:
        reason = lines[-1] if lines else "the process ended without output"
        st.warning(escape(f"Stopped: {reason}"))
        return
    rows = []
    for case in results.get("cases", []):
        measured = case.get("step_time_s")
        rows.append(
            {
                "strategy": case["strategy"],
                "ranks": case["world"],
                "equals one process": "yes" if case["equal"] else "no",
                "loss differs by": f"{case['loss_error']:.0e}",
                "sent per rank and step": format_bytes(max(case["sent_bytes_per_rank"])),
                "bytes as estimated": "yes" if case["bytes_equal"] else "no",
                "step": format_seconds(measured) if measured else "-",
                "time not scored": (case.get("load") or {}).get("why_not") or "",
            }
        )
    alt = "Per strategy: equality with one process, bytes sent, step time."
    draw_table(rows, key="shard_results", alt=alt)


def _share(line: str) -> float:
    """Return the finished share from a line such as `[2/5] ddp: step 1 of 4`."""
    match = re.match(r"\[?(\d+)/(\d+)(\]|$)", line)
    return min((int(match[1]) - 1) / int(match[2]), 1.0) if match and int(match[2]) else 0.0
