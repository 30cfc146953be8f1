"""Address: what a session asks, as the text of its address; every page reads the same.

A run of the app begins with `begin`. A new session and the browser's Back and Forward are read from
the address; else what a widget says wins, and the address follows: one entry of the browser's
history for one act of the user. Values that are as usual are not stated.
"""

from __future__ import annotations

import difflib
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from planner.errors import PlannerError, shorten

__all__ = ["Reading", "Wishes", "arrivals", "begin", "link", "now", "query", "wish"]

Wishes = dict[str, str]
"""What is asked, by name, as an address writes it."""

_WISHES, _SHOWN, _ARRIVALS = "asked", "shown", "arrivals"
_STATED, _TOLD, _PAGE = "stated", "told", "page"
_MOST_SAID = 12
_LONGEST = 20_000


@dataclass(slots=True)
class Reading:
    """Wishes as values for widgets; one that cannot be is said, and another value taken."""

    wishes: Wishes
    values: dict[str, Any] = field(default_factory=dict)
    """What widgets show, by their key."""
    usual: dict[str, Any] = field(default_factory=dict)
    """What they would show if nothing were asked."""
    said: list[str] = field(default_factory=list)
    """Sentences about wishes that cannot be."""
    keys: list[str] = field(default_factory=list)
    """Names that the address of this page may state."""

    def text(self, key: str, usual: str = "") -> str:
        """A wish as it stands."""
        self.keys.append(key)
        self.usual[key] = usual
        self.values[key] = self.wishes.get(key, usual)
        return str(self.values[key])

    def packed(self, key: str) -> str:
        """A wish that no widget shows."""
        self.keys.append(key)
        return self.wishes.get(key, "")

    def choice(self, key: str, options: Sequence[str], usual: str) -> str:
        """One of some words."""
        wish = self.text(key, usual)
        if wish not in options:
            self._instead(key, wish, _possible(wish, [word for word in options if word]), usual)
        return str(self.values[key])

    def truth(self, key: str, usual: bool) -> bool:
        """Yes or no."""
        found = self.choice(key, ("True", "False"), str(usual)) == "True"
        self.values[key], self.usual[key] = found, usual
        return found

    def words(self, key: str, options: Sequence[str], usual: Sequence[str] = ()) -> list[str]:
        """Some of some words."""
        asked = [word for word in self.text(key, ",".join(usual)).split(",") if word]
        self.usual[key] = list(usual)
        self.values[key] = found = [word for word in asked if word in options]
        for word in asked:
            if word not in found:
                self._say(f"{_named(key)}: {word!r} was asked, {_possible(word, options)}")
        return found

    def number(
        self, key: str, least: float, most: float, usual: float | None, kind: type = int
    ) -> Any:
        """A number between two others, or the nearest of them."""
        wish = self.text(key)
        self.usual[key] = self.values[key] = usual
        if key not in self.wishes:
            return usual
        try:
            value = kind(wish)
            int(value)  # neither infinite nor no number at all
        except (ValueError, OverflowError):
            what = "whole number" if kind is int else "number"
            self._instead(key, wish, f"which is no {what}", usual)
            return usual
        self.values[key] = value
        if not least <= value <= most:
            nearest = kind(least if value < least else most)
            possible = f"{least:,} to {most:,}" if least < most else f"only {least:,}"
            possible += " is possible"
            self._instead(key, wish, possible, nearest)
        return self.values[key]

    def checked(self, key: str, check: Callable[[str], Any], usual: str = "") -> Any:
        """What a reader makes of a text; the reader's complaint is said."""
        wish = self.text(key, usual)
        try:
            return check(wish)
        except PlannerError as error:
            self._say(f"{_named(key)}: {error.plain}; nothing of it is used")
            return check(usual)

    def _instead(self, key: str, wish: str, possible: str, value: Any) -> None:
        self.values[key] = value
        shown = "nothing" if value is None else f"{value:,}" if isinstance(value, int) else value
        self._say(f"{_named(key)}: {shorten(wish, 40)!r} was asked, {possible}; {shown} is shown")

    def _say(self, sentence: str) -> None:
        self.said.append(shorten(sentence, 400).rstrip(".") + ".")


def _named(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _possible(wish: str, options: Sequence[str]) -> str:
    """What might have been meant, for a message."""
    if len(options) <= _MOST_SAID:
        return f"possible here is {', '.join(options) or 'none'}"
    near = difflib.get_close_matches(wish[:80].lower(), options, n=3, cutoff=0.4)
    return f"which is not known: did you mean {' or '.join(near)}?" if near else "which is unknown"


def begin(
    page: str, read: Callable[[Reading], None], follow: Callable[[Wishes, set[str]], None]
) -> Reading:
    """What this run is about; the page's widgets and the address are brought to say the same.

    `read` turns wishes into values; `follow` changes wishes after the user changed some.
    """
    state = st.session_state
    fresh = state.get(_PAGE) != page or _travelled()
    incoming = {key: ",".join(st.query_params.get_all(key))[:_LONGEST] for key in st.query_params}
    known: Wishes | None = state.get(_WISHES)
    if known is None or _travelled():
        reading = Reading(incoming)
        read(reading)
        state[_ARRIVALS] = arrivals() + 1
        elsewhere = {k: v for k, v in (known or {}).items() if k not in reading.keys}
        state[_WISHES] = {**elsewhere, **incoming}
        stated = incoming
    else:
        wishes, changed = _after_widgets(known)
        if changed:
            follow(wishes, changed)
        reading = Reading(wishes)
        read(reading)
        for key in changed & set(reading.usual):
            if reading.values[key] == reading.usual[key]:
                wishes.pop(key, None)
        state[_WISHES] = wishes
        stated = query(reading.keys)
    state[_PAGE] = page
    state[_STATED] = reading.keys
    state[_SHOWN] = reading.values
    for key, value in reading.values.items():
        # setting a value again would disturb a user who is just typing another
        if fresh or key not in state or state[key] != value:
            state[key] = value
    _tell(stated, incoming)
    return reading


def _tell(stated: Wishes, incoming: Wishes) -> None:
    """Make the browser's address say what is stated; comes last, as sending may end this run.

    The browser asked for this run with the `incoming` address, and may have heard of that of the
    run before only then: it is told again unless both agree.
    """
    told = st.session_state.get(_TOLD, incoming)
    st.session_state[_TOLD] = stated
    if not stated == incoming == told:
        st.query_params.from_dict(stated)


def _travelled() -> bool:
    """Whether the browser's Back or Forward led here."""
    context = get_script_run_ctx()
    return bool(getattr(context, "is_history_navigation", False))


def _after_widgets(known: Wishes) -> tuple[Wishes, set[str]]:
    """Wishes with what the user changed on the page, and the names of it."""
    state, wishes, changed = st.session_state, dict(known), set()
    for key, shown in state[_SHOWN].items():
        value = state.get(key, shown)
        if value == shown:
            continue
        changed.add(key)
        if value is None:
            wishes.pop(key, None)
        else:
            wishes[key] = ",".join(value) if isinstance(value, list) else str(value)
    return wishes, changed


def now(key: str) -> str:
    """What is asked under a name; empty where nothing is."""
    return str(st.session_state.get(_WISHES, {}).get(key, ""))


def wish(**changes: str | None) -> None:
    """Ask, from the next run on, for something that no widget shows; None takes a wish back."""
    wishes = {**st.session_state.get(_WISHES, {}), **changes}
    st.session_state[_WISHES] = {key: value for key, value in wishes.items() if value}


def arrivals() -> int:
    """How often an address brought this session here: widgets without a value of their own restart.

    A table's selection, for one, can be set only where the table is new.
    """
    return int(st.session_state.get(_ARRIVALS, 0))


def query(keys: Sequence[str] = ()) -> Wishes:
    """The address of a page that states some names, or those of the present page."""
    wishes: Wishes = st.session_state.get(_WISHES, {})
    return {key: wishes[key] for key in keys or st.session_state.get(_STATED, ()) if key in wishes}


def link(path: str, paths: Sequence[str]) -> str:
    """The whole address of a page, as the browser's bar shows it."""
    base = (st.context.url or "").split("?")[0].split("#")[0].rstrip("/")
    head, _, last = base.rpartition("/")
    base = head if last in paths else base
    asked = urllib.parse.urlencode(query())
    return f"{base}/{path}" + (f"?{asked}" if asked else "")
