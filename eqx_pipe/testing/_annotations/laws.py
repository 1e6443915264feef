"""Laws of stages, asked of a function of several arguments."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import equinox as eqx

from ..._check import check_choice
from ..._errors import describe_value, type_error
from ..._tree import is_key_array
from ..._types import Key, PyTree
from .._laws.law import Law
from .._laws.report import try_law
from .._laws.stage import LAWS
from .._laws.trial import trial_of
from .signature import name_of, split


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


def try_on(law: Law, fn: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises an `AssertionError` if a function breaks a law on some arguments."""
    __tracebackhide__ = True
    given = dict(arguments)
    key = given.pop("key") if is_key_array(given.get("key")) else None
    x, fixed = eqx.partition(given, eqx.is_array)
    stage = _OfOne(fn, fixed)
    try_law(law, trial_of("testing.given_typed", stage, x, None, key, None, None))


def checked_laws(function: str, laws: Collection[str]) -> list[Law]:
    """Laws by their names; raises for one that there is not."""
    if isinstance(laws, str) or not isinstance(laws, tuple | list | set | frozenset):
        raise type_error(
            f"testing.{function}",
            f"`laws` is {describe_value(laws)}.",
            "Give a tuple of names of laws: `laws=('jit', 'grad')`.",
        )
    for name in laws:
        check_choice(f"testing.{function}", "laws", name, LAWS)
    return [law for name, law in LAWS.items() if name in laws]
