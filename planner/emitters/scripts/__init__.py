"""Scripts: the job script of every batch system, and what submits it."""
