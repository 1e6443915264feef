"""A weighted sum of the outputs of several stages for the same input."""

import functools as ft
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Float

from .._check import check_choice
from .._errors import describe_value, structure_error, type_error
from .._stage import Canvas, Scope, Wire, as_stage, enter
from .._tree import as_arrays, is_key_array, join_path, leaf_text, tree_text
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, check_reserved, keyed, no_slices, read_stages
from .merge import FOLDS, SUM_BY_CALLABLE, check_agree, check_arrays, widened

_NORMALIZE = {
    "none": lambda weights: weights,
    "sum": lambda weights: weights / jnp.sum(weights),
    "softmax": jax.nn.softmax,
}

Weights: TypeAlias = ArrayLike | Sequence[ArrayLike] | StageLike
"""One number per stage, `Float[Array, " stages"]`, or a stage that computes them."""


class Weighted(Container):
    """A weighted sum of stages; see `weighted`."""

    per_stage: ClassVar[tuple[str, ...]] = ("stages", "weights")

    stages: tuple[AnyStage, ...]
    weights: Float[Array, " stages"] | AnyStage
    names: Names = eqx.field(static=True)
    normalize: str = eqx.field(static=True, default="none")

    @property
    def computed(self) -> bool:
        """Return whether the weights are computed from the input, by a stage."""
        return isinstance(self.weights, eqx.Module)

    def children(self) -> Mapping[str, AnyStage]:
        gate = {"weights": cast(AnyStage, self.weights)} if self.computed else {}
        return {**gate, **super().children()}

    def sliced(self, part: slice) -> "Weighted":
        if self.computed:
            raise no_slices("weighted", "a stage computes the weights of all stages")
        return super().sliced(part)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        weights: PyTree = self.weights
        if self.computed:
            weights, state = enter(scope, "weights", weights, x, state=state)
        path = join_path(scope.path, "weights")
        weights = _read_weights(path, as_arrays(weights), len(self.stages))
        weights = _NORMALIZE[self.normalize](weights)
        total, first = None, None
        for i, (segment, stage) in enumerate(keyed(self)):
            y, state = enter(scope, segment, stage, x, state=state)
            path = join_path(scope.path, segment)
            y = as_arrays(y)
            check_arrays("weighted", path, y, "weighted", SUM_BY_CALLABLE)
            y = jtu.tree_map(FOLDS["mean"].prepare, y)  # integers become floats
            first = (path, y) if first is None else first
            check_agree("weighted", (first[0], path), (first[1], y))
            term = jtu.tree_map(ft.partial(_weigh, weights[i]), y)
            total = term if total is None else jtu.tree_map(jnp.add, total, term)
        assert first is not None
        like = first[1]
        return jtu.tree_map(lambda x, y: x.astype(y.dtype), total, like), state

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        ends = [canvas.stage(path, str(s), stage, wire) for s, stage in keyed(self)]
        if self.computed:
            weights = canvas.stage(path, "weights", self.weights, wire)
            ends.append(weights.labelled("weights"))
        return canvas.join("weighted", ends)


def _weigh(weight: Float[Array, ""], leaf: Array) -> Array:
    leaf = widened(leaf)
    # Cast, or float64 weights would promote outputs in float32.
    return weight.astype(leaf.dtype) * leaf


def _read_weights(path: str, weights: PyTree, size: int) -> Float[Array, " stages"]:
    """Return one float per stage; raise unless there is one real number per stage."""
    cure = (
        f"Give one weight per stage: float32[{size}]. For weights per example wrap the "
        "stage in `batched`."
    )
    if not isinstance(weights, jax.Array) or weights.shape != (size,):
        wrong = f"`{path}` is {tree_text(weights)} for {size} stages."
        raise structure_error("weighted", wrong, cure)
    if jnp.issubdtype(weights.dtype, jnp.floating):
        return weights
    if not jnp.issubdtype(weights.dtype, jnp.integer) and weights.dtype != jnp.bool_:
        wrong = f"`{path}` is {leaf_text(weights)}."
        raise type_error("weighted", wrong, f"Give real numbers. {cure}")
    return weights.astype(float)


def weighted(
    *stages: StageLike | Mapping[str, StageLike],
    weights: Weights | None = None,
    normalize: Literal["none", "sum", "softmax"] = "none",
) -> Weighted:
    """Sum the weighted outputs of several stages for the same input.

    The output is the sum of `w[i] * stages[i](x)`, leaf by leaf, accumulated and never
    stacked. Leaves keep their dtype; half precision is accumulated in float32, and
    integer and bool leaves become float, as by `jnp.mean`.

    **Arguments:**

    - `stages`: one or more stages whose outputs agree in structure, shape and dtype, or
        one mapping from names to stages. The weights come in the same order.
    - `weights`: one number per stage, stored as an array leaf, so it gets gradients; by
        default `1 / n` each. Or a stage `x -> Float[Array, " stages"]` (a gate) that
        computes them from the input; its path is `weights`. (Keyword only.)
    - `normalize`: `"none"`; `"sum"`, which divides the weights by their sum; or
        `"softmax"`. (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`.

    **Shapes:** `weights` is `(stages,)`; an output leaf has the shape of the stages'
    output leaves.

    **Raises:**

    - `ValueError` if there is no stage, a name is invalid, `weights` does not have one
      entry per stage, or `normalize` is unknown.
    - `TypeError` if something is not a stage; when called, if a leaf is a key or not an
      array.
    - `StructureError` (a `ValueError`), when called, if outputs differ in structure,
      shape or dtype, or the gate does not return one weight per stage.

    **Laws:** with one-hot weights the output is that of the selected stage; without
    `normalize` it is linear in `weights`; it does not depend on the common order of
    stages and weights.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> mix = ep.weighted(jnp.sin, jnp.cos, weights=[0.25, 0.75])
        >>> mix(jnp.array(0.0)).item(), mix.weights.tolist()
        (0.75, [0.25, 0.75])
        >>> gate = lambda x: jnp.array([1.0, 1.0])
        >>> ep.weighted(jnp.sin, jnp.cos, weights=gate, normalize="sum")(0.0).item()
        0.5
    """
    names, children = read_stages("weighted", "stages", stages)
    check_choice("weighted", "normalize", normalize, _NORMALIZE)
    if callable(weights):
        gate = as_stage("weighted", "weights", weights)
        check_reserved("weighted", names, ("weights",))
        return Weighted(children, gate, names, normalize)
    given = [1 / len(children)] * len(children) if weights is None else weights
    try:
        array = jnp.asarray(given)
    except (TypeError, ValueError):
        array = None
    if array is None or is_key_array(array):
        raise type_error(
            "weighted",
            f"`weights` is {describe_value(given)}.",
            "Give one number per stage, or a stage that computes them.",
        )
    read = _read_weights("weights", array, len(children))
    return Weighted(children, read, names, normalize)
