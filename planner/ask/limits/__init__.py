"""How large a job: the model, the sequence, the batch."""
