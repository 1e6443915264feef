"""Your own stages, made known to the strategies."""

import dataclasses
import functools as ft
import typing
from collections.abc import Callable
from typing import TypeAlias

import hypothesis.strategies as st

from ..._errors import describe_value
from ..._types import PyTree
from .validate import check_bool, invalid

Maker: TypeAlias = Callable[[PyTree], st.SearchStrategy | None]
"""From a struct to a strategy of stages that keep it, or None."""


Make = typing.TypeVar("Make", bound=Maker)


@dataclasses.dataclass(frozen=True)
class Registered:
    """A function from a struct to a strategy of stages, and whether they draw."""

    make: Maker
    random: bool


_REGISTERED: dict[str, Registered] = {}


@typing.overload
def register_stage(make: Make, *, random: bool = False) -> Make: ...
@typing.overload
def register_stage(
    make: None = None, *, random: bool = False
) -> Callable[[Make], Make]: ...
def register_stage(
    make: Make | None = None, *, random: bool = False
) -> Make | Callable[[Make], Make]:
    """Makes your own stages known, so that `stages` and `pipelines` use them.

    **Arguments:**

    - `make`: a function `make(struct)` of the input's shapes and dtypes. It returns a
      strategy of stages that keep `struct` (what comes out is like what goes in), or
      None if there are none for it. Registering another of the same name replaces it.
    - `random`: whether the stages need a key. (Keyword only.)

    **Returns:** `make`, so that it can be a decorator.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept
        >>> import hypothesis.strategies as st, jax.tree_util as jtu
        >>> class Scale(ep.Stage):
        ...     factor: float
        ...     def __call__(self, x, *, key=None):
        ...         return jtu.tree_map(lambda v: v * self.factor, x)
        >>> @ept.register_stage
        ... def scales(struct):
        ...     return st.builds(Scale, st.sampled_from([0.5, 2.0]))
        >>> ept.unregister_stage(scales)
    """
    check_bool("register_stage", "random", random)
    if make is None:
        return ft.partial(register_stage, random=random)
    if isinstance(make, type) or not callable(make):
        raise invalid(
            "register_stage",
            f"`make` is {describe_value(make)}.",
            "Give a function from a struct to a strategy: `register_stage(lambda "
            "struct: st.builds(MyStage, ...))`.",
        )
    _REGISTERED[_name(make)] = Registered(make, random)  # pyright: ignore
    return make


def unregister_stage(make: Maker) -> None:
    """Takes back a `register_stage`."""
    if _REGISTERED.pop(_name(make), None) is None:
        raise invalid(
            "unregister_stage",
            f"`make` is {describe_value(make)}, which is not registered.",
            "Give the function that was given to `register_stage`.",
        )


def registered(struct: PyTree, random: bool) -> list[st.SearchStrategy]:
    """Strategies of the registered stages that take `struct`."""
    found = []
    for name, entry in _REGISTERED.items():
        if entry.random and not random:
            continue
        strategy = entry.make(struct)
        if strategy is None:
            continue
        if not isinstance(strategy, st.SearchStrategy):
            raise invalid(
                "register_stage",
                f"`{name}` returned {describe_value(strategy)} for `struct`.",
                "Return a strategy of stages, or None if there are none for it.",
            )
        found.append(strategy)
    return found


def _name(make: Maker) -> str:
    module = getattr(make, "__module__", "")
    return f"{module}.{getattr(make, '__qualname__', repr(make))}"
