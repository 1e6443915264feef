"""The law that a stage has the gradients that its output promises."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._errors import describe_value, message
from ..._tree import leaves_with_names
from ..._types import PyTree
from .compare import Finding, Tolerance, as_numpy, raised
from .report import check
from .trial import Trial, evaluate

RULE = "gradients are finite where the output is, and forward and reverse mode agree."


def law(trial: Trial, tolerance: Tolerance, numerical: bool = False) -> Finding | None:
    """What `check_grad` finds."""
    problem = _problem(trial)
    if problem is None:
        return None
    outputs = [v for _, v in _inexact(trial.plain)]
    finite = all(np.isfinite(as_numpy(v)).all() for v in outputs)
    forward, why_not_forward = _try(lambda: _forward(problem))
    backward, why_not_backward = _try(lambda: _backward(problem))
    if forward is None and backward is None:
        assert why_not_backward is not None
        return raised(why_not_backward, "reverse mode (as does forward mode)")
    found = None
    if forward is not None:
        found = _not_finite_forward(problem, outputs, forward)
    if not found and backward is not None and finite:
        found = _not_finite_backward(problem, backward)
    if found or not finite:
        return found
    if forward is not None and backward is not None:
        found = _disagree(problem, forward, backward, tolerance)
    if found or not numerical:
        return found
    if forward is not None:
        return _unlike_differences(problem, forward, tolerance)
    # As for every `custom_vjp`.
    assert backward is not None
    return _unlike_differences_backward(problem, backward, tolerance)


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Inexact inputs (parameters and input) to the inexact outputs, with directions.

    `rest` is all else that a call needs.
    """

    rest: tuple[Any, ...]
    names: list[str]
    inputs: list[Any]
    out_names: list[str]
    tangents: list[Any]
    cotangents: list[Any]

    def fn(self, inputs: list[Any]) -> list[Any]:
        """The inexact outputs."""
        return _call(inputs, self.rest)


def _call(inputs: list[Any], rest: tuple[Any, ...]) -> list[Any]:
    structure, fixed, state, key = rest
    both = eqx.combine(jtu.tree_unflatten(structure, inputs), fixed)
    return [v for _, v in _inexact(evaluate(both["stage"], both["x"], state, key))]


# Compiled once for all inputs of a stage.


@eqx.filter_jit
def _jvp(inputs: list[Any], tangents: list[Any], rest: tuple[Any, ...]) -> list[Any]:
    return jax.jvp(lambda v: _call(v, rest), (inputs,), (tangents,))[1]


@eqx.filter_jit
def _vjp(inputs: list[Any], cotangents: list[Any], rest: tuple[Any, ...]) -> list[Any]:
    return jax.vjp(lambda v: _call(v, rest), inputs)[1](cotangents)[0]


def _problem(trial: Trial) -> _Problem | None:
    given = {"stage": trial.stage, "x": trial.x}
    moving, fixed = eqx.partition(given, eqx.is_inexact_array)
    leaves, structure = jtu.tree_flatten(moving)
    outputs = _inexact(trial.plain)
    if not leaves or not outputs:
        return None
    rng = np.random.default_rng(0)
    return _Problem(
        (structure, fixed, trial.state, trial.key),
        [name for name, _ in leaves_with_names(moving)],
        [jnp.asarray(leaf) for leaf in leaves],
        [name for name, _ in outputs],
        [_direction(rng, leaf) for leaf in leaves],
        [_direction(rng, leaf) for _, leaf in outputs],
    )


def _inexact(tree: PyTree) -> list[tuple[str, Any]]:
    return [(n, v) for n, v in leaves_with_names(tree) if eqx.is_inexact_array(v)]


def _direction(rng: np.random.Generator, leaf: Any) -> Any:
    drawn = rng.normal(size=leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        drawn = drawn + 1j * rng.normal(size=leaf.shape)
    return jnp.asarray(drawn).astype(leaf.dtype)


def _forward(problem: _Problem) -> list[Any]:
    return _jvp(problem.inputs, problem.tangents, problem.rest)


def _backward(problem: _Problem) -> list[Any]:
    return _vjp(problem.inputs, problem.cotangents, problem.rest)


def _try(run: Callable[[], list[Any]]) -> tuple[list[Any] | None, Exception | None]:
    """A mode's result, or why the stage does not have it."""
    try:
        return run(), None
    except Exception as error:
        return None, error


def _not_finite_forward(
    problem: _Problem, outputs: list[Any], tangents: list[Any]
) -> Finding | None:
    for name, y, t in zip(problem.out_names, outputs, tangents, strict=True):
        wrong = np.isfinite(as_numpy(y)) & ~np.isfinite(as_numpy(t))
        if wrong.any():
            count = f"{int(wrong.sum())} of {wrong.size} elements"
            what = f"{count} are finite and have derivatives that are not (forward)"
            blame = _blame(problem)
            return Finding("finite", blame or name, what)
    return None


def _blame(problem: _Problem) -> str:
    """The input with a gradient that is not finite, if reverse mode tells."""
    backward, _ = _try(lambda: _backward(problem))
    found = None if backward is None else _not_finite_backward(problem, backward)
    return found.leaf if found else ""


def _not_finite_backward(problem: _Problem, grads: list[Any]) -> Finding | None:
    for name, grad in zip(problem.names, grads, strict=True):
        wrong = ~np.isfinite(as_numpy(grad))
        if wrong.any():
            first = as_numpy(grad)[wrong][0]
            count = f"{int(wrong.sum())} of {wrong.size} elements of its gradient"
            what = f"{count} are not finite ({first}), and the output is"
            return Finding("finite", name, what)
    return None


def _disagree(
    problem: _Problem, forward: list[Any], backward: list[Any], tolerance: Tolerance
) -> Finding | None:
    left, left_size = _dot(problem.cotangents, forward)
    right, right_size = _dot(backward, problem.tangents)
    dtype = max((v.dtype for v in problem.inputs), key=lambda d: _coarse(d))
    allowed = 10 * tolerance.allowed(dtype, max(left_size, right_size))
    if abs(left - right) <= allowed:
        return None
    what = (
        f"a directional derivative is {left:.6g} in forward mode, {right:.6g} in "
        f"reverse mode; {abs(left - right):.3g} apart, {allowed:.2g} allowed"
    )
    return Finding("modes", _worst(problem, backward, tolerance), what)


def _worst(problem: _Problem, backward: list[Any], tolerance: Tolerance) -> str:
    """The input along which alone the modes disagree."""
    for i, name in enumerate(problem.names):
        alone = _along(problem, i)
        left, left_size = _dot(problem.cotangents, _forward(alone))
        right, right_size = _dot(backward, alone.tangents)
        size = max(left_size, right_size)
        if abs(left - right) > 10 * tolerance.allowed(problem.inputs[i].dtype, size):
            return name
    return ""


def _along(problem: _Problem, i: int) -> _Problem:
    """The problem along the direction of one input alone."""
    tangents = [
        t if j == i else jnp.zeros_like(t) for j, t in enumerate(problem.tangents)
    ]
    return dataclasses.replace(problem, tangents=tangents)


def _dot(a: list[Any], b: list[Any]) -> tuple[float, float]:
    """The real inner product, and the sum of its terms' sizes."""
    terms = [
        np.ravel(np.real(as_numpy(u) * as_numpy(v))) for u, v in zip(a, b, strict=True)
    ]
    joined = np.concatenate(terms)
    return float(joined.sum()), float(np.abs(joined).sum())


def _unlike_differences(
    problem: _Problem, forward: list[Any], tolerance: Tolerance
) -> Finding | None:
    """Whether the derivative along a direction is unlike a central difference."""
    step, differences, scales = _differences(problem)
    found = zip(problem.out_names, forward, differences, scales, strict=True)
    for name, t, numeric, scale in found:
        apart = np.max(np.abs(numeric - as_numpy(t)), initial=0.0)
        size = float(np.max(np.abs(as_numpy(t)), initial=0.0))
        allowed = _allowed(tolerance, t.dtype, size, _usual(step, scale + size))
        if not apart <= allowed:
            return _unlike(name, apart, step, allowed)
    return None


def _unlike_differences_backward(
    problem: _Problem, backward: list[Any], tolerance: Tolerance
) -> Finding | None:
    """The same by reverse mode, for each input by itself."""
    for i, name in enumerate(problem.names):
        alone = _along(problem, i)
        step, differences, scales = _differences(alone)
        left, left_size = _dot(problem.cotangents, differences)
        right, right_size = _dot(backward, alone.tangents)
        usual = sum(
            np.abs(as_numpy(v)).sum() * _usual(step, scale + np.max(np.abs(d)))
            for v, d, scale in zip(problem.cotangents, differences, scales, strict=True)
            if d.size
        )
        size = max(left_size, right_size)
        allowed = _allowed(tolerance, problem.inputs[i].dtype, size, usual)
        if not abs(left - right) <= allowed:
            return _unlike(name, abs(left - right), step, allowed)
    return None


def _differences(problem: _Problem) -> tuple[float, list[np.ndarray], list[float]]:
    """A step, the outputs' central differences by it, and how large the outputs are."""
    dtype = max((v.dtype for v in problem.inputs), key=lambda d: _coarse(d))
    step = float(jnp.finfo(dtype).eps) ** (1 / 3)

    def moved(sign: float) -> list[Any]:
        return [
            (as_numpy(v) + sign * step * as_numpy(t)).astype(v.dtype)
            for v, t in zip(problem.inputs, problem.tangents, strict=True)
        ]

    ends = [problem.fn([jnp.asarray(v) for v in moved(sign)]) for sign in (1.0, -1.0)]
    high, low = ([as_numpy(v) for v in end] for end in ends)
    differences = [(h - v) / (2 * step) for h, v in zip(high, low, strict=True)]
    return step, differences, [float(np.max(np.abs(h), initial=1.0)) for h in high]


def _usual(step: float, size: float) -> float:
    # The error goes with the square of the step, the rounding with what is left.
    return 20 * step * min(1.0, 10 * step) * size


def _allowed(tolerance: Tolerance, dtype: Any, size: float, usual: float) -> float:
    """The caller's bound if there is one, else the usual."""
    given = tolerance.rtol is not None or tolerance.atol is not None
    return tolerance.allowed(dtype, size) if given else usual


def _unlike(name: str, apart: float, step: float, allowed: float) -> Finding:
    what = (
        f"the derivative is {apart:.3g} away from a central difference of step "
        f"{step:.2g}; {allowed:.2g} allowed"
    )
    return Finding("numerical", name, what)


def _coarse(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps)


def check_grad(
    stage: Any,
    x: PyTree,
    state: Any = None,
    *,
    key: Any = None,
    rtol: Any = None,
    atol: Any = None,
    numerical: Any = False,
) -> None:
    """Checks the derivatives of a stage by its input and its parameters.

    They are finite wherever the output is, and forward and reverse mode agree along a
    direction, where both exist.

    **Arguments:** those of `check_stage`, and

    - `numerical`: whether to compare with central differences, too: forward mode, or
        reverse mode where the stage has no other, as with a `custom_vjp`. This gives
        false alarms at kinks, for `stop_gradient`, and in low precision. (Keyword
        only.)

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_grad(jnp.linalg.norm, jnp.zeros(3))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_grad`: the law `grad` is broken: ...
    """
    __tracebackhide__ = True
    if not isinstance(numerical, bool):
        raise TypeError(
            message(
                "testing.check_grad",
                f"`numerical` is {describe_value(numerical)}.",
                "Give True or False.",
            )
        )
    check("grad", law, RULE, stage, x, state, key, rtol, atol, numerical=numerical)
