"""Several stages on the same input."""

from collections.abc import Mapping
from typing import Any, SupportsIndex

import equinox as eqx

from .._stage import Canvas, Scope, Wire, enter
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, keyed, read_stages
from .merge import Merge, MergeName, merged, read_merge


class Parallel(Container):
    """Stages side by side; see `parallel`."""

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    merge: Merge

    def children(self) -> Mapping[str, AnyStage]:
        return {**super().children(), **self.merge.children()}

    def settings(self) -> dict[str, Any]:
        return self.merge.settings()

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        outputs = []
        for segment, stage in keyed(self):
            y, state = enter(scope, segment, stage, x, state=state)
            outputs.append(y)
        segments = (segment for segment, _ in keyed(self))
        return merged(self.merge, "parallel", segments, outputs, state, scope)

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        ends = [canvas.stage(path, str(s), stage, wire) for s, stage in keyed(self)]
        return self.merge.picture(canvas, path, ends)


def parallel(
    *stages: StageLike | Mapping[str, StageLike],
    merge: MergeName | StageLike = "concat",
    axis: SupportsIndex = -1,
) -> Parallel:
    """Apply all stages to the same input and merge their outputs.

    A built-in merge acts leaf by leaf:

    - `"concat"` joins along `axis`, `"stack"` along a new `axis`;
    - `"sum"`, `"mean"`, `"max"`, `"min"`, `"prod"` are accumulated one by one
      (`a + b + c`, never stacked), with the dtype and precision of `jnp.sum`, ...;
    - `"tuple"` returns the tuple of outputs, `"dict"` a dict by the stages' names.

    Stages are given by position, or in one mapping from names to stages; the names are
    then their paths. Every merge takes either, except `"dict"`, which needs names. A
    state passes through the stages in the order written, so no update is lost.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `merge`: the name of a built-in merge, or a callable on the tuple of outputs: a
        function or a module, which may have parameters. Its path is `merge`. (Keyword
        only.)
    - `axis`: the axis of `"concat"` and `"stack"`; a negative one counts from the end.
        (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`.

    **Raises:**

    - `ValueError` if there is no stage, `merge` is unknown, a name is invalid, or
      `merge="dict"` has no names; when called, if `axis` is out of range.
    - `TypeError` if something is not a stage, or a mapping and positional stages are
      mixed; when called, if the merge does not support a leaf (text, keys).
    - `StructureError` (a `ValueError`), when called, if outputs differ in structure,
      shape or dtype; the error names both stages and the leaf.

    **Laws:** entry `i` of `merge="tuple"` is the output of stage `i`; `"sum"`,
    `"prod"`, `"max"`, `"min"` and `"mean"` do not depend on the order of the stages.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.parallel(jnp.sin, jnp.cos, merge="stack")(jnp.zeros(2)).tolist()
        [[0.0, 1.0], [0.0, 1.0]]
        >>> pipe = ep.parallel({"low": jnp.min, "high": jnp.max}, merge="dict")
        >>> {k: v.item() for k, v in pipe(jnp.arange(3)).items()}, len(pipe)
        ({'low': 0, 'high': 2}, 2)
    """
    names, children = read_stages("parallel", "stages", stages)
    return Parallel(children, names, read_merge("parallel", merge, axis, names))
