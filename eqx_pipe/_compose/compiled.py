"""A pipeline compiled ahead of time, for loops that call it often."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._cache import WeakCache
from .._check import check_callable, check_key
from .._errors import bullets, structure_error, value_error
from .._stage import Composite, Scope, as_stage, call, check_state, is_stateful
from .._tree import differences, tree_text
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike

# A module's own way to look up an attribute takes a microsecond longer.
_fields_of = object.__getattribute__


class Program:
    """What `compiled` made: a jitted function, and the pipeline that stands in it.

    It is compared by identity, so it can be a static field. A pickled one is empty: a
    program lives in its process.
    """

    pipe: PyTree = None
    run: Callable[..., PyTree] | None = None

    def __init__(self, pipe: PyTree, x: PyTree, state: MaybeState, key: Key | None):
        self.pipe = pipe
        self.stateful: bool = is_stateful(pipe)
        self.structs: tuple[PyTree, PyTree] = _struct(x), _struct(state)
        # What is no argument of the program, such as text.
        self.fixed: PyTree = eqx.filter(x, _is_dynamic, inverse=True)
        self.has_fixed: bool = bool(jtu.tree_leaves(self.fixed))
        # Asked for when there is a backend, which an import would start.
        self.array_type: type = type(jnp.zeros(()))
        self.run = self._compiled(self.arguments(x, state, key))

    def _compiled(self, arguments: tuple[PyTree, ...]) -> Callable[..., PyTree]:
        """The function to run: a `jax.jit` with its first entry compiled.

        Not the ahead-of-time `jax.stages.Compiled`, which takes longer to call. Other
        shapes, which would compile again, are turned away while they are traced.
        """
        constants = []

        def compiled(moving, state=None, key=None):
            given = eqx.combine(moving, self.fixed)
            # Only `jit` comes here, to trace another shape: calls that fit pay nothing.
            self.check_fits(given, state, Scope(None))
            y, state = call(self.pipe, (given,), state, Scope(key))
            out = (y, state) if self.stateful else y
            arrays, constant = eqx.partition(out, eqx.is_array)
            constants.append(constant)
            return arrays

        jitted = jax.jit(compiled)
        jitted.lower(*arguments).compile()
        if jtu.tree_leaves(constants[0]):
            return lambda *args: eqx.combine(jitted(*args), constants[0])
        return jitted

    def arguments(
        self, x: PyTree, state: MaybeState, key: Key | None
    ) -> tuple[PyTree, ...]:
        """Those of `run`; called in one way only where `x` is all there is."""
        state = state if self.stateful else None
        x = eqx.filter(x, _is_dynamic) if self.has_fixed else x
        return (x,) if state is None and key is None else (x, state, key)

    def check_fits(self, x: PyTree, state: MaybeState, scope: Scope) -> None:
        """Raises a `StructureError` unless input and state are as in the example."""
        x_struct, state_struct = self.structs
        lines = differences(x_struct, _struct(x))
        if lines:
            raise structure_error(
                "compiled",
                f"the stage{scope.where} was compiled for {tree_text(x_struct)}; the "
                f"input differs, first what was compiled:{bullets(lines)}",
                "Make another with `compiled` for this input, or call the pipeline "
                "itself.",
            )
        both = state is not None and state_struct is not None
        if both and differences(state_struct, _struct(state)):
            raise structure_error(
                "compiled",
                f"the stage{scope.where} was compiled for another state than it is "
                "given.",
                "Give the state made with this pipeline by "
                "`equinox.nn.make_with_state`, or make another with `compiled`.",
            )

    def holds(self, pipe: PyTree) -> bool:
        """Whether these are the parameters that were compiled in, unchanged.

        A transformation rebuilds a pipeline round the same arrays.
        """
        if pipe is self.pipe or _REBUILT.get(pipe) is self:
            return True
        leaves, structure = jtu.tree_flatten(pipe)
        ours, our_structure = jtu.tree_flatten(self.pipe)
        same = (
            len(leaves) == len(ours)
            and all(a is b for a, b in zip(leaves, ours, strict=True))
            and structure == our_structure
        )
        if same:
            _REBUILT.put(pipe, self)
        return same

    # By `__reduce__` a copy would be empty, and its calls slow.
    def __deepcopy__(self, memo: object) -> "Program":
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type]]:
        return object.__new__, (Program,)


# Pipelines that a transformation rebuilt round the arrays of a program.
_REBUILT: WeakCache[Program] = WeakCache()


class Compiled(Composite):
    """A pipeline with its compiled program; see `compiled`."""

    pipe: AnyStage
    program: Program = eqx.field(static=True, repr=False)

    def children(self) -> Mapping[str, AnyStage]:
        """Those of the pipeline, for which this stage stands."""
        return self.pipe.children() if isinstance(self.pipe, Composite) else {}

    def is_stateful(self) -> bool:
        return is_stateful(self.pipe)

    def __call__(
        self, x: PyTree, state: MaybeState = None, *, key: Key | None = None
    ) -> PyTree:
        failure = None
        if state is None and key is None:
            fields = _fields_of(self, "__dict__")
            program = fields["program"]
            # `jax.jit` would take a tracer too, but that is for the plain pipeline.
            pipe = fields["pipe"]
            ours = pipe is program.pipe or _REBUILT.get(pipe) is program
            if ours and type(x) is program.array_type:
                try:
                    # Nothing is compared beforehand, which would take longer than the
                    # call: a misfit is found by `_general`, once the program has
                    # refused it.
                    return program.run(x)
                except Exception as error:
                    failure = error
        y, new_state = self._general(x, state, Scope(key), failure)
        return y if state is None else (y, new_state)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        # The program keeps no values on the way.
        if scope.record is not None:
            return call(self.pipe, (x,), state, scope)
        return self._general(x, state, scope, None)

    def _general(
        self, x: PyTree, state: MaybeState, scope: Scope, failure: Exception | None
    ) -> Output:
        """A call with anything. `failure` is that of the program, if it ran already."""
        check_key("compiled", scope.key)
        if state is not None:
            check_state("compiled", self, state)
        program = self.program
        traced = any(map(_is_tracer, jtu.tree_leaves((x, state, scope.key))))
        if traced or program.run is None or not program.holds(self.pipe):
            check_state("compiled", self, state)
            return call(self.pipe, (x,), state, scope)
        if program.has_fixed:  # the program does not see these
            program.check_fits(x, state, scope)
        if failure is None:
            try:
                y = program.run(*program.arguments(x, state, scope.key))
                return y if program.stateful else (y, state)
            except Exception as error:
                # Raised below, unless the arguments are what is wrong, which says more.
                failure = error
        check_state("compiled", self, state)
        program.check_fits(x, state, scope)
        raise failure


def _is_tracer(leaf: object) -> bool:
    return isinstance(leaf, Tracer)


def _is_dynamic(leaf: PyTree) -> bool:
    """Whether a leaf of the input may change between calls: arrays and numbers."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    # What JAX has no dtype for: objects, texts and dates.
    text = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSUMm"
    return eqx.is_array_like(leaf) and not text


def _struct(tree: PyTree) -> PyTree:
    """`tree` with shapes and dtypes instead of arrays and numbers."""

    def convert(leaf):
        if not _is_dynamic(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))

    return jtu.tree_map(convert, tree)


def compiled(
    pipe: StageLike,
    example: PyTree,
    state: MaybeState = None,
    *,
    key: Key | None = None,
) -> Compiled:
    """Compiles a pipeline ahead of time, with its parameters as constants.

    `equinox.filter_jit` takes a module apart at every call, which for small inputs
    takes longer than the computation. This stage is called as fast as a `jax.jit` of a
    function that closes over the parameters.

    It is a stage like the pipeline, with the same paths and the same draws. Under any
    transformation, and once its parameters were replaced (by an optimiser, or
    `equinox.nn.inference_mode`), it is the plain pipeline; compile again after
    training. A call with a key where `key` was `None`, or the other way round, compiles
    once more.

    **Arguments:**

    - `pipe`: a pipeline, or any stage.
    - `example`: an input of the structure, shapes and dtypes to come; the values of
        arrays and numbers do not matter, other leaves (text) must be the same in every
        call. `jax.ShapeDtypeStruct`s will do.
    - `state`: an example of the state, if the pipeline is stateful.
    - `key`: an example of the key, if the pipeline is random. (Keyword only.)

    **Returns:** a stage for inputs like `example`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if called inside a transformation.
    - `StructureError` (a `ValueError`), when called, for another structure, shape or
      dtype; names the leaves.
    - What tracing the pipeline raises.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> pipe = ep.chain(eqx.nn.Linear(3, 3, key=jr.key(0)), jnp.tanh)
        >>> fast = ep.compiled(pipe, jnp.zeros(3))
        >>> bool(jnp.allclose(fast(jnp.ones(3)), pipe(jnp.ones(3)), atol=1e-6))
        True
    """
    check_callable("compiled", "pipe", pipe)
    check_key("compiled", key)
    stage = as_stage("compiled", "pipe", pipe)
    check_state("compiled", stage, state)
    if any(map(_is_tracer, jtu.tree_leaves((stage, example, state, key)))):
        raise value_error(
            "compiled",
            "it was called inside a transformation (`jit`, `grad`, `vmap`, ...), "
            "where nothing can be compiled ahead of time.",
            "Make the compiled stage outside; inside, call the pipeline itself.",
        )
    return Compiled(stage, Program(stage, example, state, key))
