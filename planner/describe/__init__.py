"""Describe: what is planned, as plain frozen data: model, machine, workload, framework, layout."""
