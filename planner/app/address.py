"""Address: the job and choices of a session as query parameters, shared by all pages."""

import contextlib
import difflib
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException
from streamlit.runtime.scriptrunner import get_script_run_ctx

from planner.errors import PlannerError, shorten

Query = dict[str, str]
"""Query parameters of an address: text by name."""

_QUERY, _SHOWN, _ARRIVALS = "asked", "shown", "arrivals"
_PARAMETERS, _ADDRESS, _PAGE = "stated", "told", "page"
_READ_LATER = ("kept_", "ask_", "network")
"""Starts of parameters that another model, machine or question may read."""
_MAX_LISTED = 12
_LONGEST = 20_000


@dataclass(slots=True)
class QueryReader:
    """Reads query parameters as widget values; replaces invalid ones and collects messages."""

    query: Query
    values: dict[str, Any] = field(default_factory=dict)
    """Values that widgets show, by widget key."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Values that widgets show without a query."""
    messages: list[str] = field(default_factory=list)
    """Messages about invalid parameters."""
    keys: list[str] = field(default_factory=list)
    """Names of the parameters that this page's address may contain."""

    def text(self, key: str, usual: str = "") -> str:
        """Read a parameter as text."""
        self.keys.append(key)
        self.defaults[key] = usual
        self.values[key] = self.query.get(key, usual)
        return str(self.values[key])

    def packed(self, key: str) -> str:
        """Read a parameter that no widget shows."""
        self.keys.append(key)
        return self.query.get(key, "")

    def choice(self, key: str, options: Sequence[str], usual: str) -> str:
        """Read one of `options`."""
        raw_value = self.text(key, usual)
        if raw_value not in options:
            valid = _valid_values(raw_value, [word for word in options if word])
            self._replace(key, raw_value, valid, usual)
        return str(self.values[key])

    def truth(self, key: str, usual: bool) -> bool:
        """Read a boolean."""
        value = self.choice(key, ("True", "False"), str(usual)) == "True"
        self.values[key], self.defaults[key] = value, usual
        return value

    def words(self, key: str, options: Sequence[str], usual: Sequence[str] = ()) -> list[str]:
        """Read a comma-separated selection of `options`."""
        requested = [word for word in self.text(key, ",".join(usual)).split(",") if word]
        self.defaults[key] = list(usual)
        self.values[key] = accepted = [word for word in requested if word in options]
        for word in requested:
            if word not in accepted:
                valid = _valid_values(word, options)
                self._add_message(f"{_label(key)}: {word!r} is not valid ({valid})")
        return accepted

    def number(
        self, key: str, least: float, most: float, usual: float | None, kind: type = int
    ) -> Any:
        """Read a number, clamped to the range from `least` to `most`."""
        raw_value = self.text(key)
        self.defaults[key] = self.values[key] = usual
        if key not in self.query:
            return usual
        try:
            value = kind(raw_value)
            int(value)  # neither infinite nor no number at all
        except (ValueError, OverflowError):
            kind_name = "whole number" if kind is int else "number"
            self._replace(key, raw_value, f"use a {kind_name}", usual)
            return usual
        self.values[key] = value
        if not least <= value <= most:
            nearest = kind(least if value < least else most)
            valid = f"use {least:,} to {most:,}" if least < most else f"only {least:,} is possible"
            self._replace(key, raw_value, valid, nearest)
        return self.values[key]

    def checked(self, key: str, check: Callable[[str], Any], usual: str = "") -> Any:
        """Parse a text with `check`; if that fails, add a message and use `usual`."""
        raw_value = self.text(key, usual)
        try:
            return check(raw_value)
        except PlannerError as error:
            self._add_message(f"{_label(key)}: {error.plain}; ignored")
            return check(usual)

    def report_unknown(self, parameters: Collection[str]) -> None:
        """Add a message for every parameter of the address that no page reads."""
        for key in self.query:
            if key not in parameters and not key.startswith(_READ_LATER):
                matches = difflib.get_close_matches(key[:80].lower(), parameters, n=1)
                hint = f"did you mean {matches[0]}?" if matches else "unknown; remove it"
                self._add_message(f"{shorten(key, 40)!r} in the address is ignored ({hint})")

    def _replace(self, key: str, raw_value: str, valid: str, value: Any) -> None:
        self.values[key] = value
        used = "nothing" if value is None else f"{value:,}" if isinstance(value, int) else value
        text = shorten(raw_value, 40)
        self._add_message(f"{_label(key)}: {text!r} is not valid ({valid}); using {used}")

    def _add_message(self, sentence: str) -> None:
        self.messages.append(shorten(sentence, 400).rstrip(".") + ".")


def _label(key: str) -> str:
    return key.removeprefix("ask_").replace("_", " ").capitalize()


def _valid_values(raw_value: str, options: Sequence[str]) -> str:
    """Name the valid options, or the closest matches, for a message."""
    if len(options) <= _MAX_LISTED:
        return f"use {', '.join(options)}" if options else "none is available"
    matches = difflib.get_close_matches(raw_value[:80].lower(), options, n=3, cutoff=0.4)
    return f"did you mean {' or '.join(matches)}?" if matches else "unknown"


def begin(
    page: str,
    read: Callable[[QueryReader], None],
    follow: Callable[[Query, set[str], Mapping[str, Any]], None],
) -> QueryReader:
    """Read the query with `read`; `follow` adapts it to what the user changed of what was shown."""
    state = st.session_state
    fresh = state.get(_PAGE) != page or _is_history_navigation()
    incoming = {key: ",".join(st.query_params.get_all(key))[:_LONGEST] for key in st.query_params}
    before: Query | None = state.get(_QUERY)
    if before is None or _is_history_navigation():
        reader = QueryReader(incoming)
        read(reader)
        state[_ARRIVALS] = arrivals() + 1
        elsewhere = {k: v for k, v in (before or {}).items() if k not in reader.keys}
        state[_QUERY] = {**elsewhere, **incoming}
        query_to_show = incoming
    else:
        query, changed = _apply_widgets(before)
        if changed:
            follow(query, changed, state[_SHOWN])
        reader = QueryReader(query)
        read(reader)
        for key in changed & set(reader.defaults):
            if reader.values[key] == reader.defaults[key]:
                query.pop(key, None)
        state[_QUERY] = query
        query_to_show = stated_query(reader.keys)
    state[_PAGE] = page
    state[_PARAMETERS] = reader.keys
    state[_SHOWN] = reader.values
    for key, value in reader.values.items():
        # setting an unchanged value again would disturb a user who is typing
        if fresh or key not in state or state[key] != value:
            state[key] = value
    _write_address(query_to_show, incoming)
    return reader


def _write_address(query_to_show: Query, incoming: Query) -> None:
    """Update the browser's address; called last, because sending it may end this run."""
    # the browser may have requested this run before it received the address of the previous one
    shown_before = st.session_state.get(_ADDRESS, incoming)
    st.session_state[_ADDRESS] = query_to_show
    if not query_to_show == incoming == shown_before:
        st.query_params.from_dict(query_to_show)


def _is_history_navigation() -> bool:
    """True if the browser's Back or Forward started this run."""
    return bool(getattr(get_script_run_ctx(), "is_history_navigation", False))


def _apply_widgets(before: Query) -> tuple[Query, set[str]]:
    """Return the query with the user's changes on the page, and the changed keys."""
    state, query, changed = st.session_state, dict(before), set()
    for key, shown in state[_SHOWN].items():
        value = state.get(key, shown)
        if value == shown:
            continue
        changed.add(key)
        query.pop(key, None)
        if value is not None:
            query[key] = ",".join(value) if isinstance(value, list) else str(value)
    return query, changed


def keep_undrawn() -> None:
    """Keep values of widgets that this run did not draw: Streamlit would use older ones."""
    for key, value in st.session_state[_SHOWN].items():
        # refused for a widget that is drawn
        with contextlib.suppress(StreamlitAPIException):
            st.session_state[key] = value


def requested(key: str) -> str:
    """Return a parameter of the session's query; empty if it is not set."""
    return str(st.session_state.get(_QUERY, {}).get(key, ""))


def request(**changes: str | None) -> None:
    """Set parameters that no widget shows, from the next run on; None removes one."""
    query = {**st.session_state.get(_QUERY, {}), **changes}
    st.session_state[_QUERY] = {key: value for key, value in query.items() if value}


def leave() -> None:
    """Forget what widgets show: a page that the program opens has earlier values in its own."""
    st.session_state[_SHOWN] = {}


def arrivals() -> int:
    """Return how often an address opened this session; part of widget keys, to reset widgets."""
    return int(st.session_state.get(_ARRIVALS, 0))


def stated_query(keys: Sequence[str] = ()) -> Query:
    """Return the query restricted to `keys`, by default those of the current page."""
    query: Query = st.session_state.get(_QUERY, {})
    keys = keys or st.session_state.get(_PARAMETERS, ())
    return {key: query[key] for key in keys if key in query}


def link(path: str, paths: Sequence[str]) -> str:
    """Return the full URL of a page, as the browser's address bar shows it."""
    base = (st.context.url or "").split("?")[0].split("#")[0].rstrip("/")
    head, _, last = base.rpartition("/")
    encoded = urllib.parse.urlencode(stated_query())
    return f"{head if last in paths else base}/{path}" + (f"?{encoded}" if encoded else "")
