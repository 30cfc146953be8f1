"""What a training does besides its steps: its start, its checkpoints."""
