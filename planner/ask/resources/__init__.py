"""How much of which machine: nodes, deadlines, cost, scaling, and one machine or another."""
