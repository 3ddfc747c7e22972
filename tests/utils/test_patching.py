"""Attributes that are changed temporarily."""

import pytest

from trl_grpo_plus.utils.patching import temporarily


class Scheduled:
    _beta = 0.1

    @property
    def beta(self):
        return self._beta

    @beta.setter
    def beta(self, value):
        self._beta = value

    def method(self):
        return "its own"


def test_methods_and_properties_of_the_class_are_as_before_also_after_an_error():
    target = Scheduled()

    def fail():
        with temporarily(target, beta=0.5, method=lambda: "another"):
            assert (target.beta, target.method()) == (0.5, "another")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (target.beta, target.method()) == (0.1, "its own")
    assert "method" not in vars(target)
