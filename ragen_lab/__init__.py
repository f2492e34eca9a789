"""ragen-lab: sweeps, collapse detection and honest reports for multi-turn RL of LLM agents."""

__version__ = "0.1.0"
