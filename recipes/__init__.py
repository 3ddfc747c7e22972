"""Recipes: one YAML file for each run, and `grpo.py`, the script that launches them all."""
