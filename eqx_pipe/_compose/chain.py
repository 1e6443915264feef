"""Stages one after the other: `chain`, and `residual`, which adds their input."""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import quoted, type_error
from .._stage import Scope, as_stage
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, Segment, StageLike
from .container import Container, Names, keyed, read_names, read_stages
from .entries import Broadcast, carried_entry, read_broadcast
from .parallel import SUM_BY_CALLABLE, check_agree, check_arrays


def in_order(
    pipe: "Chain | Residual", x: PyTree, state: MaybeState, scope: Scope
) -> Output:
    """Run stages left to right; with `broadcast` each gets the whole mapping."""
    function = type(pipe).__name__.lower()
    y, inputs = carried_entry(function, pipe.broadcast, x, scope)
    origin: Segment | None = None  # the stage that returned None, if `y` is None
    for segment, stage in keyed(pipe):
        before = y
        y, state = scope.enter(segment, stage, inputs(y), state=state, none_from=origin)
        if y is not None:
            origin = None
        elif before is not None:
            origin = segment
    return y, state


class Chain(Container):
    """Stages left to right; see `chain`."""

    fewest: ClassVar[int] = 0

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return in_order(self, x, state, scope)


def chain(*stages: StageLike, broadcast: Broadcast = (), **named: StageLike) -> Chain:
    """Apply stages left to right.

    `chain()` is the identity. The stages are given by position, or by name as
    keywords, not both. Positions and names are the paths in errors and `outputs`, and
    decide the random draws: stage `i` draws from `fold_in(key, i)`, a named stage from
    `fold_in(key, crc32(name))`.

    With `broadcast`, the chain and each of its stages take a mapping of several inputs.
    Every stage reads the entries that `broadcast` names (a mask, a time embedding). The
    output of each stage replaces the one other entry for the next stage.

    **Arguments:**

    - `stages`: any number of stages.
    - `broadcast`: the name, or names, of the entries that every stage reads, and none
        replaces. (Keyword only.)
    - `named`: the stages by name, instead of `stages`. (Keyword only.)

    **Returns:** a stage. It has a length, can be iterated, indexed by position or name,
    and sliced (the slice is a chain); `in` takes a name, and `keys()`, `values()` and
    `items()` work as for a dict.

    **Raises:**

    - `TypeError` if something is not a stage, positions and names are mixed, or
      `broadcast` is not a string or a sequence of strings.
    - `ValueError` if a name is invalid, or two names have the same CRC-32, so that
      both would draw the same numbers.
    - `StructureError` (a `ValueError`), when called, if an entry to broadcast is
      missing, or not exactly one other is left.

    **Laws:** `chain(f, chain(g, h))`, `chain(chain(f, g), h)` and `chain(f, g, h)`
    agree for deterministic stages; `chain(f)` is `f`. The same holds with `broadcast`;
    `chain(broadcast="mask")` returns the other entry.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.chain(wave=jnp.sin, total=jnp.sum)
        >>> round(pipe(jnp.arange(3.0)).item(), 3)
        1.751
        >>> len(pipe), pipe["wave"](jnp.zeros(())).item()
        (2, 0.0)
        >>> scale = ep.feed(jnp.multiply, "x", "by")
        >>> ep.chain(scale, scale, broadcast="by")({"x": 3.0, "by": 2.0}).item()
        12.0
    """
    broadcast = read_broadcast("chain", broadcast)
    if stages and named:
        wrong = f"mixes {len(stages)} positional stage{'s' * (len(stages) != 1)} with "
        wrong += f"named stages ({quoted(named)})."
        cure = "Give all stages by position, or all by name."
        raise type_error("chain", wrong, cure)
    names = read_names("chain", "named", named) if named else None
    labelled = named or {f"stages[{i}]": stage for i, stage in enumerate(stages)}
    read = tuple(as_stage("chain", n, s) for n, s in labelled.items())
    return Chain(read, names, broadcast)


class Residual(Container):
    """Stages with a skip connection; see `residual`."""

    fewest: ClassVar[int] = 1

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        y, state = in_order(self, x, state, scope)
        *_, (last, _) = keyed(self)
        last = join_path(scope.path, last)
        x, _ = carried_entry("residual", self.broadcast, x, scope)
        both = as_arrays(x), as_arrays(y)
        check_arrays("residual", last, both[1], "residual", SUM_BY_CALLABLE)
        cure = ', or give the input a projection by `parallel(..., merge="sum")`.'
        check_agree("residual", ("input", last), both, cure=cure)
        return jtu.tree_map(jnp.add, *both), state


def residual(
    *stages: StageLike | Mapping[str, StageLike], broadcast: Broadcast = ()
) -> Residual:
    r"""Add the output of some stages to their input: $x + f(x)$.

    The stages are applied left to right, as in a `chain`. For a pre-norm block write
    `residual(norm, attention)`, for a post-norm block
    `chain(residual(attention), norm)`. Stages draw as in a `chain`. For a projection of
    the input write `parallel(projection, chain(...), merge="sum")`.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `broadcast`: the name, or names, of the entries that every stage reads, if the
        stages take a mapping of several inputs, as in `chain`; the output is added to
        the other entry. (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`.

    **Shapes:** input and output have the same structure, shapes and dtypes; nothing is
    broadcast.

    **Raises:**

    - `ValueError` if there is no stage, or a name is invalid.
    - `TypeError` if something is not a stage; when called, if a leaf cannot be added
      (text, keys).
    - `StructureError` (a `ValueError`), when called, if input and output differ in
      structure, shape or dtype; the error names the leaf.

    **Laws:** `residual(f)` is `parallel(Identity(), f, merge="sum")` for deterministic
    stages; `residual(f, g)` is `residual(chain(f, g))`, also with the same `broadcast`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> ep.residual(jnp.square)(jnp.arange(3.0)).tolist()
        [0.0, 2.0, 6.0]
        >>> layer = eqx.nn.Linear(3, 3, key=jr.key(0))
        >>> ep.residual(eqx.nn.LayerNorm(3), layer)(jnp.ones(3)).shape
        (3,)

    ??? cite "Source"

        He et al., *Deep Residual Learning for Image Recognition*, 2015, arXiv
        1512.03385.
    """
    broadcast = read_broadcast("residual", broadcast)
    names, children = read_stages("residual", "stages", stages)
    return Residual(children, names, broadcast)
