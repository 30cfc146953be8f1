"""Nodes, deadlines, costs, and one machine, framework or setting against another."""
