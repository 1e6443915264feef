"""Laws, asked of a function of several arguments."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import equinox as eqx

from ..._check import check_choice
from ..._errors import describe_value, type_error
from ..._tree import is_key_array
from ..._types import Key, PyTree
from .._laws.function import FUNCTION_LAWS, by_reference, concerns
from .._laws.law import Law
from .._laws.report import try_law
from .._laws.trial import trial_of
from .signature import name_of, signature_of, split


class _OfOne(eqx.Module):
    """A function of several arguments as a stage of one: a dict of their arrays."""

    fn: Callable[..., Any]
    fixed: PyTree

    @property
    def __name__(self) -> str:
        return name_of(self.fn)

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        given = eqx.combine(x, self.fixed)
        first, rest = split(self.fn, given if key is None else {**given, "key": key})
        return self.fn(*first, **rest)


def try_on(
    law: Law,
    fn: Callable[..., Any],
    arguments: Mapping[str, Any],
    reference: Callable[..., Any] | None = None,
) -> None:
    """Raises an `AssertionError` if a function breaks a law on some arguments."""
    __tracebackhide__ = True
    given = dict(arguments)
    key = given.pop("key") if is_key_array(given.get("key")) else None
    x, fixed = eqx.partition(given, eqx.is_array)
    stage = _OfOne(fn, fixed)
    trial = trial_of("testing.given_typed", stage, x, None, key, None, None)
    if not concerns(law.name, trial, reference is not None):
        return
    if reference is not None and law.name == "reference":
        first, rest = split(fn, arguments)
        bound = signature_of(fn).bind(*first, **rest)  # NumPy's take few by name
        law = by_reference(reference, bound.args, bound.kwargs)
    try_law(law, trial, f"laws(..., skip=({law.name!r},))")


def checked_laws(function: str, laws: Collection[str]) -> list[Law]:
    """Laws by their names; raises for one that there is not."""
    if isinstance(laws, str) or not isinstance(laws, tuple | list | set | frozenset):
        raise type_error(
            f"testing.{function}",
            f"`laws` is {describe_value(laws)}.",
            "Give a tuple of names of laws: `laws=('jit', 'grad')`.",
        )
    known = [name for name in FUNCTION_LAWS if name != "reference"]
    for name in laws:
        check_choice(f"testing.{function}", "laws", name, known)
    return [FUNCTION_LAWS[name] for name in known if name in laws]
