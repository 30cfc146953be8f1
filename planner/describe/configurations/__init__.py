"""What a user's own configuration files say of layout, workload and framework."""
