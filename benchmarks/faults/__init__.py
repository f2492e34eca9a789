"""Faults, injected for real into sweeps that run: `python -m benchmarks.faults --help`."""
