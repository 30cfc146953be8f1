"""Describe: model, machine, workload, framework, layout and training as plain frozen data."""
