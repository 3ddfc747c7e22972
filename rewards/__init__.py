"""Verifiable rewards: one reward a file, each a plain TRL reward function."""
