"""Gallery: every figure of the program, drawn when the site is built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly

import planner
import planner.figures

PAGE = "gallery.md"
_SCRIPT = "assets/plotly.min.js"
_RUNS = Path(planner.__file__).parent / "app" / "views" / "runs" / "example_runs.csv"
_HEIGHT = "460px"
_INTRODUCTION = """\
# Gallery

Every figure of the program, drawn when this site is built, from one job: Llama 3 8B on four nodes
of Polaris, 64 sequences of 4,096 tokens a step, 300 billion tokens. `planner app` shows the same
figures, and `planner.figures.NAME(result)` returns them as plotly figures (extra `app`).

```python
import planner

workload = planner.Workload(sequence_length=4096, global_batch=64, tokens=300e9)
answer = planner.plan("llama-3-8b", "polaris", nodes=4, workload=workload)
planner.figures.waterfall(answer)
```

"""


@functools.cache
def _workload() -> planner.Workload:
    return planner.Workload(sequence_length=4096, global_batch=64, tokens=300e9)


@functools.cache
def _plan(nodes: int = 4) -> planner.Plan:
    return planner.plan("llama-3-8b", "polaris", nodes=nodes, workload=_workload())


@functools.cache
def _learned() -> Any:
    return planner.learn(_RUNS)


def _scaling() -> Any:
    return planner.ask.scaling("llama-3-8b", "polaris", workload=_workload(), most_nodes=32)


_SUBJECTS: dict[str, Callable[[], Any]] = {
    "answer": _plan,
    "answers": _plan,
    "learned": _learned,
    "machine": lambda: planner.load_machine("polaris"),
}
_OWN = {"curve": _scaling}
_ORDER = (
    ("The answer", ("waterfall", "strategy_bars", "pareto", "heatmap", "curve")),
    ("Layouts side by side", ("time_bars", "memory_bars")),
    ("One layout", ("stage_bars", "host_bars", "gantt", "memory_over_step")),
    ("Ranks and links", ("rank_map", "link_loads", "topology")),
    ("Collectives", ("times", "bandwidth", "data_picture")),
    ("A whole training", ("whole_training",)),
    ("Measured runs", ("parity", "errors")),
)


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Yield the gallery and the script that draws its figures in the browser."""
    names = {name for _, names in _ORDER for name in names}
    assert names == set(planner.figures.__all__), names ^ set(planner.figures.__all__)
    parts = [_INTRODUCTION]
    for heading, names_of_part in _ORDER:
        parts.append(f"## {heading}\n\n")
        for name in names_of_part:
            summary = (inspect.getdoc(getattr(planner.figures, name)) or "").split("\n\n")[0]
            parts.append(f"### {name}\n\n{summary}\n\n")
            parts.append(f'<div class="figure" id="figure-{name}"></div>\n\n')
    yield PAGE, "".join(parts)
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    yield _SCRIPT, script.read_bytes()


def filled(output: str) -> str:
    """Put the figures into the built page."""
    for name in planner.figures.__all__:
        figure = _drawn(name)
        alt = str(figure.layout.meta["alt"])
        drawn = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"plot-{name}",
            default_height=_HEIGHT,
            config={"displaylogo": False, "responsive": True},
        )
        empty = f'<div class="figure" id="figure-{name}"></div>'
        assert empty in output, f"no place for {name}"
        shown = f'<div class="figure" role="img" aria-label="{_quoted(alt)}">{drawn}</div>'
        output = output.replace(empty, shown)
    return output.replace("</head>", f'<script src="{_SCRIPT}"></script></head>', 1)


def _drawn(name: str) -> Any:
    draw = getattr(planner.figures, name)
    first = next(iter(inspect.signature(draw).parameters), "")
    if name in _OWN:
        return draw(_OWN[name]())
    return draw(_SUBJECTS[first]()) if first in _SUBJECTS else draw()


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
