"""Controls: the widgets that describe a training job, shared by the pages."""
