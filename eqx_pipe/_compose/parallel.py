"""Several stages on the same input: `parallel`, `weighted`, and merges of outputs.

`gated`, which runs one of several, is in `cond.py`. A stage in another is called by
`Scope.enter` (`_stage/stage.py`), whatever the combinator.

A built-in merge acts leaf by leaf. Folds are accumulated pairwise (`a + b + c`):
stacking first would hold all outputs at once.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Float

from .._check import check_callable, check_choice, check_is
from .._errors import (
    bullets,
    describe_value,
    nearest,
    structure_error,
    type_error,
    value_error,
)
from .._stage import Scope, as_stage
from .._tree import (
    as_arrays,
    differences,
    is_key_array,
    is_sparse,
    join_path,
    leaf_text,
    leaves_with_names,
    tree_text,
)
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, check_reserved, keyed, read_stages


@dataclasses.dataclass(frozen=True)
class Fold:
    """A merge that folds two leaves into one."""

    pair: Callable[[Array, Array], Array]
    over: Callable[..., Array]

    def prepare(self, leaf: Array) -> Array:
        """Return `leaf` in the dtype of the result: that of `over` (`jnp.sum`, ...)."""
        # `eval_shape` finds the dtype by JAX's rules, where the sum of int8 is int32.
        one = jax.ShapeDtypeStruct((1,), leaf.dtype)
        return leaf.astype(jax.eval_shape(self.over, one).dtype)

    def total(self, leaves: Sequence[Array], count: Any) -> Array:
        """Return the result of leaves, `count` of which a mean divides by."""
        prepared = list(map(self.prepare, leaves))
        is_choice = self.over in (jnp.max, jnp.min)  # which rounds nothing
        wide = prepared if is_choice else map(widened, prepared)
        total = ft.reduce(self.pair, wide)
        if self.over is jnp.mean:
            total = total / jnp.asarray(count, total.dtype)
        return total.astype(prepared[0].dtype)


def widened(leaf: Array) -> Array:
    """Return a leaf in the dtype in which `jnp.sum` and `jnp.mean` accumulate it."""
    is_half = leaf.dtype in (jnp.float16, jnp.bfloat16)
    return leaf.astype(jnp.float32) if is_half else leaf


FOLDS = {
    "sum": Fold(jnp.add, jnp.sum),
    "mean": Fold(jnp.add, jnp.mean),
    "max": Fold(jnp.maximum, jnp.max),
    "min": Fold(jnp.minimum, jnp.min),
    "prod": Fold(jnp.multiply, jnp.prod),
}
"""The fold of each merge, by name."""


MergeName: TypeAlias = Literal[
    "concat", "stack", "sum", "mean", "max", "min", "prod", "tuple", "dict"
]
"""The names of the built-in merges."""


class Merge(eqx.Module):
    """The merge of a `Parallel` or `Gated`: a stage, or a built-in merge.

    `name` is the name of a built-in merge, or `None` if `stage` is given.
    """

    stage: AnyStage | None
    name: str | None = eqx.field(static=True)
    axis: int = eqx.field(static=True)

    def children(self) -> dict[str, AnyStage]:
        """Return the stage by its path segment, if there is one."""
        return {} if self.stage is None else {"merge": self.stage}

    def settings(self) -> dict[str, Any]:
        """Return the name of the merge, and the axis if it is not the last one."""
        if self.name is None:
            return {}
        along = self.name in ("concat", "stack") and self.axis != -1
        return {"merge": self.name} | ({"axis": self.axis} if along else {})


def merged(
    container: Any, outputs: list[PyTree], state: MaybeState, scope: Scope, count: Any
) -> Output:
    """Merge the outputs of the stages of a `Parallel` or `Gated` into one.

    `count` is the number of outputs for a mean.
    """
    merge, function = container.merge, type(container).__name__.lower()
    segments = [segment for segment, _ in keyed(container)]
    if merge.stage is not None:
        return scope.enter("merge", merge.stage, tuple(outputs), state=state)
    if merge.name == "tuple":
        return tuple(outputs), state
    if merge.name == "dict":
        return dict(zip(map(str, segments), outputs, strict=True)), state
    trees = [as_arrays(output) for output in outputs]
    paths = [join_path(scope.path, segment) for segment in segments]
    for path, tree in zip(paths, trees, strict=True):
        more = ', or use `merge="tuple"` or a callable.'
        keys = merge.name not in FOLDS
        check_arrays(function, path, tree, f'merge="{merge.name}"', more, keys)
        _check_axis(function, merge, path, tree)
    free_axis = merge.axis if merge.name == "concat" else None
    check_agree(function, paths, trees, free_axis, ', or use `merge="tuple"`.')

    def joined(*leaves: Array) -> Array:
        if merge.name == "concat":
            return jnp.concatenate(leaves, merge.axis)
        if merge.name == "stack":
            return jnp.stack(leaves, merge.axis)
        return FOLDS[str(merge.name)].total(leaves, count)

    return jtu.tree_map(joined, *trees), state


def read_merge(
    function: str,
    merge: MergeName | StageLike,
    axis: SupportsIndex,
    names: Names,
    reserved: Sequence[str] = (),
) -> Merge:
    """Return the merge; raise unless it fits the names.

    `reserved` lists names that no stage may have, besides the name of a callable merge.
    """
    cure = "Give one integer; a negative one counts from the end."
    check_is(function, "axis", axis, SupportsIndex, cure)
    stage = None
    if not isinstance(merge, str):
        cure = 'Give a name, such as `"sum"`, or a function of the tuple of outputs: '
        cure += "`lambda outputs: outputs[0] + outputs[1]`."
        check_callable(function, "merge", merge, cure)
        stage = as_stage(function, "merge", merge, cure)
        reserved = (*reserved, "merge")
    elif merge not in get_args(MergeName):
        wrong = f"`merge` is {describe_value(merge)}."
        cure = f"{nearest(merge, get_args(MergeName))} Or give a function of the tuple "
        cure += "of outputs."
        raise value_error(function, wrong, cure)
    elif merge == "dict" and names is None:
        wrong = '`merge="dict"` requires names, and the stages have none.'
        cure = 'Give them in a mapping from names to stages, or use `merge="tuple"`.'
        raise value_error(function, wrong, cure)
    check_reserved(function, names, reserved)
    return Merge(stage, merge if isinstance(merge, str) else None, axis.__index__())


def _check_axis(function: str, merge: Merge, path: str, tree: PyTree) -> None:
    """Raise unless every leaf has the axis of the merge."""
    if merge.name not in ("concat", "stack"):
        return
    for name, leaf in leaves_with_names(tree):
        num_axes = leaf.ndim + (merge.name == "stack")
        if not -num_axes <= merge.axis < num_axes:
            wrong = f"`axis` is {merge.axis}, and {_of_leaf(name)}the output of "
            wrong += f"`{path}` is {leaf_text(leaf)}."
            cure = f"Give `axis` from {-num_axes} to {num_axes - 1}."
            cure = cure if num_axes else 'Scalars are joined by `merge="stack"`.'
            raise value_error(function, wrong, cure)


SUM_BY_CALLABLE = (
    ", or write `parallel(..., merge=lambda outputs: outputs[0] + outputs[1])`."
)


def check_arrays(
    function: str, path: str, tree: PyTree, merge: str, more: str, keys: bool = False
) -> None:
    """Raise unless a merge supports every leaf: arrays, and PRNG keys if `keys`.

    `more` is a second fix, for the message.
    """
    if tree is None:
        wrong, cure = f"`{path}` returned None.", "Return the output of the stage."
        raise type_error(function, wrong, cure)
    # The leaves of a sparse matrix are values and indices: adding or joining them does
    # not add or join matrices.
    for name, leaf in leaves_with_names(tree, is_leaf=is_sparse):
        # Not `is_array`, which accepts NumPy text too.
        if not isinstance(leaf, jax.Array) or (is_key_array(leaf) and not keys):
            sparse = f"a sparse {type(leaf).__name__} " if is_sparse(leaf) else ""
            wrong = f"`{merge}` does not support {_of_leaf(name)}the output of "
            wrong += f"`{path}`, which is {sparse}{leaf_text(leaf)}."
            cure = "Apply the stages to the other entries only, by `eqx_pipe.at`" + more
            raise type_error(function, wrong, cure)


def _of_leaf(name: str) -> str:
    """Return the leaf for a message, before "the output of ..."; `""` for the root."""
    return f"`.{name}` of " if name else ""


def check_agree(
    function: str,
    paths: Sequence[str],
    trees: Sequence[PyTree],
    free_axis: int | None = None,
    cure: str = ".",
) -> None:
    """Raise a `StructureError` unless all agree in structure, shapes and dtypes.

    Sizes along `free_axis` may differ. `cure` is a second fix, for the message.
    """
    lines = [
        f"`{paths[0]}` and `{path}`: {line}"
        for path, tree in zip(paths[1:], trees[1:], strict=True)
        for line in differences(trees[0], tree, free_axis)
    ]
    if lines:
        wrong = f"the outputs to combine differ:{bullets(lines)}"
        raise structure_error(function, wrong, f"Append a stage to one of them{cure}")


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
            y, state = scope.enter(segment, stage, x, state=state)
            outputs.append(y)
        return merged(self, outputs, state, scope, len(outputs))


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


_NORMALIZE = {
    "none": lambda weights: weights,
    "sum": lambda weights: weights / jnp.sum(weights),
    "softmax": jax.nn.softmax,
}


Weights: TypeAlias = ArrayLike | Sequence[ArrayLike] | StageLike
"""One number per stage, `Float[Array, " stages"]`, or a stage that computes them."""


class Weighted(Container):
    """A weighted sum of stages; see `weighted`."""

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

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        weights: PyTree = self.weights
        if self.computed:
            weights, state = scope.enter("weights", weights, x, state=state)
        path = join_path(scope.path, "weights")
        weights = _read_weights(path, as_arrays(weights), len(self.stages))
        weights = _NORMALIZE[self.normalize](weights)
        paths, outputs = [], []
        for segment, stage in keyed(self):
            y, state = scope.enter(segment, stage, x, state=state)
            y = as_arrays(y)
            paths.append(join_path(scope.path, segment))
            check_arrays("weighted", paths[-1], y, "weighted", SUM_BY_CALLABLE)
            outputs.append(jtu.tree_map(FOLDS["mean"].prepare, y))  # also integers
        check_agree("weighted", paths, outputs)

        def total(*leaves: Array) -> Array:
            wide = list(map(widened, leaves))
            # Cast, or float64 weights would promote outputs in float32.
            terms = [weights[i].astype(v.dtype) * v for i, v in enumerate(wide)]
            return ft.reduce(jnp.add, terms).astype(leaves[0].dtype)

        return jtu.tree_map(total, *outputs), state


def _read_weights(path: str, weights: PyTree, size: int) -> Float[Array, " stages"]:
    """Return one float per stage; raise unless there is one real number per stage."""
    cure = f"Give one weight per stage: float32[{size}]. For weights per example wrap "
    cure += "the stage in `batched`."
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
    values = [1 / len(children)] * len(children) if weights is None else weights
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError):
        array = None
    if array is None or is_key_array(array):
        wrong = f"`weights` is {describe_value(values)}."
        cure = "Give one number per stage, or a stage that computes them."
        raise type_error("weighted", wrong, cure)
    read = _read_weights("weights", array, len(children))
    return Weighted(children, read, names, normalize)
