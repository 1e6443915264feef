"""Stages one after the other."""

import equinox as eqx

from .._errors import quoted, type_error
from .._stage import Canvas, Scope, Wire, as_stage
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, keyed, read_names
from .feed import Broadcast, in_order, read_broadcast


class Chain(Container):
    """Stages left to right; see `chain`."""

    fewest = 0

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return in_order("chain", keyed(self), self.broadcast, x, state, scope)

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        ends = [wire]
        for segment, stage in keyed(self):
            ends = [canvas.stage(path, str(segment), stage, *ends)]
            if self.broadcast:  # each also gets the input of the chain
                ends.append(wire)
        return ends[0]


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
        raise type_error(
            "chain",
            f"mixes {len(stages)} positional stage{'s' * (len(stages) != 1)} with "
            f"named stages ({quoted(named)}).",
            "Give all stages by position, or all by name.",
        )
    names = read_names("chain", "named", named) if named else None
    given = named or {f"stages[{i}]": stage for i, stage in enumerate(stages)}
    read = tuple(as_stage("chain", n, s) for n, s in given.items())
    return Chain(read, names, broadcast)
