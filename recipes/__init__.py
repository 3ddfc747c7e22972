"""Whole runs: `grpo.py`, the one launchable script, and one YAML a run."""
