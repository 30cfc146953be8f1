"""Plot data: the space of layouts of a job, and the step and axes of one layout."""
