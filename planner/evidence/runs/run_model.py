"""Models of runs: an architecture from the cells of a row, or from the catalogue by name."""

import bisect
import functools
import math
import re
from collections.abc import Callable

from planner.describe.catalogue import load_model, names
from planner.describe.model.model import Model
from planner.errors import DescriptionError, PlannerError, shorten
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import known_labels, normalised

_SHAPE = {
    "n_layers": "num_layers",
    "hidden": "hidden_size",
    "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads",
}
_TOLERANCE = 0.03
"""Largest relative difference from the stated parameters that decides tied embeddings."""
_SIZE_TOLERANCE = 0.25
"""Largest relative difference of a rounded size in a label from the model's parameters."""
_WIDTH_STEP = 128
_GREATEST_WIDTH = 65536
_PADDED_VOCABULARY = 51200
"""GPT-2's vocabulary as padded by Megatron-LM and its derivatives."""
_LLAMA_VOCABULARY = 32000
"""LLaMA's vocabulary (arXiv:2302.13971, section 2)."""


def model_of(cells: Cells, dropout: float) -> Model:
    """Return the model of a row. Raises PlannerError if cells and catalogue do not determine it."""
    label = cells.text("model")
    model = _from_catalogue(label)
    if model is not None and _agrees(model, cells):
        return model
    if cells.count("n_experts") or re.search(r"\ba\d+b\b", label.lower()):
        raise PlannerError(
            f"model = {shorten(label, 40)!r} has experts and is not in the catalogue; no column "
            "states top_k and the experts' width"
        )
    if any(word in normalised(label) for word in known_labels().words["other_models"]):
        raise PlannerError(f"model = {shorten(label, 40)!r} is not a known kind of transformer")
    if model is not None:
        sentence = f"the cells differ from the catalogue's {model.name}; the cells are used"
        cells.assume(model, sentence)
    shaped = _shaped(cells, label, dropout)
    model = _from_cells(shaped, label, dropout)
    cells.notes.extend(shaped.notes)
    return model


def _shaped(cells: Cells, label: str, dropout: float) -> Cells:
    """Return a copy of the cells, with layers and width that give the stated parameter count."""
    hidden, layers = cells.count("hidden"), cells.count("n_layers")
    size = cells.number("params_b") or _size_of(label.lower())
    if (hidden and layers) or size is None:
        return cells.filled()

    def count(layers: int, hidden: int) -> float:
        trial = cells.filled(n_layers=layers, hidden=hidden)
        return _from_cells(trial, label, dropout).num_params / 1e9

    missing = "hidden" if layers else "n_layers"
    if hidden is not None:
        embeddings, per_layer = count(1, hidden), count(2, hidden) - count(1, hidden)
        layers = max(round((size - embeddings) / per_layer) + 1, 1)
    elif layers is None:
        nearest = min(_dense(), key=lambda m: abs(math.log(m.num_params / (size * 1e9))))
        layers = nearest.num_layers
        cells.assume(layers, f"n_layers missing: as many as in {nearest.name}")
    assert layers is not None
    if hidden is None:
        hidden = _fitting_width(cells, size, functools.partial(count, layers))
    if not hidden or abs(count(layers, hidden) / size - 1) > _SIZE_TOLERANCE:
        return cells.filled()
    text = f"{missing} missing: {layers} layers of width {hidden} have {size:g} billion parameters"
    cells.assume(hidden, text, guess=True)
    return cells.filled(n_layers=layers, hidden=hidden)


def _fitting_width(cells: Cells, size: float, count: Callable[[int], float]) -> int:
    """Return the width whose parameters [billion] are nearest to `size`; 0 if there is none."""
    heads = cells.count("n_heads")
    step = 8 * heads if heads else _WIDTH_STEP
    widths = range(step, _GREATEST_WIDTH, step)
    upper = bisect.bisect_left(widths, size, key=count)
    near_by = widths[max(upper - 1, 0) : upper + 1]
    return min(near_by, key=lambda width: abs(count(width) - size), default=0)


@functools.cache
def _dense() -> tuple[Model, ...]:
    models = map(load_model, sorted(names("model")))
    return tuple(m for m in models if m.num_layers and not m.experts and not m.vision)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """List patterns for the spellings of each name, longest first: "GPT-2 XL", "gpt2-xl"."""
    pairs = []
    for name in sorted(names("model"), key=lambda name: (-len(name), name)):
        total = re.sub(r"-a\d+b$", "", name)
        parts = re.findall(r"[a-z]+|[0-9.]+", total)
        # "gpt2" must not match "gpt-20b", nor "v1" "v1.5": no digit may follow a number
        text = r"[^a-z0-9.]*".join(map(re.escape, parts)) + r"(?!\.?[0-9])"
        # many labels leave out the active parameters of a name
        text += "" if total == name else rf"(?:[^a-z0-9.]*{name.rsplit('-', 1)[1]})?"
        pairs.append((re.compile(text), name))
    return tuple(pairs)


@functools.cache
def _from_catalogue(label: str) -> Model | None:
    """Return the catalogue's model whose name starts the label, unless the label's size differs."""
    text = re.sub(r"[()]", "", label.lower())  # "Llama-3(.1)-70B"
    text = re.sub(r"\bmoe\b", "", text)  # "Qwen3 MoE 30B"
    for pattern, name in _patterns():
        start = pattern.match(text)
        if start:
            model: Model = load_model(name)
            if _is_of_size(model, text[start.end() :]):
                return model
    return None


def _is_of_size(model: Model, rest: str) -> bool:
    """True if a size such as 671B in the rest of a label, if any, is that of the model."""
    size = _size_of(rest)
    return size is None or abs(model.num_params / 1e9 / size - 1) < _SIZE_TOLERANCE


def _size_of(label: str) -> float | None:
    """Return the size that a label states [billion parameters]; None if it states none."""
    match = re.search(r"(?<![\w.])(\d{1,9}(?:\.\d+)?)\s*([mbt])\b", label)
    size = float(match[1]) * {"m": 1e-3, "b": 1.0, "t": 1e3}[match[2]] if match else 0.0
    return size or None


def _agrees(model: Model, cells: Cells) -> bool:
    pairs = ((cells.count(column), field) for column, field in _SHAPE.items())
    return all(value is None or value == getattr(model, field) for value, field in pairs)


def _from_cells(cells: Cells, label: str, dropout: float) -> Model:
    hidden, layers = cells.need("hidden"), cells.need("n_layers")
    num_heads, is_gated = _heads(cells, hidden), _is_gated(cells, label)
    if hidden % num_heads:
        raise PlannerError(
            f"n_heads = {num_heads} must divide hidden = {hidden}; correct one of them"
        )
    fields: dict[str, object] = {
        "name": label or f"{layers}x{hidden}",
        "family": "llama" if is_gated else "gpt3",
        "source": "columns of a run",
        "num_layers": layers,
        "hidden_size": hidden,
        "head_dim": hidden // num_heads,
        "num_heads": num_heads,
        "gated_mlp": is_gated,
        "num_kv_heads": cells.count("n_kv_heads")
        or cells.assume(num_heads, "n_kv_heads missing: as many as heads"),
        "ffn_size": cells.count("ffn_hidden") or _usual_ffn(cells, hidden, is_gated),
        "vocab_size": cells.count("vocab") or _usual_vocabulary(cells, is_gated),
        "max_sequence_length": cells.count("seq_len") or 0,
        "activation": "silu" if is_gated else "gelu",
        "norm": "rmsnorm" if is_gated else "layernorm",
        "position": "rope" if is_gated else "learned",
        "num_position_rows": 0 if is_gated else cells.count("seq_len") or 0,
        "qkv_bias": not is_gated,
        "out_bias": not is_gated,
        "mlp_bias": not is_gated,
        "dropout": 0.0 if is_gated else dropout,
    }
    return _tied(fields, cells.number("params_b"), not is_gated)


def _heads(cells: Cells, hidden: int) -> int:
    heads, tp = cells.count("n_heads"), cells.count("tp") or 1
    if heads is not None:
        return heads
    usual = 128 if hidden >= 2048 else 64
    widths = [width for width in range(32, 257, 8) if hidden % width == 0]
    divided = [width for width in widths if hidden // width % tp == 0]
    if not divided:
        return cells.need("n_heads")
    width = min(divided, key=lambda width: abs(width - usual))
    return cells.assume(hidden // width, f"n_heads missing: heads of width {width}")


def _is_gated(cells: Cells, label: str) -> bool:
    activation = cells.text("activation").lower()
    if activation:
        return any(word in activation for word in ("glu", "silu", "swish"))
    plain = any(word in label.lower() for word in known_labels().words["plain_models"])
    kind = "gelu (a GPT)" if plain else "swiglu"
    return cells.assume(not plain, f"activation missing: {kind}")


def _usual_ffn(cells: Cells, hidden: int, gated: bool) -> int:
    if not gated:
        return cells.assume(4 * hidden, "ffn_hidden missing: 4 * hidden")
    width = -(-8 * hidden // 3 // 256) * 256
    return cells.assume(width, f"ffn_hidden missing: 8/3 of hidden, {width}")


def _usual_vocabulary(cells: Cells, gated: bool) -> int:
    size = _LLAMA_VOCABULARY if gated else _PADDED_VOCABULARY
    return cells.assume(size, f"vocab missing: {size}")


@functools.cache
def _make_model(key: tuple[tuple[str, object], ...]) -> Model:
    return Model.described(dict(key), where="model")


def _tied(fields: dict[str, object], params_b: float | None, usual: bool) -> Model:
    """Choose tied or untied embeddings, by the stated parameters or else as usual."""
    default = _make_model((*fields.items(), ("tied_embeddings", usual)))
    if params_b is None:
        return default
    alternative = _make_model((*fields.items(), ("tied_embeddings", not usual)))
    try:
        distances = [abs(model.num_params / 1e9 / params_b - 1) for model in (default, alternative)]
    except DescriptionError:
        return default
    return alternative if distances[1] < distances[0] and distances[1] < _TOLERANCE else default
