"""One step of a layout played event by event: its timeline, what it waits for, what to widen."""
