"""A pipeline compiled ahead of time, for loops that call it often."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._check import check_callable, check_key
from .._errors import StructureError, message
from .._stage import Composite, Scope, as_stage, call, check_state, is_stateful
from .._tree import differences, tree_text
from .._types import Key, PyTree, StageLike

# A module's own way to look up an attribute takes a microsecond longer.
_look_up = object.__getattribute__


class Baked:
    """What `compiled` made: a program, and the very arrays that stand in it.

    It is compared by identity, so it can be a static field. It is not copied by pickle:
    a program lives in its process.
    """

    def __init__(self, pipe: Any, x: PyTree, state: Any):
        self.leaves, self.structure = jtu.tree_flatten(pipe)
        self.stateful = is_stateful(pipe)
        self.structs = _struct(x), _struct(state)
        # The leaves that are no arguments of the program, such as text.
        self.fixed = jtu.tree_leaves(eqx.filter(x, _is_dynamic, inverse=True))
        self.program: Any = None

    def arguments(self, x: PyTree, state: Any, key: Any) -> tuple:
        """Those of the program; called in one way only where `x` is all there is."""
        state = state if self.stateful else None
        x = eqx.filter(x, _is_dynamic) if self.fixed else x
        return (x,) if state is None and key is None else (x, state, key)

    def holds(self, pipe: Any) -> bool:
        """Whether these are the parameters that were baked in, unchanged."""
        leaves, structure = jtu.tree_flatten(pipe)
        return (
            len(leaves) == len(self.leaves)
            and all(a is b for a, b in zip(leaves, self.leaves, strict=True))
            and structure == self.structure
            and self.program is not None
        )

    def __deepcopy__(self, memo: dict) -> "Baked":
        return self

    def __reduce__(self) -> Any:
        return Baked, (None, None, None)


class Compiled(Composite):
    """A pipeline with its compiled program; see `compiled`."""

    pipe: Any
    baked: Baked = eqx.field(static=True, repr=False)

    # The program and the type of a concrete array are found in the attribute `_ready`.
    # It is no field: an instance rebuilt by a transformation, or with other parameters,
    # has none and finds out in `settle` what it is.

    def children(self) -> Mapping[str, Any]:
        """Those of the pipeline, whose place this stage takes."""
        return self.pipe.children() if isinstance(self.pipe, Composite) else {}

    def is_stateful(self) -> bool:
        return is_stateful(self.pipe)

    def __call__(
        self, x: PyTree, state: eqx.nn.State | None = None, *, key: Key | None = None
    ) -> Any:
        failure = None
        if state is None and key is None:
            try:
                program, array = _look_up(self, "_ready")
                # `jax.jit` would take a tracer too, but that is for the plain pipeline.
                if type(x) is array:
                    return program(x)
            except Exception as error:
                failure = error
        y, new_state = self._general(x, state, Scope(key), failure)
        return y if state is None else (y, new_state)

    def run(
        self, x: PyTree, state: eqx.nn.State | None, scope: Scope
    ) -> tuple[PyTree, eqx.nn.State | None]:
        if scope.record is not None:
            return call(self.pipe, (x,), state, scope)
        return self._general(x, state, scope, None)

    def _general(
        self,
        x: PyTree,
        state: eqx.nn.State | None,
        scope: Scope,
        failure: Exception | None,
    ) -> tuple[PyTree, eqx.nn.State | None]:
        """A call with anything. `failure` is that of the program, if it ran already."""
        check_key("compiled", scope.key)
        if state is not None:
            check_state("compiled", self, state)
        fresh = "_ready" not in self.__dict__
        traced = any(map(_is_tracer, jtu.tree_leaves((x, state, scope.key))))
        if traced or not self.settle():
            check_state("compiled", self, state)
            return call(self.pipe, (x,), state, scope)
        baked = self.baked
        if baked.fixed:  # the program does not see these
            _check_fits(baked.structs, x, state, scope)
        if failure is None or fresh:
            program, _ = self._ready  # pyright: ignore
            try:
                y = program(*baked.arguments(x, state, scope.key))
                return y if baked.stateful else (y, state)
            except Exception as error:
                failure = error
        check_state("compiled", self, state)
        _check_fits(baked.structs, x, state, scope)
        raise failure

    def settle(self) -> bool:
        """Takes the program as this instance's, if its parameters are those in it."""
        if "_ready" not in self.__dict__:
            if not self.baked.holds(self.pipe):
                return False
            ready = self.baked.program, type(jnp.zeros(()))
            object.__setattr__(self, "_ready", ready)
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {"pipe": self.pipe, "baked": self.baked}


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, Tracer)


def _is_dynamic(leaf: Any) -> bool:
    """Whether a leaf of the input may change between calls: arrays and numbers."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    text = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSUMm"
    return eqx.is_array_like(leaf) and not text


def _struct(tree: PyTree) -> PyTree:
    """`tree` with shapes and dtypes instead of arrays and numbers."""

    def convert(leaf):
        if not _is_dynamic(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))

    return jtu.tree_map(convert, tree)


def _check_fits(
    structs: tuple[PyTree, PyTree], x: PyTree, state: Any, scope: Scope
) -> None:
    x_struct, state_struct = structs
    place = f" at `{scope.path}`" if scope.path else ""
    lines = differences(x_struct, _struct(x))
    if lines:
        listed = "".join(f"\n- {line}" for line in lines)
        raise StructureError(
            message(
                "compiled",
                f"the stage{place} was compiled for {tree_text(x_struct)}; the input "
                f"differs, first what was compiled:{listed}\n",
                "Make another with `compiled` for this input, or call the pipeline "
                "itself.",
            )
        )
    if state is not None and state_struct is not None:
        lines = differences(state_struct, _struct(state))
        if lines:
            raise StructureError(
                message(
                    "compiled",
                    f"the stage{place} was compiled for another state than it is "
                    "given.",
                    "Give the state made with this pipeline by "
                    "`equinox.nn.make_with_state`, or make another with `compiled`.",
                )
            )


def _compile(
    pipe: Any, baked: Baked, x: PyTree, state: Any, key: Key | None
) -> Callable[..., Any]:
    """The program: a `jax.jit` with its first entry compiled.

    Not the ahead-of-time `jax.stages.Compiled`, which takes longer to call. Other
    shapes, which would compile again, are turned away while they are traced.
    """
    fixed = eqx.filter(x, _is_dynamic, inverse=True)
    constants = []

    def program(moving, state=None, key=None):
        given = eqx.combine(moving, fixed)
        _check_fits(baked.structs, given, state, Scope(None))
        y, state = call(pipe, (given,), state, Scope(key))
        out = (y, state) if baked.stateful else y
        arrays, constant = eqx.partition(out, eqx.is_array)
        constants.append(constant)
        return arrays

    program.__name__ = "compiled"
    jitted = jax.jit(program)
    jitted.lower(*baked.arguments(x, state, key)).compile()
    if jtu.tree_leaves(constants[0]):
        return lambda *args: eqx.combine(jitted(*args), constants[0])
    return jitted


def compiled(
    pipe: StageLike,
    example: PyTree,
    state: eqx.nn.State | None = None,
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
        raise ValueError(
            message(
                "compiled",
                "it was called inside a transformation (`jit`, `grad`, `vmap`, ...), "
                "where nothing can be compiled ahead of time.",
                "Make the compiled stage outside; inside, call the pipeline itself.",
            )
        )
    baked = Baked(stage, example, state)
    baked.program = _compile(stage, baked, example, state, key)
    made = Compiled(stage, baked)
    made.settle()
    return made
