"""Models of runs: an architecture from the cells of a row, or from the catalogue by name."""

from __future__ import annotations

import functools
import re

from planner.catalogue import load_model, names
from planner.errors import DescriptionError, PlannerError, shorten
from planner.model import Model
from planner.run_cells import Cells
from planner.run_mappings import normalised

__all__ = ["model_of"]

_SHAPE = {
    "n_layers": "num_layers",
    "hidden": "hidden_size",
    "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads",
    "seq_len": "",
}
_TOLERANCE = 0.03
"""How far a count may be from the stated parameters to prove tied or untied embeddings."""
_SIZE_TOLERANCE = 0.25
"""How far a rounded size in a label may be from the model's own parameters."""
_PADDED_VOCABULARY = 51200
"""GPT-2's vocabulary as Megatron-LM and its relatives pad it."""


def model_of(cells: Cells, dropout: float) -> Model:
    """The model of a row. PlannerError where the cells and the catalogue do not tell it."""
    label = cells.text("model")
    known = _from_catalogue(label)
    if known is not None and _agrees(known, cells):
        return known
    if cells.count("n_experts"):
        raise PlannerError(
            f"model = {shorten(label, 40)!r} has experts and is not in the catalogue; the columns "
            "do not tell top_k and the experts' width"
        )
    if any(word in normalised(label) for word in ("resnet", "cosmoflow", "unet", "transformer xl")):
        raise PlannerError(f"model = {shorten(label, 40)!r} is no transformer of a known kind")
    if known is not None:
        cells.assumed.append(f"the cells differ from the catalogue's {known.name}; they count")
    return _from_cells(cells, label, dropout)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """How each name may be written, the longest name first: "GPT-2 XL", "gpt2-xl"."""
    pairs = []
    for name in sorted(names("model"), key=lambda name: (-len(name), name)):
        parts = re.findall(r"[a-z]+|[0-9.]+", name)
        # "gpt2" must not match "gpt-20b": what follows a number is no digit
        text = r"[^a-z0-9.]*".join(map(re.escape, parts)) + r"(?![0-9])"
        pairs.append((re.compile(text), name))
    return tuple(pairs)


@functools.cache
def _from_catalogue(label: str) -> Model | None:
    """The catalogue's model whose name the label begins with, and whose size it does not deny."""
    text = re.sub(r"[()]", "", label.lower())  # "Llama-3(.1)-70B"
    for pattern, name in _patterns():
        found = pattern.match(text)
        if found:
            model: Model = load_model(name)
            if _is_of_size(model, text[found.end() :]):
                return model
    return None


def _is_of_size(model: Model, rest: str) -> bool:
    """Whether a size such as 671B in the rest of a label is that of the model."""
    stated = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([mbt])\b", rest)
    if stated is None:
        return True
    size = float(stated[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[stated[2]]
    return abs(model.num_params / size - 1) < _SIZE_TOLERANCE


def _agrees(model: Model, cells: Cells) -> bool:
    stated = ((cells.count(column), field) for column, field in _SHAPE.items() if field)
    return all(value is None or value == getattr(model, field) for value, field in stated)


def _from_cells(cells: Cells, label: str, dropout: float) -> Model:
    hidden, layers, heads = cells.need("hidden"), cells.need("n_layers"), _heads(cells)
    gated = _is_gated(cells, label)
    kv = cells.count("n_kv_heads") or cells.default(heads, "n_kv_heads missing: as many as heads")
    if hidden % heads:
        raise PlannerError(f"n_heads = {heads} must divide hidden = {hidden}; correct one of them")
    fields: dict[str, object] = {
        "name": label or f"{layers}x{hidden}",
        "family": "llama" if gated else "gpt3",
        "source": "columns of a run",
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv,
        "head_dim": hidden // heads,
        "ffn_size": _ffn(cells, hidden, gated),
        "vocab_size": _vocabulary(cells, gated),
        "max_sequence_length": cells.count("seq_len") or 0,
        "gated_mlp": gated,
        "activation": "silu" if gated else "gelu",
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "rope" if gated else "learned",
        "num_position_rows": 0 if gated else cells.count("seq_len") or 0,
        "qkv_bias": not gated,
        "out_bias": not gated,
        "mlp_bias": not gated,
        "dropout": 0.0 if gated else dropout,
    }
    return _tied(fields, cells.number("params_b"), not gated)


def _heads(cells: Cells) -> int:
    heads = cells.count("n_heads")
    if heads is not None:
        return heads
    hidden = cells.need("hidden")
    width = 128 if hidden % 128 == 0 and hidden >= 2048 else 64
    if hidden % width:
        return cells.need("n_heads")
    return cells.default(hidden // width, f"n_heads missing: heads of width {width}")


def _is_gated(cells: Cells, label: str) -> bool:
    activation = cells.text("activation").lower()
    if activation:
        return any(word in activation for word in ("glu", "silu", "swish"))
    plain = any(word in label.lower() for word in ("gpt", "opt", "bloom", "mpt", "bert"))
    kind = "gelu (a GPT)" if plain else "swiglu"
    return cells.default(not plain, f"activation missing: {kind}")


def _ffn(cells: Cells, hidden: int, gated: bool) -> int:
    stated = cells.count("ffn_hidden")
    if stated is not None:
        return stated
    if gated:
        width = -(-8 * hidden // 3 // 256) * 256
        return cells.default(width, f"ffn_hidden missing: 8/3 of hidden, {width}")
    return cells.default(4 * hidden, "ffn_hidden missing: 4 * hidden")


def _vocabulary(cells: Cells, gated: bool) -> int:
    stated = cells.count("vocab")
    if stated is not None:
        return stated
    size = 32000 if gated else _PADDED_VOCABULARY
    return cells.default(size, f"vocab missing: {size}")


@functools.cache
def _made(key: tuple[tuple[str, object], ...]) -> Model:
    return Model.described(dict(key), where="model")


def _tied(fields: dict[str, object], params_b: float | None, usual: bool) -> Model:
    """Tied or untied embeddings: what comes closer to the stated parameters, else the usual."""
    usually = _made((*fields.items(), ("tied_embeddings", usual)))
    if params_b is None:
        return usually
    other = _made((*fields.items(), ("tied_embeddings", not usual)))
    try:
        far = [abs(model.num_params / 1e9 / params_b - 1) for model in (usually, other)]
    except DescriptionError:
        return usually
    return other if far[1] < far[0] and far[1] < _TOLERANCE else usually
