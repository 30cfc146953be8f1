"""Resources: nodes, deadlines, costs, and comparisons of machines, frameworks and settings."""
