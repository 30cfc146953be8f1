"""Hugging Face configurations: config.json fields for models of the catalogue."""

from pathlib import Path
from typing import Any

from planner.describe.files import read_toml
from planner.describe.model.model import Model

_FORMS = read_toml(Path(__file__).with_name("configs.toml"))


def configuration(model: Model, layers: int) -> dict[str, Any]:
    """Return the fields of a config.json with the sizes of a model, without dropout."""
    names = _FORMS["gpt2" if model.family == "gpt2" else "fields"]
    fields = {key: getattr(model, name) for key, name in names.items()}
    fields = {k: v for k, v in fields.items() if k not in _FORMS["unstated"].get(model.family, ())}
    fields |= {"model_type": model.family, "vocab_size": model.vocab_size}
    fields["n_layer" if model.family == "gpt2" else "num_hidden_layers"] = layers
    fields |= dict.fromkeys(_FORMS["nulls"].get(model.family, ()))
    return fields | _FORMS["shapes"].get(model.family, {})
