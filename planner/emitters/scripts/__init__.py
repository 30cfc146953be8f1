"""Scripts: the job script of every batch system, and the script that submits it."""
