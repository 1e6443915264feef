"""The law that a stage has the gradients that its output promises."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.typing import DTypeLike

from ..._errors import describe_value, type_error
from ..._tree import leaves_with_names
from ..._types import Key, PyTree, StageLike
from .compare import AnyArray, Bound, Finding, Tolerance, as_numpy, raised
from .law import Law
from .report import check
from .trial import Trial, evaluate

Arrays: TypeAlias = list[AnyArray]


def find(trial: Trial, tolerance: Tolerance, numerical: bool = False) -> Finding | None:
    """What `check_grad` finds."""
    problem = _problem(trial)
    if problem is None:
        return None
    outputs = [v for _, v in _inexact(trial.plain)]
    finite = all(np.isfinite(as_numpy(v)).all() for v in outputs)
    forward, _ = _try(problem.forward)
    backward, why_not = _try(problem.backward)
    if forward is None and backward is None:
        assert why_not is not None
        return raised(why_not, "reverse mode (as does forward mode)")
    found = None
    if forward is not None:
        found = _not_finite_forward(problem, outputs, forward, backward)
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
    inputs: Arrays
    out_names: list[str]
    tangents: Arrays
    cotangents: Arrays

    def forward(self) -> Arrays:
        """Tangents of the outputs."""
        return _jvp(self.inputs, self.tangents, self.rest)

    def backward(self) -> Arrays:
        """Cotangents of the inputs."""
        return _vjp(self.inputs, self.cotangents, self.rest)

    def along(self, i: int) -> "_Problem":
        """The problem along the direction of one input alone."""
        zeros = [jnp.zeros_like(t) for t in self.tangents]
        tangents = [*zeros[:i], self.tangents[i], *zeros[i + 1 :]]
        return dataclasses.replace(self, tangents=tangents)


def _call(inputs: Arrays, rest: tuple[Any, ...]) -> Arrays:
    """The inexact outputs."""
    structure, fixed, state, key = rest
    both = eqx.combine(jtu.tree_unflatten(structure, inputs), fixed)
    return [v for _, v in _inexact(evaluate(both["stage"], both["x"], state, key))]


# Compiled once for all inputs of a stage.


@eqx.filter_jit
def _jvp(inputs: Arrays, tangents: Arrays, rest: tuple[Any, ...]) -> Arrays:
    return jax.jvp(lambda v: _call(v, rest), (inputs,), (tangents,))[1]


@eqx.filter_jit
def _vjp(inputs: Arrays, cotangents: Arrays, rest: tuple[Any, ...]) -> Arrays:
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


def _inexact(tree: PyTree) -> list[tuple[str, AnyArray]]:
    return [(n, v) for n, v in leaves_with_names(tree) if eqx.is_inexact_array(v)]


def _direction(rng: np.random.Generator, leaf: AnyArray) -> AnyArray:
    drawn = rng.normal(size=leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        drawn = drawn + 1j * rng.normal(size=leaf.shape)
    return jnp.asarray(drawn).astype(leaf.dtype)


def _try(run: Callable[[], Arrays]) -> tuple[Arrays | None, Exception | None]:
    """A mode's result, or why the stage does not have it."""
    try:
        return run(), None
    except Exception as error:
        return None, error


def _not_finite_forward(
    problem: _Problem, outputs: Arrays, tangents: Arrays, grads: Arrays | None
) -> Finding | None:
    for name, y, t in zip(problem.out_names, outputs, tangents, strict=True):
        wrong = np.isfinite(as_numpy(y)) & ~np.isfinite(as_numpy(t))
        if wrong.any():
            count = f"{int(wrong.sum())} of {wrong.size} elements"
            what = f"{count} are finite and have derivatives that are not (forward)"
            # Reverse mode, where there is one, tells the input that is to blame.
            found = None if grads is None else _not_finite_backward(problem, grads)
            return Finding("finite", found.leaf if found else name, what)
    return None


def _not_finite_backward(problem: _Problem, grads: Arrays) -> Finding | None:
    for name, grad in zip(problem.names, grads, strict=True):
        wrong = ~np.isfinite(as_numpy(grad))
        if wrong.any():
            first = as_numpy(grad)[wrong][0]
            count = f"{int(wrong.sum())} of {wrong.size} elements of its gradient"
            what = f"{count} are not finite ({first}), and the output is"
            return Finding("finite", name, what)
    return None


def _disagree(
    problem: _Problem, forward: Arrays, backward: Arrays, tolerance: Tolerance
) -> Finding | None:
    left, right, allowed = _modes(problem, forward, backward, tolerance)
    if abs(left - right) <= allowed:
        return None
    what = (
        f"a directional derivative is {left:.6g} in forward mode, {right:.6g} in "
        f"reverse mode; {abs(left - right):.3g} apart, {allowed:.2g} allowed"
    )
    for i, name in enumerate(problem.names):
        alone = problem.along(i)
        left, right, allowed = _modes(alone, alone.forward(), backward, tolerance)
        if abs(left - right) > allowed:
            return Finding("modes", name, what)
    return Finding("modes", "", what)


def _modes(
    problem: _Problem, forward: Arrays, backward: Arrays, tolerance: Tolerance
) -> tuple[float, float, float]:
    """A directional derivative by each mode, and how far apart these may be."""
    left, left_size = _dot(problem.cotangents, forward)
    right, right_size = _dot(backward, problem.tangents)
    size = max(left_size, right_size)
    return left, right, 10 * tolerance.allowed(_coarsest(problem.inputs), size)


def _dot(a: Arrays, b: Arrays) -> tuple[float, float]:
    """The real inner product, and the sum of its terms' sizes."""
    terms = [
        np.ravel(np.real(as_numpy(u) * as_numpy(v))) for u, v in zip(a, b, strict=True)
    ]
    joined = np.concatenate(terms)
    return float(joined.sum()), float(np.abs(joined).sum())


def _unlike_differences(
    problem: _Problem, forward: Arrays, tolerance: Tolerance
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
    problem: _Problem, backward: Arrays, tolerance: Tolerance
) -> Finding | None:
    """The same by reverse mode, for each input by itself."""
    for i, name in enumerate(problem.names):
        alone = problem.along(i)
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


def _differences(problem: _Problem) -> tuple[float, Arrays, list[float]]:
    """A step, the outputs' central differences by it, and how large the outputs are."""
    step = float(jnp.finfo(_coarsest(problem.inputs)).eps) ** (1 / 3)

    def moved(sign: float) -> Arrays:
        return [
            jnp.asarray((as_numpy(v) + sign * step * as_numpy(t)).astype(v.dtype))
            for v, t in zip(problem.inputs, problem.tangents, strict=True)
        ]

    ends = [
        _call([jnp.asarray(v) for v in moved(sign)], problem.rest)
        for sign in (1.0, -1.0)
    ]
    high, low = ([as_numpy(v) for v in end] for end in ends)
    differences = [(h - v) / (2 * step) for h, v in zip(high, low, strict=True)]
    return step, differences, [float(np.max(np.abs(h), initial=1.0)) for h in high]


def _usual(step: float, size: float) -> float:
    # The error goes with the square of the step, the rounding with what is left.
    return 20 * step * min(1.0, 10 * step) * size


def _allowed(
    tolerance: Tolerance, dtype: DTypeLike, size: float, usual: float
) -> float:
    """The caller's bound if there is one, else the usual."""
    given = tolerance.rtol is not None or tolerance.atol is not None
    return tolerance.allowed(dtype, size) if given else usual


def _unlike(name: str, apart: float, step: float, allowed: float) -> Finding:
    what = (
        f"the derivative is {apart:.3g} away from a central difference of step "
        f"{step:.2g}; {allowed:.2g} allowed"
    )
    return Finding("numerical", name, what)


def _coarsest(arrays: Arrays) -> np.dtype:
    return max((v.dtype for v in arrays), key=lambda dtype: float(jnp.finfo(dtype).eps))


LAW = Law(
    "grad",
    "gradients are finite where the output is, and forward and reverse mode agree.",
    find,
)


def check_grad(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
    numerical: bool = False,
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
        raise type_error(
            "testing.check_grad",
            f"`numerical` is {describe_value(numerical)}.",
            "Give True or False.",
        )
    check(LAW, stage, x, state, key, rtol, atol, numerical=numerical)
