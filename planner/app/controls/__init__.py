"""Controls: what describes a training job on a page, shared by the pages that need one."""
