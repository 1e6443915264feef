"""A pipeline compiled ahead of time, for loops that call it often."""

import functools as ft
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._check import check_callable, check_key
from .._errors import StructureError, message
from .._stage import Composite, Scope, as_stage, call, check_state, is_stateful
from .._tree import differences, tree_text
from .._types import Key, StageLike

# `(x, state, key)` to what a call of the stage returns.
Program = Callable[[PyTree, Any, Any], Any]


class Baked:
    """What `compiled` made: programs, and the very arrays that stand in them.

    It is compared by identity, so it can be a static field. It is not copied by pickle:
    a program lives in its process.
    """

    def __init__(self, leaves: list, structure: Any, structs: tuple[PyTree, PyTree]):
        self.leaves = leaves
        self.structure = structure
        self.structs = structs
        # By whether a state is given, and the kind of key, if any.
        self.programs: dict[tuple[bool, Any], Program] = {}

    def holds(self, pipe: Any) -> bool:
        """Whether these are the parameters that were baked in, unchanged."""
        leaves, structure = jtu.tree_flatten(pipe)
        return (
            len(leaves) == len(self.leaves)
            and all(a is b for a, b in zip(leaves, self.leaves, strict=True))
            and structure == self.structure
        )

    def __deepcopy__(self, memo: dict) -> "Baked":
        return self

    def __reduce__(self) -> Any:
        return Baked, ([None], None, (None, None))


class Compiled(Composite):
    """A pipeline with its compiled programs; see `compiled`."""

    pipe: Any
    baked: Baked = eqx.field(static=True, repr=False)

    # The program that the last call used is kept as the attribute `_program`. It is no
    # field: an instance rebuilt by a transformation, or with other parameters, has none
    # and so finds out in `_slow` what it is.

    def children(self) -> Mapping[str, Any]:
        """Those of the pipeline, whose place this stage takes."""
        return self.pipe.children() if isinstance(self.pipe, Composite) else {}

    def is_stateful(self) -> bool:
        return is_stateful(self.pipe)

    def __call__(
        self, x: PyTree, state: eqx.nn.State | None = None, *, key: Key | None = None
    ) -> Any:
        try:
            return self._program(x, state, key)
        except Exception as error:
            failure = error
        return self._slow(x, state, Scope(key), failure)

    def run(
        self, x: PyTree, state: eqx.nn.State | None, scope: Scope
    ) -> tuple[PyTree, eqx.nn.State | None]:
        if scope.record is not None:
            return call(self.pipe, (x,), state, scope)
        try:
            y = self._program(x, state, scope.key)
        except Exception as error:
            y = self._slow(x, state, scope, error)
        return (y, state) if state is None else y

    def _slow(
        self,
        x: PyTree,
        state: eqx.nn.State | None,
        scope: Scope,
        failure: Exception,
    ) -> Any:
        """The call, when the program at hand did not fit it."""
        check_key("compiled", scope.key)
        check_state("compiled", self, state)
        traced = any(map(_is_tracer, jtu.tree_leaves((self.pipe, x, state, scope.key))))
        if traced or not self.baked.holds(self.pipe):
            y, state_out = call(self.pipe, (x,), state, scope)
            return y if state is None else (y, state_out)
        _check_fits(self.baked.structs, x, state, scope)
        last = self.__dict__.get("_program")
        program = self.prepare(x, state, scope)
        if program is last:  # the program fits, so it was the run that failed
            raise failure
        return program(x, state, scope.key)

    def prepare(self, x: PyTree, state: eqx.nn.State | None, scope: Scope) -> Program:
        """Makes the program for such calls the one at hand, compiling it if need be."""
        kind = (state is None, None if scope.key is None else scope.key.dtype)
        programs = self.baked.programs
        if kind not in programs:
            programs[kind] = _compile(self.pipe, x, state, scope)
        object.__setattr__(self, "_program", programs[kind])
        return programs[kind]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_program"}


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


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


def _compile(pipe: Any, x: PyTree, state: eqx.nn.State | None, scope: Scope) -> Program:
    """The program for inputs like `x`, for this presence of state and key."""
    stateful = is_stateful(pipe)
    moving, fixed = eqx.partition(x, _is_dynamic)
    rest = []

    def pure(moving, state, key):
        given = eqx.combine(moving, fixed)
        y, state = call(pipe, (given,), state, Scope(key, scope.path))
        arrays, constant = eqx.partition((y, state) if stateful else y, eqx.is_array)
        rest.append(constant)
        return arrays

    pure.__name__ = "compiled"
    held = state if stateful else None
    program = jax.jit(pure).lower(moving, held, scope.key).compile()
    if fixed_leaves := jtu.tree_leaves(fixed):
        program = ft.partial(_past_fixed, program, fixed_leaves)
    if jtu.tree_leaves(rest[-1]):
        program = ft.partial(_with_rest, program, rest[-1])
    if state is not None and not stateful:
        program = ft.partial(_beside_state, program)
    return program


def _past_fixed(program: Program, fixed: list, x: PyTree, state: Any, key: Any) -> Any:
    moving, given = eqx.partition(x, _is_dynamic)
    if jtu.tree_leaves(given) != fixed:
        raise StructureError("other leaves than in the example; see `_check_fits`")
    return program(moving, state, key)


def _with_rest(program: Program, rest: PyTree, x: PyTree, state: Any, key: Any) -> Any:
    return eqx.combine(program(x, state, key), rest)


def _beside_state(program: Program, x: PyTree, state: Any, key: Any) -> Any:
    if state is None:
        raise TypeError("made for calls with a state; see `Compiled.prepare`")
    return program(x, None, key), state


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
    leaves, structure = jtu.tree_flatten(stage)
    if any(map(_is_tracer, [*leaves, *jtu.tree_leaves((example, state, key))])):
        raise ValueError(
            message(
                "compiled",
                "it was called inside a transformation (`jit`, `grad`, `vmap`, ...), "
                "where nothing can be compiled ahead of time.",
                "Make the compiled stage outside; inside, call the pipeline itself.",
            )
        )
    baked = Baked(leaves, structure, (_struct(example), _struct(state)))
    made = Compiled(stage, baked)
    made.prepare(example, state, Scope(key))
    return made
