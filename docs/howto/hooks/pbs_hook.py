"""PBS: a `queuejob` hook that refuses a job that `planner check` says will not fit.

qmgr -c "create hook planner event=queuejob"
qmgr -c "import hook planner application/x-python default pbs_hook.py"

The server sees the arguments of qsub, not the script: it reads the script where qsub was called.
"""

import os
import subprocess

import pbs

event = pbs.event()
job = event.job
folder = str(job.Variable_List["PBS_O_WORKDIR"])
words = str(job.Submit_arguments or "").split()
script = os.path.join(folder, words[-1]) if words else ""
if os.path.isfile(script):
    command = [*os.environ.get("PLANNER", "planner").split(), "check", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode == 1:  # 2: it cannot tell, and the job is accepted
        event.reject(done.stdout)
event.accept()
