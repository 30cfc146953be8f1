"""Subject: the model that is checked, which validation builds from its description."""

from __future__ import annotations

from planner.describe.catalogue import load_model
from planner.describe.model.model import Model
from planner.errors import DescriptionError

__all__ = ["subject"]


def subject(name: str) -> Model:
    """A model by name, as `load_model`; DescriptionError where its description builds none.

    >>> subject("gpt2").num_layers
    12
    """
    model = load_model(name)
    if model.kind in ("convolutional", "traced"):
        raise DescriptionError(
            f"{model.name} is {model.kind}: validation builds transformers from their shapes and "
            "has none of it; choose a transformer"
        )
    return model
