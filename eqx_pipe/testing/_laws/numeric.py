"""Derivatives of a function of arrays, by each mode and beside differences.

`measure` is traced, so that a program compiled once serves all inputs of a shape;
`judge` looks at the numbers that it gives.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._jaxprs.jaxpr import as_function, equations
from .compare import Tolerance, agree
from .law import Broken, Undecided
from .slopes import Arrays, Call, Directions, Dots, Slope, coarsest, direction

_MOST_SINGLE = 4  # inputs up to which each is also differentiated by itself
_COARSEST = 1e-6  # below single precision differences tell nothing


class Second(NamedTuple):
    """Second derivatives: slopes of the first ones, and one of the modes."""

    slopes: list[Slope]
    forward: Arrays | None
    backward: Dots | None


class Measured(NamedTuple):
    """What differentiation gives of a function, and what differences do.

    By direction, in which the inputs `moved` are, the `slopes` of all outputs, their
    tangents by `forward` mode, and numbers by reverse mode. `pairs` are one by
    definition, each with how its sides were found. What does not exist is `None`.
    """

    eps: float
    moved: list[list[int]]
    slopes: list[list[Slope]]
    forward: list[Arrays] | None
    backward: list[Dots] | None
    pairs: dict[tuple[str, str], tuple[Arrays, Arrays]]
    second: Second | None


def measure(call: Call, inputs: Arrays, single: bool = True) -> Measured | None:
    """The derivatives of `call` at `inputs`; `None` in too low a precision.

    With `single` reverse mode is also asked by single inputs: a rule then meets
    symbolic zeros in place of what is not differentiated.
    """
    eps = coarsest(call, inputs)
    if not 0 < eps <= _COARSEST:
        return None
    # Always the same directions: a failure must come again.
    rng = np.random.default_rng(0)
    to = Directions(inputs, [direction(rng, v, scaled=True) for v in inputs], eps)
    every = list(range(len(inputs)))
    few = len(every) <= _MOST_SINGLE
    moved = [[i] for i in every] if few else [every]
    slopes = to.slopes(call, moved)
    cotangents = []
    for each in zip(*slopes, strict=True):
        smooth = jnp.stack([s.smooth for s in each]).all(0)
        ct = direction(rng, each[0].value)
        cotangents.append(jnp.where(smooth, ct, 0).astype(ct.dtype))

    def of_some(inside: list[int]) -> tuple[Call, Arrays, Arrays]:
        def fn(some: Arrays) -> Arrays:
            values = dict(zip(inside, some, strict=True))
            return call([values.get(i, v) for i, v in enumerate(inputs)])

        return fn, [inputs[i] for i in inside], [to.tangents[i] for i in inside]

    def tangents_of(inside: list[int]) -> Arrays:
        fn, values, tangents = of_some(inside)
        return jax.jvp(fn, (values,), (tangents,))[1]

    def gradient(inputs: Arrays, fn: Call = call) -> Arrays:
        return jax.vjp(fn, inputs)[1](cotangents)[0]

    pairs: dict[tuple[str, str], tuple[Arrays, Arrays]] = {}
    forward = _attempt(lambda: [tangents_of(inside) for inside in moved])
    # A rule of one's own computes the value anew.
    plain = call(inputs)
    if forward is not None:
        value, joint = jax.jvp(call, (inputs,), (to.tangents,))
        pairs["the value in forward mode", "without a derivative"] = value, plain
        if len(moved) > 1:
            parts: Arrays = [jnp.stack(v).sum(0) for v in zip(*forward, strict=True)]
            pairs["by all inputs at once", "by one after the other"] = joint, parts
        linear = _attempt(lambda: jax.linearize(call, inputs)[1](to.tangents))
        if linear is not None:
            pairs["by `jax.linearize`", "by `jax.jvp`"] = linear, joint
    backward = None
    grads = _attempt(lambda: gradient(inputs))
    if grads is not None:
        value = jax.vjp(call, inputs)[0]
        pairs["the value in reverse mode", "without a derivative"] = value, plain
        backward = [
            to.dots(inside, cotangents, slopes[d], grads)
            for d, inside in enumerate(moved)
        ]
        for i in every if single and few and len(every) > 1 else ():
            fn, values, _ = of_some([i])
            alone = _attempt(lambda fn=fn, values=values: gradient(values, fn))
            if alone is not None:
                how = (f"backwards by input {i} alone", "by all at once")
                pairs[how] = alone, [grads[i]]
    second = None
    if grads is not None:
        second = _second(to, gradient)
    elif forward is not None:
        second = _second(to, lambda v: jax.jvp(call, (v,), (to.tangents,))[1])
    return Measured(eps, moved, slopes, forward, backward, pairs, second)


def _second(to: Directions, first: Call) -> Second:
    every = list(range(len(to.inputs)))
    (slopes,) = to.slopes(first, [every])
    forward = _attempt(lambda: jax.jvp(first, (to.inputs,), (to.tangents,))[1])
    if forward is not None:
        return Second(slopes, forward, None)
    weights = [jnp.where(s.smooth, 1, 0).astype(s.value.dtype) for s in slopes]
    grads = _attempt(lambda: jax.vjp(first, to.inputs)[1](weights)[0])
    dots = None if grads is None else to.dots(every, weights, slopes, grads)
    return Second(slopes, None, dots)


def _attempt(thunk: Callable[[], Any]) -> Any:
    """What is computed, or `None` where there is no such derivative."""
    try:
        make: Any = jax.make_jaxpr(thunk, return_shape=True)
        program, form = make()
    except Exception:  # JAX says in many ways that there is none
        return None
    # Forward mode of a `custom_vjp` can be traced, and fails when it is compiled.
    if any(eqn.primitive.name == "custom_lin" for eqn in equations(program)):
        return None
    return jtu.tree_unflatten(jtu.tree_structure(form), as_function(program)())


def judge(
    found: Measured | None,
    names: Sequence[str] = (),
    out_names: Sequence[str] = (),
    of: str = "",
) -> str | None:
    """Raises `Broken` where a derivative is not what differences say.

    Returns what was left out, in words. `names` and `out_names` are those of inputs and
    outputs, and `of` says before each complaint what was differentiated.
    """
    if found is None:
        raise Undecided("differences tell nothing in so low a precision")
    if found.forward is None and found.backward is None:
        raise Undecided("there is no derivative, in either mode")
    # Differences lose half of the digits.
    rtol = max(1e-5, found.eps**0.5)
    for d, inside in enumerate(found.moved):
        name = _named(names, inside[0]) if len(inside) == 1 else ""
        for i, t in enumerate(found.forward[d] if found.forward is not None else ()):
            where = name or _named(out_names, i)
            _same(f"{of}forward mode", where, found.slopes[d][i], t, rtol)
        if found.backward is not None:
            _same_dots(f"{of}reverse mode", name, found.backward[d], rtol)
    for (how, other), (got, wanted) in found.pairs.items():
        agree(got, wanted, (f"{of}{how}", other), Tolerance(10 * rtol, 1e-30))
    if found.second is not None:
        how, slopes = f"{of}the second derivative", found.second.slopes
        labels = names if found.backward is not None else out_names
        for i, t in enumerate(found.second.forward or ()):
            _same(how, _named(labels, i), slopes[i], t, 10 * rtol)
        if found.second.backward is not None:
            _same_dots(how, "", found.second.backward, 10 * rtol)
    kinks = [~np.asarray(s.smooth) for row in found.slopes for s in row]
    count, size = sum(int(v.sum()) for v in kinks), sum(v.size for v in kinks)
    if count and count == size:
        raise Undecided("there are kinks everywhere, or no finite numbers around")
    return f"{count} of {size} slopes are at kinks, and left out" if count else None


def _named(names: Sequence[str], i: int) -> str:
    return names[i] if i < len(names) else ""


def _same_dots(how: str, name: str, found: Dots, rtol: float) -> None:
    slope, gradient, allowed = map(float, found)
    if not abs(slope - gradient) <= allowed + rtol * abs(slope):
        what = (
            f"{how} gives {gradient:.6g} along a direction, and differences give "
            f"{slope:.6g}; {allowed:.2g} apart is allowed"
        )
        raise Broken("numerical", what, name)


def _same(how: str, name: str, slope: Slope, got: Any, rtol: float) -> None:
    value, doubt, noise, smooth = map(np.asarray, slope)
    got = np.asarray(got)
    size = np.abs(np.where(smooth, value, 0)).max(initial=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = 2 * doubt + 50 * noise + rtol * (np.abs(value) + 1e-3 * size)
        wrong = smooth & ~(np.abs(got - value) <= allowed)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        at = f" at [{', '.join(map(str, place))}]" if place else ""
        what = (
            f"{how} gives {got[place]:.6g}{at}, and differences give "
            f"{value[place]:.6g} ({int(wrong.sum())} of {wrong.size} elements differ)"
        )
        raise Broken("numerical", what, name)
