"""Hub: a model by its name on the Hugging Face hub, asked once for all runs of the page."""

from __future__ import annotations

import streamlit as st

from planner.describe.model.huggingface.hub import load_from_hub
from planner.describe.model.model import Model
from planner.errors import CatalogueError, PlannerError

__all__ = ["hub_model"]

_AGAIN_S = 60
"""After so long it is asked again, whether it was there or not."""


def hub_model(name: str) -> Model:
    """The model of a name; CatalogueError where it cannot be had."""
    result = _answer(name)
    if isinstance(result, str):
        raise CatalogueError(result)
    return result


@st.cache_data(ttl=_AGAIN_S, max_entries=64, show_spinner="Asking the Hugging Face hub ...")
def _answer(name: str) -> Model | str:
    """The model, or why there is none: every click asks anew, and no answer takes seconds."""
    try:
        return load_from_hub(name)
    except PlannerError as error:
        return error.plain
