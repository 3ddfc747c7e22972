"""Random texts for fuzzing rewards: pieces of the markup that rewards look for, mixed with any other characters."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


SCRAPS = [
    *("<think>", "</think>", "<answer>", "</answer>", "<answer", "&lt;answer&gt;", "Answer:", "The answer is "),
    *("####", "**", "```", "```json\n", "```python\n", r"\boxed{", r"\frac{", r"\sqrt[3]{", r"\left(", r"\text{"),
    *(r"\begin{pmatrix}", "{", "}", "{{{{", "}}}}", "[", "]", "(", ")", "$", "$$", "\\", "\\\\", "^", "_", "=", "=="),
    *("<<", ">>", "+", "-", "*", "/", "//", "%", ",", ".", ";", ":", "'", '"', "or", "and", "not", " ", "\n", "\r"),
    *("\r\n", "\t", "\0", "\x1b[31m", "\u2028", "\u202e", "\u200b", "\ufeff", "\ud800", "\udfff", "\u0301", "👩‍👩‍👧"),
    *("0", "1", "-1", "2", "46", "1e999", "9" * 40, "0.1", "1/0", "0/0", "½", "٣", "²", "∞", "NaN", "null", "true"),
    *("x", "yes", "A", "(B)", "def f(x):\n    return x\n", "import os\n", "assert False", '{"name": "a"}', "3+4=7"),
]
PLACES = ["{}", "<think>a</think><answer>{}</answer>", "<think>{}", "\\boxed{{{}}}", "```json\n{}\n```", "#### {}"]
scrap = st.one_of(st.sampled_from(SCRAPS), st.text(st.characters(), max_size=5))
repeated = st.tuples(scrap, st.integers(1, 400)).map(lambda pair: pair[0] * pair[1])
loose = st.lists(st.one_of(scrap, scrap, scrap, repeated), max_size=12).map("".join)
texts = st.tuples(st.sampled_from(PLACES), loose).map(lambda pair: pair[0].format(pair[1]))


def tried(examples):
    """Return the settings of `hypothesis_strategies.tried`, for tests that also start processes or write files."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
