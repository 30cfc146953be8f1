"""What a job takes to start, what it saves and when, and what interruptions cost."""
