"""Speed of the explorer's server: processor time of a change, ten people at once, memory.

    python benchmarks/explorer.py               # two minutes; --changes 500 takes longer

It starts `planner app` on a free port and speaks to it as a browser does, without one: the times
are the server's alone. A change is a new number of nodes, a new batch, or another model.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

_START = "model=llama-3-8b&machine=polaris&nodes={nodes}&tokens=300B"
_PATIENCE_S = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Session:
    """One person's page: sends changes of its numbers, waits until the page is complete."""

    def __init__(self, port: int, query: str, path: str = "") -> None:
        self.query, self.path, self.closing = query, path, ExitStack()
        self.widgets: dict[str, str] = {}
        """Identities of number inputs by their label."""
        self.received = 0
        """Bytes that the last run sent."""
        address = f"ws://127.0.0.1:{port}/_stcore/stream"
        connection = connect(address, subprotocols=["streamlit"], max_size=None, open_timeout=60)
        self.socket: ClientConnection = self.closing.enter_context(connection)

    def open(self) -> float:
        """Open the page; return the seconds until it was complete."""
        return self._run(BackMsg())

    def change(self, label: str, value: float) -> float:
        """Change a number; return the seconds until the page was complete."""
        message = BackMsg()
        state = message.rerun_script.widget_states.widgets.add()
        state.id, state.double_value = self.widgets[label], value
        return self._run(message)

    def _run(self, message: BackMsg) -> float:
        message.rerun_script.query_string = self.query
        message.rerun_script.page_name = self.path
        start = time.monotonic()
        self.socket.send(message.SerializeToString())
        self.received = 0
        while True:
            data = self.socket.recv(timeout=_PATIENCE_S)
            self.received += len(data)
            answer = ForwardMsg.FromString(data)
            kind = answer.WhichOneof("type")
            if kind == "delta":
                self._note(answer.delta)
            elif kind == "page_info_changed":
                self.query = answer.page_info_changed.query_string
            elif kind == "script_finished":
                if answer.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                    return time.monotonic() - start
                raise RuntimeError(f"the run ended with status {answer.script_finished}")

    def _note(self, delta: Any) -> None:
        """Remember number inputs. Raises RuntimeError if the page shows an exception."""
        element = delta.new_element
        kind = element.WhichOneof("type") if delta.HasField("new_element") else ""
        if kind == "exception":
            raise RuntimeError(element.exception.message)
        if kind == "number_input":
            self.widgets[element.number_input.label] = element.number_input.id


class Server:
    """The explorer's server: its processor time and its memory."""

    def __init__(self, port: int, process: int) -> None:
        self.port, self.process = port, process

    @property
    def cpu_s(self) -> float:
        """User and system time so far [s]."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_mib(self) -> float:
        """Resident memory [MiB]."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@contextmanager
def serving() -> Iterator[Server]:
    """Run `planner app` on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "planner", "app", "--headless", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"http://127.0.0.1:{port}/_stcore/health", server)
        yield Server(port, server.pid)
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(480):
        if process.poll() is not None:
            raise RuntimeError("the server ended by itself")
        try:
            urllib.request.urlopen(url, timeout=2)
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise TimeoutError(url)


def alone(server: Server, model: str, nodes: Sequence[int], path: str = "") -> None:
    """Report what opening a page and changing its nodes cost one person."""
    query = _START.format(nodes=nodes[0]).replace("llama-3-8b", model)
    before = server.cpu_s
    session = Session(server.port, query, path)
    wall = session.open()
    opened = server.cpu_s - before
    costs, walls = [], []
    for count in nodes[1:]:
        before = server.cpu_s
        walls.append(session.change("Nodes", count))
        costs.append(server.cpu_s - before)
    before = server.cpu_s
    again = session.change("Nodes", nodes[-2])
    known = server.cpu_s - before
    print(
        f"{model} on /{path}: opened {opened:.2f} s of processor, {wall:.2f} s; a change of nodes "
        f"{statistics.median(costs):.2f} s (most {max(costs):.2f}), "
        f"{statistics.median(walls):.2f} s; a job planned before {known:.2f} s, {again:.2f} s; "
        f"{session.received / 1000:.0f} kB sent",
        flush=True,
    )


def together(server: Server, people: int) -> None:
    """Report how long people wait who open a page, and change a number, all at once."""
    sessions = [Session(server.port, _START.format(nodes=40 + i)) for i in range(people)]
    for title, work in (
        ("opened", lambda i: sessions[i].open()),
        ("changed nodes", lambda i: sessions[i].change("Nodes", 60 + i)),
        ("changed the batch", lambda i: sessions[i].change("Batch [sequences]", 128 * (i + 3))),
    ):
        waits = [0.0] * people

        def one(i: int, work: Any = work, waits: list[float] = waits) -> None:
            waits[i] = work(i)

        before, start = server.cpu_s, time.monotonic()
        threads = [threading.Thread(target=one, args=(i,)) for i in range(people)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(
            f"{people} people {title} at once: {min(waits):.1f} to {max(waits):.1f} s each, "
            f"{(server.cpu_s - before) / people:.2f} s of processor each, "
            f"{time.monotonic() - start:.1f} s in all; {server.memory_mib:.0f} MiB",
            flush=True,
        )


def memory(server: Server, changes: int) -> None:
    """Report the server's memory over many changes of one person."""
    session = Session(server.port, _START.format(nodes=4))
    session.open()
    marks = {changes * i // 10 for i in range(11)}
    sizes = []
    for number, nodes in zip(range(changes + 1), itertools.cycle(range(1, 480)), strict=False):
        if number in marks:
            sizes.append(f"{number}: {server.memory_mib:.0f}")
        session.change("Nodes", nodes)
    print(f"memory over changes [MiB]: {', '.join(sizes)}", flush=True)


def main() -> None:
    """Run the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=10)
    parser.add_argument("--changes", type=int, default=50)
    given = parser.parse_args()
    with serving() as server:
        alone(server, "llama-3-8b", (4, 5, 6, 7, 8, 9))
        alone(server, "llama-3-8b", (4, 5, 6, 7, 8, 9), "layout")
        alone(server, "llama-3-8b", (14, 15, 16, 17, 18, 19))
        alone(server, "llama-3-70b", (32, 34, 36, 38, 40, 42))
        together(server, given.people)
        memory(server, given.changes)


if __name__ == "__main__":
    main()
