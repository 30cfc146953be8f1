"""README of a folder: what it says of the environment is what its job script does."""

from __future__ import annotations

import re

import pytest

from planner.describe.catalogue import load_framework, load_machine, names
from planner.emitters.registry import NO_FILES
from planner.emitters.scripts.systems import SYSTEMS
from planner.errors import PlannerError
from tests.emitters.emitted import Files, place_files

PLACES = [name for name in names("machine") if load_machine(name).scheduler.kind in SYSTEMS]
_VARIABLE = r"\b(?:NCCL|RCCL|CCL|FI|CXI|MPICH)_[A-Z0-9_]+\b"
_DIAGNOSTIC = {"NCCL_DEBUG"}
"""Variables that a note tells the user to try out."""


def _exported(script: str) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)='?([^'\n]*)'?$", script, re.MULTILINE))


def _written(machine: str, framework: str, network: str = "") -> Files | None:
    place = load_machine(machine, (f"network={network}",) if network else ())
    for model in ("gpt2", "llama-3.2-1b", "qwen3-30b-a3b"):
        try:
            return place_files(place, framework, model=model)
        except PlannerError:
            continue  # the framework does not run there, or does not build that model
    return None


def _agrees(machine: str, files: Files) -> None:
    notes = files["README.md"].partition("\n## Notes\n")[2]
    exported = _exported(files["job.sh"])
    networks = {network.name: network for network in load_machine(machine).all_networks}
    named = re.search(r"is estimated on the network '([^']+)'", notes)
    assert (named is not None) == (len(networks) > 1 and "on 2 nodes" in files["README.md"])
    if named is not None:
        own = networks[named[1]].environment
        assert own.items() <= exported.items()
        others = {name for network in networks.values() for name in network.environment}
        assert not (others - set(own)) & set(exported)
    without = set(re.findall(rf"[Ww]ithout `?({_VARIABLE})", notes))
    assert not without & set(exported)
    said = set(re.findall(_VARIABLE, notes)) - without - _DIAGNOSTIC
    assert said <= set(exported), files["README.md"]


WRITING = [n for n in names("framework") if load_framework(n).configuration != NO_FILES]


@pytest.mark.slow
@pytest.mark.parametrize("framework", WRITING)
def test_readme_and_job_script_set_the_same_environment(framework: str) -> None:
    written = 0
    for machine in PLACES:
        for network in ("", *(each.name for each in load_machine(machine).networks)):
            if files := _written(machine, framework, network):
                _agrees(machine, files)
                written += 1
    assert written, framework


def test_a_note_of_a_site_speaks_of_no_network() -> None:
    """A site's notes are the same for every job; what holds for one network stands at it."""
    for name in names("machine"):
        machine = load_machine(name)
        if not machine.networks or machine.scheduler.launch is None:
            continue
        words = [re.escape(network.name) for network in machine.all_networks]
        for note in machine.scheduler.launch.notes:
            assert not re.search("|".join([*words, _VARIABLE]), note), (name, note)


def test_megatron_deepspeed_of_polaris_is_told_of_the_plugin_that_it_loads() -> None:
    """Its README said "without the plugin" above a script that loads it."""
    files = place_files("polaris", "megatron-deepspeed")
    assert "export NCCL_NET='AWS Libfabric'\n" in files["job.sh"]
    assert "the network 'plugin-staged'" in files["README.md"]
    assert "NCCL_NET_GDR_LEVEL=" not in files["job.sh"]
    assert "goes without it on 'sockets'" in files["README.md"]
    bare = place_files(load_machine("polaris", ("network=sockets",)), "megatron-deepspeed")
    assert "NCCL_NET=" not in bare["job.sh"]
    assert "the network 'sockets'" in bare["README.md"]


def test_readme_says_how_ranks_get_samples_of_their_own() -> None:
    own = place_files("polaris", "deepspeed")["README.md"]
    replicas = re.search(r"num_replicas=(\d+), rank=REPLICA, seed=SEED", own)
    assert replicas is not None
    assert replicas[1] == "8"
    for framework in ("ddp", "ezpz"):
        drawn = place_files("polaris", framework, model="gpt2")["README.md"]
        assert "draws its sequences at random, with a seed of its own" in drawn
        assert "num_replicas" not in drawn
