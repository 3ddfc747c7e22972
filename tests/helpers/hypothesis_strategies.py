"""Hypothesis strategies for property tests of this package's pure functions."""

import math

import torch
from hypothesis import settings
from hypothesis import strategies as st


NAN = math.nan
# Binary floats round these values, so that the mean of equal values may differ from the value.
NON_DYADIC = [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95, 1 / 3, 2 / 3, 1.1, 1.3, -0.1, 100.1]
tried = settings(max_examples=25, deadline=None, derandomize=True, database=None)

in_unit = st.one_of(
    st.sampled_from([0.0, 1.0]), st.sampled_from(NON_DYADIC[:12]), st.integers(0, 1000).map(lambda n: n / 1000)
)
anything = st.one_of(in_unit, st.floats(-1e30, 1e30), st.floats(-1e-30, 1e-30), st.just(NAN))
sizes = st.integers(2, 9)


def groups(score=in_unit, size=sizes, most=4):
    """Return a strategy for rewards of up to `most` groups: (P, G), float64."""
    return size.flatmap(
        lambda g: st.lists(st.lists(score, min_size=g, max_size=g), min_size=1, max_size=most).map(
            lambda rows: torch.tensor(rows, dtype=torch.float64)
        )
    )


@st.composite
def tied(draw, size=sizes):
    """Draw one group whose rewards differ by at most 9e-7."""
    level, jitter = draw(st.sampled_from(NON_DYADIC)), st.one_of(st.just(0.0), st.floats(0.0, 9e-7))
    g = draw(size)
    return torch.tensor([[level + d for d in draw(st.lists(jitter, min_size=g, max_size=g))]], dtype=torch.float64)
