"""Probe files: the small runs of a probe, each in a folder, and one job script for all of them."""

from dataclasses import replace

from planner.choose.jobs.probe import LIMIT_S, STEPS, Probe
from planner.emitters.batch_job import BatchJob
from planner.emitters.files import files_of
from planner.emitters.registry import recipe_of
from planner.emitters.scripts.job_script import probe_scripts
from planner.emitters.text import render

_LEFT_OUT = ("README.md", "submit.sh")
"""Files of a run that the probe has once for all runs."""


def probe_files(probe: Probe, *, queue: str = "", account: str = "") -> dict[str, str]:
    """Return the files of a probe (name to text); raises EmitError where none are written."""
    runs = ((run.job, run.estimate) for run in probe.runs)
    jobs = [
        BatchJob(job.scenario_of(estimate), estimate, job.nodes, STEPS, queue, account, saves=False)
        for job, estimate in runs
    ]
    files = {
        f"{number}/{name}": text
        for number, job in enumerate(jobs, 1)
        for name, text in files_of(job).items()
        if name not in _LEFT_OUT
    }
    largest = max(jobs, key=lambda job: job.nodes)
    recipe, slot = recipe_of(largest), replace(largest.slot, seconds=LIMIT_S, jobs=1)
    scripts = probe_scripts(largest, recipe, slot, probe)
    texts = {**files, **{file.name: file.text for file in scripts}}
    words = [f"{name}=..." for name in recipe.variables]
    words += [f"PROGRAM={recipe.default_program}"] if recipe.default_program else []
    command = " ".join([*words, "bash", "submit.sh" if "submit.sh" in texts else "job.sh"])
    values = {"probe": probe, "job": largest, "recipe": recipe, "slot": slot, "command": command}
    texts["README.md"] = render("probe_readme", **values, steps=STEPS)
    return dict(sorted(texts.items()))
