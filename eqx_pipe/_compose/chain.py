"""Stages one after the other."""

from typing import SupportsIndex, overload

import equinox as eqx

from .._errors import type_error
from .._stage import Scope, as_stage, enter
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, check_names


class Chain(Container):
    """Stages left to right; see `chain`."""

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        for segment, stage in zip(self.keys(), self.stages, strict=True):
            x, state = enter(scope, segment, stage, x, state=state)
        return x, state

    @overload
    def __getitem__(self, item: str) -> AnyStage: ...

    @overload
    def __getitem__(self, item: SupportsIndex) -> AnyStage: ...

    @overload
    def __getitem__(self, item: slice) -> "Chain": ...

    def __getitem__(self, item: PyTree) -> PyTree:
        """The stage at a position or of a name; for a slice, the chain of those."""
        if isinstance(item, slice):
            names = None if self.names is None else self.names[item]
            return Chain(self.stages[item], names)
        return super().__getitem__(item)


def chain(*stages: StageLike, **named: StageLike) -> Chain:
    """Applies stages left to right.

    `chain()` is the identity. The stages are given by position, or by name as
    keywords, not both. Positions and names are the paths in errors and `outputs`, and
    decide the random draws: stage `i` draws from `fold_in(key, i)`, a named stage from
    `fold_in(key, crc32(name))`.

    **Arguments:**

    - `stages`: any number of stages.
    - `named`: the same by name. (Keyword only.)

    **Returns:** a stage. It has a length, can be iterated, indexed by position or
    name, and sliced (a chain again); `in` takes a name or a stage, and `keys()`,
    `values()` and `items()` are those of a dict.

    **Raises:**

    - `TypeError` if something is not a stage, or positions and names are mixed.
    - `ValueError` if a name is not usable, or two would give the same draws.

    **Laws:** `chain(f, chain(g, h))`, `chain(chain(f, g), h)` and `chain(f, g, h)`
    agree for deterministic stages; `chain(f)` is `f`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.chain(wave=jnp.sin, total=jnp.sum)
        >>> round(pipe(jnp.arange(3.0)).item(), 3)
        1.751
        >>> len(pipe), pipe["wave"](jnp.zeros(())).item()
        (2, 0.0)
    """
    if stages and named:
        raise type_error(
            "chain",
            f"{len(stages)} stages by position and {list(named)} by name.",
            "Give all stages by position or all by name.",
        )
    names = check_names("chain", "named", named) if named else None
    given = named or {f"stages[{i}]": stage for i, stage in enumerate(stages)}
    return Chain(tuple(as_stage("chain", n, s) for n, s in given.items()), names)
