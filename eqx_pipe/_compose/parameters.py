"""Parameters of stages: constant, tied to others, masked, or cast to another dtype."""

import functools as ft
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from .._captured import has_function
from .._check import check_callable
from .._errors import describe_value, structure_error, type_error, value_error
from .._same import Fixed
from .._stage import (
    Composite,
    NamedLeaf,
    Scope,
    Stage,
    as_stage,
    call,
    call_layer,
    check_matched,
    check_patterns,
    chooser,
    chosen_whole,
    each_path,
    is_composite,
    is_state_index,
    is_stateful,
    named_leaves,
    parts_of,
    paths_below,
)
from .._tree import differences, path_name
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike


class Frozen(Stage):
    """A stage without parameters; see `frozen`."""

    # The stage with its arrays and functions wrapped in leaves that are not arrays. The
    # rest stays visible to `make_with_state` and `inference_mode`.
    fixed: PyTree

    @property
    def stage(self) -> AnyStage:
        """The stage that was frozen, with its parameters."""
        return jtu.tree_map(
            lambda leaf: leaf.value if isinstance(leaf, Fixed) else leaf, self.fixed
        )

    def is_stateful(self) -> bool:
        """Return whether the frozen stage takes and returns an `equinox.nn.State`."""
        return is_stateful(self.stage)

    @property
    def __signature__(self) -> inspect.Signature:  # how many inputs it takes
        return inspect.signature(self.stage)

    def __call__(
        self, *args: PyTree, key: Key | None = None, **named: PyTree
    ) -> PyTree:
        return call_layer(self.stage, args, named, key)


def _is_whole(node: object) -> bool:
    # State indices stay visible to `make_with_state`; a wrapped function is hidden with
    # everything that it holds.
    return is_state_index(node) or has_function(node)


def _fix(leaf: PyTree) -> PyTree:
    if not callable(leaf) and not eqx.is_inexact_array(leaf):
        return leaf
    if any(isinstance(x, Tracer) for x in jtu.tree_leaves(leaf)):
        # A stage frozen inside a gradient with respect to it is a constant there too.
        arrays, rest = eqx.partition(leaf, eqx.is_inexact_array)
        leaf = eqx.combine(jax.lax.stop_gradient(arrays), rest)
    return Fixed(leaf)


def frozen(stage: StageLike) -> Frozen:
    """Make the parameters of a stage constant.

    The parameters are no longer array leaves of the pytree, so gradients with respect
    to the pipeline, optimisers (weight decay too) and saved files do not include them;
    gradients with respect to the input pass through. Use it for a function that closes
    over a model that should not be trained: other combinators reject such a function.

    Like everything that a function closes over, the arrays become constants of a
    compiled program. State and settings, such as those that `equinox.nn.inference_mode`
    changes, are not frozen.

    **Arguments:**

    - `stage`: a layer, a pipeline, or a function that closes over one.

    **Returns:** a stage with the same output for the same key. Its `.stage` is the
    original stage, with its parameters.

    **Raises:** `TypeError` if `stage` is not a stage.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax, jax.random as jr
        >>> teacher, head = (eqx.nn.Linear(3, 3, key=jr.key(i)) for i in range(2))
        >>> pipe = ep.chain(ep.frozen(teacher), head)
        >>> ep.summary(pipe).parameters
        12
        >>> twice = ep.frozen(lambda x: 2 * teacher(x))
        >>> ep.summary(ep.chain(twice)).parameters
        0
    """
    check_callable("frozen", "stage", stage)
    return Frozen(jtu.tree_map(_fix, stage, is_leaf=_is_whole))


class Elsewhere(eqx.Module):
    """The placeholder of a tied part; `tree_at` needs its leaf."""

    leaf: str = "tied"


class Tied(Composite):
    """A pipeline with shared parts; see `tied`."""

    kept: AnyStage  # with an `Elsewhere` in place of each dropped part
    where: Fixed = eqx.field(static=True)
    get: Fixed = eqx.field(static=True)

    @property
    def pipe(self) -> AnyStage:
        """The pipeline with every tied part in place."""
        return eqx.tree_at(self.where.value, self.kept, self.get.value(self.kept))

    def children(self) -> Mapping[str, AnyStage]:
        return self.pipe.children() if is_composite(self.kept) else {}

    def held(self) -> Mapping[str, AnyStage]:
        return self.kept.children() if is_composite(self.kept) else {}

    def settings(self) -> dict[str, Any]:
        return {}

    def with_child(self, segment: str, stage: StageLike) -> "Tied":
        wrong = f"`{segment}` cannot be replaced here: parts of the pipeline are tied."
        cure = "Edit the pipeline, `.pipe`, and tie its parts again."
        raise value_error("tied", wrong, cure)

    def is_stateful(self) -> bool:
        return is_stateful(self.kept)  # also for a pytree of masks

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return call(self.pipe, (x,), state, scope)


def tied(
    pipe: StageLike, where: Callable[[PyTree], PyTree], get: Callable[[PyTree], PyTree]
) -> Tied:
    """Tie parts of a pipeline to other parts, so that they share one copy.

    A pipeline is a pytree: a layer that appears in two places is two layers, equal at
    first, which training changes separately. A tied part is stored once, in the place
    that `get` returns. Its gradient is the sum over all places; saved files, parameter
    counts and optimisers include it once.

    **Arguments:**

    - `pipe`: the pipeline.
    - `where`: a function from the pipeline to the part, or a tuple of parts, to drop,
        as for `equinox.tree_at`: a parameter, or a whole stage.
    - `get`: a function from the pipeline to the replacement, computed at each call:
        another part, or a function of it (`jnp.transpose(...)`).

    **Returns:** a stage with the paths and draws of `pipe`. Its `.pipe` is the pipeline
    with all parts in place, for `replace`. Functions `where` and `get` of the same code
    are equal, so two builds have one structure: they can be averaged or stacked.

    **Raises:**

    - `TypeError` if `pipe` is not a stage, or `where` or `get` is not a function.
    - `StructureError` (a `ValueError`) if a part and its replacement differ in
      structure, shape or dtype, or `get` returns a part that `where` drops.

    **Laws:** it equals `pipe` with equal parts, and the parts stay equal in training.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> a, b = jr.split(jr.key(0))
        >>> pipe = ep.tied(
        ...     ep.chain(embed=eqx.nn.Embedding(9, 4, key=a),
        ...              head=eqx.nn.Linear(4, 9, use_bias=False, key=b)),
        ...     where=lambda pipe: pipe["head"].weight,
        ...     get=lambda pipe: pipe["embed"].weight)
        >>> pipe(jnp.array(3)).shape, ep.summary(pipe).parameters
        ((9,), 36)

    ??? cite "Source"

        Press and Wolf, *Using the Output Embedding to Improve Language Models*, 2017,
        arXiv 1608.05859. For plain modules there is `equinox.nn.Shared`.
    """
    stage = as_stage("tied", "pipe", pipe)
    cure = 'Give a function of the pipeline: `lambda pipe: pipe["head"].weight`.'
    check_callable("tied", "where", where, cure)
    check_callable("tied", "get", get, cure)
    dropped, _ = where(stage), get(stage)
    kept = eqx.tree_at(where, stage, replace_fn=lambda _: Elsewhere())
    try:
        source = get(kept)
    except Exception:  # it succeeds with the whole pipeline
        source = Elsewhere()
    lines = differences(dropped, source)
    if lines:
        wrong = f"the parts that `where` and `get` return differ: {'; '.join(lines)}."
        cure = "Tie parts of the same structure, shapes and dtypes; `get` may "
        cure += "transform them, as by `jnp.transpose`, but not return a part that "
        cure += "`where` drops."
        raise structure_error("tied", wrong, cure)
    return Tied(kept, Fixed(where), Fixed(get))


_MASKED = (
    " To train some of them, mask the gradients by position, or do not stack them "
    "(`chain(*blocks)` runs as a `repeat` does)."
)


def trainable(pipe: PyTree, *patterns: str) -> PyTree[bool]:
    """Return a mask of the leaves of a pipeline to train.

    The result is a filter spec: `equinox.partition(pipe, spec)` splits trained from
    frozen leaves, and `optax.masked(optimiser, spec)` updates the trained ones only.
    For `optax.multi_transform`, make labels, `labels = jax.tree.map(lambda train:
    "fast" if train else "slow", spec)`, and pass the function `lambda params: labels`:
    Optax calls labels that are callable, as a pipeline is. To freeze by path, exclude:
    `trainable(pipe, "!encoder")`.

    **Arguments:**

    - `pipe`: a pipeline, or any module.
    - `patterns`: patterns of the paths of stages, as in `outputs`, and of the arrays
        inside them (`head.weight`). A match includes everything below it. Each part of
        a path is matched like a file name in a shell: `"head*"`, `"blocks.*.attn"`,
        `"blocks.[01]"`; `**` matches any number of parts (`"**.bias"`), and `!`
        excludes. The last pattern that matches decides. Without patterns all parameters
        are trained.

    **Returns:** a pytree of bools with the structure of `pipe`. Only parameters can be
    True: floating-point or complex arrays that are not state.

    **Raises:**

    - `TypeError` if a pattern is not a string.
    - `ValueError` if a pattern matches no parameter (the error names the nearest
        paths), or some but not all stages of a `repeat` or `ensemble`, whose parameters
        are stacked in one array.

    **Laws:** `trainable(pipe, p)` and `trainable(pipe, "!" + p)` are complementary:
    exactly one of them is True for each parameter.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> body, head = (eqx.nn.Linear(3, 3, key=jr.key(i)) for i in range(2))
        >>> pipe = ep.chain(body=body, act=jnp.tanh, head=head)
        >>> trained, frozen = eqx.partition(pipe, ep.trainable(pipe, "head*"))
        >>> loss = lambda trained, x: jnp.sum(eqx.combine(trained, frozen)(x))
        >>> grads = eqx.filter_grad(loss)(trained, jnp.ones(3))
        >>> grads["body"].weight, grads["head"].weight.shape
        (None, (3, 3))
    """
    check_patterns("trainable", "patterns", patterns)
    leaves = named_leaves(pipe)
    parameters = list(filter(_is_parameter, leaves))
    paths = [path for leaf in parameters for path in leaf.paths.flat]
    check_matched("trainable", patterns, paths, "parameter", below=True)
    chosen = chooser(patterns or ("**",), below=True)
    is_chosen = ft.partial(chosen_whole, "trainable", chosen=chosen, cure=_MASKED)
    flags = [_is_parameter(leaf) and is_chosen(leaf.paths) for leaf in leaves]
    return jtu.tree_structure(pipe).unflatten(flags)


def _is_parameter(leaf: NamedLeaf) -> bool:
    return eqx.is_inexact_array(leaf.value) and not leaf.is_state


class Precision(Composite):
    """A stage that computes in another dtype; see `precision`."""

    stage: AnyStage
    compute: str = eqx.field(static=True)
    output: str | None = eqx.field(static=True, default="float32")
    keep: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        stage = _Caster(self.keep, self.compute).of(self.stage)
        x = _cast(x, self.compute)
        y, state = scope.enter("stage", stage, x, state=state)
        return (y if self.output is None else _cast(y, self.output)), state


class _Kept(Stage):
    """A stage with parameters of its own dtype, among others that were cast."""

    stage: AnyStage
    compute: str = eqx.field(static=True)

    def is_stateful(self) -> bool:
        return is_stateful(self.stage)

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
        if is_state_index(node):
            return node
        if not isinstance(node, eqx.Module):
            return _cast(node, self.dtype)
        node = cast(AnyStage, node)
        self.met.extend([] if root else paths.flat)
        kept = not root and chosen_whole("precision", paths, self.is_kept)
        # A layer that itself has a state keeps the state's dtype from call to call.
        if kept or any(map(is_state_index, vars(node).values())):
            return _Kept(node, self.dtype)
        if is_composite(node):
            parts, structure = parts_of(node)
            below = (self._of(p.value, paths_below(paths, node, p)) for p in parts)
            return structure.unflatten(below)
        flat, structure = jtu.tree_flatten_with_path(
            node, is_leaf=lambda x: x is not node and isinstance(x, eqx.Module)
        )
        below = (self._of(x, each_path(paths, path_name(path))) for path, x in flat)
        return structure.unflatten(below)


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
        wrong = f"`{argument}` is {describe_value(value)}, not a floating-point dtype."
        cure = 'Give one, such as `"bfloat16"` or `jax.numpy.float16`.'
        raise type_error("precision", wrong, cure)
    return dtype.name
