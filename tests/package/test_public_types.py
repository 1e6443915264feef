"""Annotations of the public API tell a reader, and an editor, what is taken."""

from typing import Annotated, Any

import pytest
from jaxtyping import PyTree
from support.public_types import admits_all, parameters
from typing_extensions import TypeAliasType

_OPTIONAL = "a type of matplotlib, which need not be installed"
REASONS = {
    "ShardingInfo.plot(ax)": _OPTIONAL,
    "SweepResult.plot(ax)": _OPTIONAL,
    "SweepResult.plot(cmap)": _OPTIONAL,
    "SweepResult.plot(norm)": _OPTIONAL,
}
"""Parameters that may admit everything, each with the reason."""


def test_parameters_tell_what_they_take():
    """To see which do not: `python tests/public_types.py`."""
    assert {str(p) for p in parameters() if p.tells_nothing} == set(REASONS)


def test_at_most_a_twentieth_of_the_parameters_admit_everything():
    assert len(parameters()) > 400
    assert len(REASONS) <= len(parameters()) / 20


Everything = TypeAliasType("Everything", Any)


@pytest.mark.parametrize(
    "annotation",
    [Any, Any | None, int | Any, Annotated[Any, "all"], Everything],
    ids=str,
)
def test_names_and_unions_of_any_count_as_any(annotation):
    assert admits_all(annotation)
    assert not admits_all(dict[str, annotation])


@pytest.mark.parametrize("annotation", [int, int | None, object, PyTree], ids=str)
def test_annotations_that_tell_are_not_counted(annotation):
    assert not admits_all(annotation)
