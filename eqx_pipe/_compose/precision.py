"""A stage that computes in another floating-point dtype than that of its parameters."""

import functools as ft
from collections.abc import Mapping, Sequence
from typing import cast

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike

from .._errors import describe_value, type_error
from .._stage import (
    Composite,
    Scope,
    Stage,
    as_stage,
    call_layer,
    check_matched,
    check_patterns,
    chooser,
    chosen_whole,
    each_path,
    enter,
    is_composite,
    parts_of,
    paths_below,
)
from .._stage import is_stateful as has_state
from .._tree import path_name
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike


class Precision(Composite):
    """A stage that computes in another dtype; see `precision`."""

    stage: AnyStage
    compute: str = eqx.field(static=True)
    output: str | None = eqx.field(static=True, default="float32")
    keep: tuple[str, ...] = eqx.field(static=True, default=())

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        stage = _Caster(self.keep, self.compute).of(self.stage)
        x = _cast(x, self.compute)
        y, state = enter(scope, "stage", stage, x, state=state)
        return (y if self.output is None else _cast(y, self.output)), state


class _Kept(Stage):
    """A stage with parameters of its own dtype, among others that were cast."""

    stage: AnyStage
    compute: str = eqx.field(static=True)

    def is_stateful(self) -> bool:
        return has_state(self.stage)

    def __call__(
        self, *args: PyTree, key: Key | None = None, **named: PyTree
    ) -> PyTree:
        dtypes = [x.dtype for x in jtu.tree_leaves(self.stage) if _is_floating(x)]
        begin = ft.partial(_cast, dtype=dtypes[0] if dtypes else "float32")
        end = ft.partial(_cast, dtype=self.compute)
        return call_layer(self.stage, args, named, key, begin, end)


class _Caster:
    """Casts parameters, except those of stages that are kept."""

    def __init__(self, keep: Sequence[str], dtype: str):
        self.dtype, self.is_kept = dtype, chooser(keep)
        self.met: list[str] = []

    def of(self, stage: AnyStage) -> AnyStage:
        return self._of(stage, np.array("", object), True)

    def _of(self, node: PyTree, paths: np.ndarray, root: bool = False) -> PyTree:
        if isinstance(node, eqx.nn.StateIndex):
            return node
        if not isinstance(node, eqx.Module):
            return _cast(node, self.dtype)
        node = cast(AnyStage, node)
        self.met.extend([] if root else paths.flat)
        kept = not root and chosen_whole("precision", paths, self.is_kept)
        if kept or _holds_state(node):  # the state keeps its dtype from call to call
            return _Kept(node, self.dtype)
        if is_composite(node):
            parts, structure = parts_of(node)
            return structure.unflatten(
                self._of(part.value, paths_below(paths, node, part)) for part in parts
            )
        flat, structure = jtu.tree_flatten_with_path(
            node, is_leaf=lambda x: x is not node and isinstance(x, eqx.Module)
        )
        return structure.unflatten(
            self._of(value, each_path(paths, path_name(path))) for path, value in flat
        )


def _holds_state(node: eqx.Module) -> bool:
    """Return whether a layer itself has a state, rather than a module inside it."""
    return any(isinstance(x, eqx.nn.StateIndex) for x in vars(node).values())


def _is_floating(x: PyTree) -> bool:
    array = eqx.is_array(x) or isinstance(x, np.ndarray)
    return array and jnp.issubdtype(x.dtype, jnp.floating)


def _cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    return jtu.tree_map(lambda x: x.astype(dtype) if _is_floating(x) else x, tree)


def precision(
    stage: StageLike,
    compute: DTypeLike = "bfloat16",
    *,
    output: DTypeLike | None = "float32",
    keep: str | Sequence[str] = (),
) -> Precision:
    """Compute in another floating-point dtype than that of the parameters.

    When called, the parameters and the input are cast to `compute`, and the output to
    `output`. The stored parameters and their gradients keep their dtype, so an
    optimiser still sees float32. Integers, bools, complex numbers, keys and Python
    numbers pass through unchanged. The loss is not scaled; bfloat16 does not need that.

    Stages that match `keep` compute in the dtype of their own parameters (in float32 if
    they have none): their input is cast to it, and their output to `compute`. Layers
    with a state, such as `equinox.nn.BatchNorm`, are always kept.

    **Arguments:**

    - `stage`: a pipeline or layer. Its path is `stage`.
    - `compute`: the dtype in which the stage computes.
    - `output`: the dtype of the output; `None` leaves it unchanged. (Keyword only.)
    - `keep`: patterns of paths inside `stage`, as in `trainable`, of stages and layers
      to leave in their own dtype: `"**.norm"`. (Keyword only.)

    **Returns:** a stage.

    **Raises:**

    - `TypeError` if `stage` is not a stage, or `compute` or `output` is not a
      floating-point dtype.
    - `ValueError` if a pattern matches no stage, or some but not all stages of a
      `repeat` or `ensemble`.

    **Laws:** it equals the stage with its parameters cast by hand, between two casts;
    if all dtypes are equal it is the stage itself.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> pipe = ep.chain(
        ...     norm=eqx.nn.LayerNorm(3), dense=eqx.nn.Linear(3, 3, key=jr.key(0))
        ... )
        >>> fast = ep.precision(pipe, "bfloat16", keep="norm")
        >>> fast(jnp.ones(3)).dtype, fast.stage["dense"].weight.dtype
        (dtype('float32'), dtype('float32'))
        >>> {p: y.dtype.name for p, y in ep.outputs(fast)(jnp.ones(3))[1].items()}
        {'stage.norm': 'bfloat16', 'stage.dense': 'bfloat16', 'stage': 'bfloat16'}
    """
    read = as_stage("precision", "stage", stage)
    patterns = (keep,) if isinstance(keep, str) else tuple(keep)
    check_patterns("precision", "keep", patterns)
    inside = _dtype_name("compute", compute)
    outside = None if output is None else _dtype_name("output", output)
    walk = _Caster(patterns, inside)
    walk.of(read)
    check_matched("precision", patterns, walk.met)
    return Precision(read, inside, outside, patterns)


def _dtype_name(argument: str, value: DTypeLike) -> str:
    try:
        dtype = jnp.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise type_error(
            "precision",
            f"`{argument}` is {describe_value(value)}, not a floating-point dtype.",
            'Give one, such as `"bfloat16"` or `jax.numpy.float16`.',
        )
    return dtype.name
