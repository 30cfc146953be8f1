"""Log files: read logs of real runs as profile, events, table or lines, by their content."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from planner.errors import PlannerError, shorten_path
from planner.evidence.logs.kineto import is_profile, read_profile
from planner.evidence.logs.scalars import event_files, is_table, read_events, read_table
from planner.evidence.logs.step_lines import lines_of, read_lines
from planner.evidence.logs.steps import LogError, RunLog

_MAX_BYTES = 1_000_000_000
_PROBE_BYTES = 65_536


def read_log(path: str | Path, columns: Mapping[str, str] | None = None) -> RunLog:
    """Read a log file or a folder of TensorBoard events; `columns` names those of figures."""
    place = Path(os.path.expanduser(path))
    where = shorten_path(path)
    try:
        return _read(place, where, columns or {})
    except PlannerError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise LogError(f"cannot read {where}: {reason}; check the path") from None


def _read(path: Path, where: str, columns: Mapping[str, str]) -> RunLog:
    state = path.stat()
    if event_files(path):
        return read_events(path, columns)
    if not stat.S_ISREG(state.st_mode):
        raise LogError(
            f"{where} is not a file; give the path of a log file or a folder of TensorBoard events"
        )
    if state.st_size == 0:
        raise LogError(f"{where} is empty; give the log of a run that made some steps")
    if state.st_size > _MAX_BYTES:
        raise LogError(
            f"{where} has {state.st_size / 1e9:.1f} GB; logs above {_MAX_BYTES / 1e9:.0f} GB are "
            "refused: cut out the lines of the steps"
        )
    with path.open("rb") as file:
        head = file.read(_PROBE_BYTES)
        if is_profile(head):
            return read_profile(path)
        if b"\0" in head or head[:2] == b"\x1f\x8b":
            raise LogError(f"{where} is binary, not text; unpack it, or save it as UTF-8 text")
        file.seek(0)
        if columns or is_table(head.decode("utf-8", errors="replace")):
            return read_table(lines_of(file), where, columns)
        return read_lines(lines_of(file), where)
