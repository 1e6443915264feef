"""The laws of `vmap` over any part of what a call needs, beside a loop."""

import contextlib
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._tree import as_arrays, is_key_array
from ..._types import PyTree
from .compare import Tolerance, agree
from .law import Broken, law
from .trial import Trial, evaluate


class Lanes(NamedTuple):
    """What a function gives of batches by `vmap`, and in a loop; or how it raised."""

    how: str
    got: Any
    wanted: Any
    raised: str

    def check(self, tolerance: Tolerance, of: str = "") -> None:
        """Raises `Broken` where the two differ."""
        if self.raised:
            raise Broken("raises", f"{of}{self.how} raises {self.raised}")
        labels = (f"{of}by {self.how}", "in a loop")
        agree(self.got, self.wanted, labels, tolerance)


def batched_and_looped(
    fn: Callable[[list[Any]], Any], inputs: list[Any], chosen: Sequence[int], how: str
) -> Lanes:
    """A function of pytrees of arrays for batches of some, by `vmap` and in a loop.

    To be traced; both stand in one program.
    """
    lanes = [jtu.tree_map(_lanes, inputs[i]) for i in chosen]

    def one(some: list[Any]) -> Any:
        every = list(inputs)
        for i, v in zip(chosen, some, strict=True):
            every[i] = v
        return fn(every)

    try:
        got = jax.vmap(one)(lanes)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return Lanes(how, None, None, f"{type(error).__name__}: {line}")
    return Lanes(how, got, jax.lax.map(one, lanes), "")


def _lanes(v: Any) -> Any:
    """An array thrice: as it is, moved by one, and smaller."""
    if is_key_array(v):
        return jnp.stack([v, v, v])
    v = jnp.asarray(v)
    less = v * jnp.asarray(0.5, v.dtype) if eqx.is_inexact_array(v) else v
    # Lanes that differ: of equal ones a rule that mixes them up gives the right values.
    return jnp.stack([v, jnp.roll(v, 1), jnp.roll(less, -1)])


def subsets(n: int) -> list[tuple[int, ...]]:
    """The subsets of `n` things: all, or of many those of one, and the whole."""
    # Each subset is one more program to compile.
    if n <= 3:
        sizes = range(1, n + 1)
        return [c for size in sizes for c in it.combinations(range(n), size)]
    return [*((i,) for i in range(n)), tuple(range(n))]


@law(
    "vmap",
    "`jax.vmap` over any of the arguments gives what a loop gives.",
    function="check_function",
)
def arguments_law(trial: Trial) -> None:
    """For a function, whose arguments by name are the trial's `x`."""
    for lanes in _over_arguments(trial.stage, trial.x, trial.state, trial.key):
        lanes.check(trial.tolerance)


@eqx.filter_jit
def _over_arguments(stage: Any, x: PyTree, state: Any, key: Any) -> list[Lanes]:
    dynamic, static = eqx.partition(x, eqx.is_array)
    names = [name for name, v in dynamic.items() if jtu.tree_leaves(v)]
    inputs = [dynamic[name] for name in names]

    def call(inputs: list[Any]) -> Any:
        given = {**dynamic, **dict(zip(names, inputs, strict=True))}
        outputs = evaluate(stage, eqx.combine(given, static), state, key)
        return eqx.filter(as_arrays(outputs), eqx.is_array)

    def total(inputs: list[Any]) -> Any:
        return _weighted(call(inputs))

    def gradient(inputs: list[Any]) -> Any:
        return jtu.tree_leaves(eqx.filter_grad(total)(inputs))

    found = []
    for chosen in subsets(len(names)):
        which = "`, `".join(names[i] for i in chosen)
        found.append(batched_and_looped(call, inputs, chosen, f"`vmap` over `{which}`"))
    every = tuple(range(len(names)))
    # Not every function has a gradient; the law of gradients tells.
    with contextlib.suppress(Exception):
        jax.eval_shape(gradient, inputs)
        if jtu.tree_leaves(eqx.filter(inputs, eqx.is_inexact_array)):
            how = "`vmap` of the gradient"
            found.append(batched_and_looped(gradient, inputs, every, how))
            lanes = jtu.tree_map(_lanes, inputs)
            whole = eqx.filter_grad(lambda some: jax.vmap(total)(some).sum())(lanes)
            leaves, wanted = jtu.tree_leaves(whole), found[-1].wanted
            found.append(Lanes("the gradient of `vmap`", leaves, wanted, ""))
    return found


def _weighted(outputs: Any) -> Any:
    """A sum of all numbers, with another weight for each in an array."""
    arrays = [v for v in jtu.tree_leaves(outputs) if eqx.is_inexact_array(v)]
    weighted = [
        jnp.real(v)
        * jnp.cos(jnp.arange(1, v.size + 1)).astype(jnp.real(v).dtype).reshape(v.shape)
        for v in arrays
    ]
    return sum((jnp.sum(v).astype(float) for v in weighted), jnp.zeros((), float))


@law(
    "ensemble",
    "`vmap` over a stack of stages gives what a loop over them gives.",
    function="check_vmap",
)
def ensemble_law(trial: Trial) -> None:
    if jtu.tree_leaves(eqx.filter(trial.stage, eqx.is_inexact_array)):
        for lanes in _over_stages(trial.stage, trial.x, trial.state, trial.key):
            lanes.check(trial.tolerance)


@eqx.filter_jit
def _over_stages(stage: Any, x: PyTree, state: Any, key: Any) -> list[Lanes]:
    params, rest = eqx.partition(stage, eqx.is_inexact_array)
    dynamic, static = eqx.partition(x, eqx.is_array)

    def call(inputs: list[Any]) -> Any:
        own, given = eqx.combine(inputs[0], rest), eqx.combine(inputs[1], static)
        outputs = evaluate(own, given, state, key)
        return eqx.filter(as_arrays(outputs), eqx.is_array)

    inputs = [params, dynamic]
    alone = batched_and_looped(call, inputs, (0,), "`vmap` over stages")
    if not jtu.tree_leaves(dynamic):
        return [alone]
    both = "`vmap` over stages and inputs"
    return [alone, batched_and_looped(call, inputs, (0, 1), both)]
