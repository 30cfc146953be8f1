"""Events: TensorBoard's event files, read by TensorBoard itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from planner.errors import shorten, shorten_path
from planner.evidence.logs.scalars import Row, read_scalars
from planner.evidence.logs.steps import LogError, RunLog, Source

__all__ = ["event_files", "read_events"]

_SOURCE = Source("tensorboard", "TensorBoard")
_MAX_BYTES = 500_000_000


def event_files(path: Path) -> list[Path]:
    """Event files at a path: itself, or those of a folder, in the order of their names."""
    if path.is_dir():
        return sorted(path.rglob("*tfevents*"))
    return [path] if "tfevents" in path.name else []


def read_events(path: Path, columns: Mapping[str, str]) -> RunLog:
    """Read the scalars of event files; see `read_scalars`.

    Raises LogError where TensorBoard is not installed or the files hold no scalar.
    """
    where = shorten_path(path)
    size = sum(file.stat().st_size for file in event_files(path))
    if size > _MAX_BYTES:
        raise LogError(
            f"{where} has {size / 1e6:.0f} MB of events; above {_MAX_BYTES / 1e6:.0f} MB are "
            "refused: name the event file of one run"
        )
    rows = list(_rows(path, where))
    if not rows:
        raise LogError(f"{where} holds no scalars; name the folder that the run logged to")
    return read_scalars(rows, _SOURCE, where, columns)


def _rows(path: Path, where: str) -> Iterator[Row]:
    try:
        from tensorboard.backend.event_processing import event_accumulator, tag_types
    except ImportError:
        raise LogError(
            f"{where} holds TensorBoard events, which TensorBoard reads; "
            "pip install 'planner[evidence]'"
        ) from None
    steps: dict[int, dict[str, float]] = {}
    written: dict[int, float] = {}
    for file in event_files(path):
        events = event_accumulator.EventAccumulator(
            str(file), size_guidance={event_accumulator.SCALARS: 0}
        )
        try:
            events.Reload()
        except Exception as error:  # TensorBoard's readers raise whatever their parsers do
            raise LogError(
                f"{shorten_path(file)} is no readable event file ({shorten(str(error))}); "
                "name one that a run has closed"
            ) from None
        for tag in events.Tags()[tag_types.SCALARS]:
            for event in events.Scalars(tag):
                steps.setdefault(event.step, {"step": float(event.step)})[tag] = event.value
                written.setdefault(event.step, event.wall_time)
    for step in sorted(steps):
        yield Row(steps[step], written[step])
