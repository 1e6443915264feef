"""Random functions of a point, with loops, branches and scans inside of each other.

Floats decide no branch and become no integers, and no operation magnifies their
differences, so rounding changes them by little, and integers not at all.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax


def random_program(seed):
    """Return a function of two integers, three words, three floats and a flag."""
    rng = np.random.default_rng(seed)
    steps = _steps(rng, depth=3, most=6)
    return lambda i, j, words, floats, flag: _run(
        steps, {"i": i, "j": j, "w": words, "f": floats, "b": flag}
    )


def random_points(seed, size):
    """Return arguments of a random program, with the largest and smallest integers."""
    rng = np.random.default_rng(seed)
    edges = np.array([0, 1, -1, 31, 32, 33, 2**31 - 1, -(2**31)], np.int32)
    ints = rng.integers(-100, 100, (2, size), dtype=np.int32)
    at_edge = rng.random((2, size)) < 0.3
    i, j = np.where(at_edge, rng.choice(edges, (2, size)), ints)
    words = rng.integers(0, 2**32, (size, 3), dtype=np.uint32)
    floats = rng.normal(size=(size, 3)).astype(np.float32)
    return i, j, words, floats, rng.random(size) < 0.5


def _run(steps, state):
    for step in steps:
        state = {**state, **step(state)}
    return state


def _steps(rng, depth, most):
    kinds = [_integer, _integer, _words, _words, _floats, _floats, _flag]
    nested = [_branch, _switch, _fixed_loop, _while, _scan]
    count = int(rng.integers(1, most + 1))
    made = []
    for _ in range(count):
        inside = depth and rng.random() < 0.4
        kind = nested[rng.integers(len(nested))] if inside else None
        plain = kinds[rng.integers(len(kinds))]
        made.append(kind(rng, depth - 1) if kind else plain(rng))
    return made


def _one_of(rng, choices):
    return choices[rng.integers(len(choices))]


def _integer(rng):
    # Not `x / x`, for which XLA returns 1 also if `x` is 0.
    name, other = _one_of(rng, [("i", "j"), ("j", "i")])
    number = int(rng.integers(-40, 40))
    operation = _one_of(
        rng,
        [
            lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min,
            lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.shift_left,
            lax.shift_right_logical, lax.shift_right_arithmetic,
            lambda x, y: lax.abs(x), lambda x, y: lax.sign(x) + y,
            lambda x, y: lax.clamp(jnp.int32(-50), x, y),
            lambda x, y: lax.population_count(x) + lax.clz(y),
            lambda x, y: lax.integer_pow(x, 3), lambda x, y: x ** (y & 7),
            lambda x, y: x.astype(jnp.int8).astype(jnp.int32),
        ],
    )  # fmt: skip
    if rng.random() < 0.5:
        return lambda s: {name: operation(s[name], jnp.int32(number))}
    return lambda s: {name: operation(s[name], s[other])}


def _word(x):
    return x.astype(jnp.uint32)


def _words(rng):
    by = int(rng.integers(3))
    return _one_of(
        rng,
        [
            lambda s: {"w": s["w"] + jnp.roll(s["w"], by)},
            lambda s: {"w": s["w"] * jnp.uint32(2654435761) ^ _word(s["i"])},
            lambda s: {"w": s["w"] >> (s["w"][by] & 63)},
            lambda s: {"w": s["w"] << jnp.roll(s["w"], by) % 40},
            lambda s: {"w": lax.div(s["w"], jnp.flip(s["w"]) & 7)},
            lambda s: {"w": s["w"].at[s["i"] % 3].add(_word(s["j"]))},
            lambda s: {"w": jnp.full(3, s["w"][s["j"]]) + s["w"]},
            lambda s: {"w": lax.dynamic_update_slice(s["w"], s["w"][:2], (s["i"],))},
            lambda s: {"w": jnp.cumsum(s["w"]), "i": jnp.int32(jnp.argmax(s["w"]))},
            lambda s: {"w": jnp.where(s["b"], s["w"], jnp.max(s["w"]))},
        ],
    )


def _floats(rng):
    by = int(rng.integers(3))
    return _one_of(
        rng,
        [
            lambda s: {"f": jnp.sin(s["f"]) + 0.5 * jnp.roll(s["f"], by)},
            lambda s: {"f": jnp.tanh(s["f"] * 0.5 + (s["i"] % 7).astype(jnp.float32))},
            lambda s: {"f": jnp.where(s["b"], s["f"], -jnp.flip(s["f"]))},
            lambda s: {"f": s["f"].at[s["i"] % 3].set(0.5 * s["f"][by])},
            lambda s: {"f": 0.3 * jnp.exp(-(s["f"] ** 2)) + jnp.max(s["f"])},
            lambda s: {"f": jnp.log1p(jnp.abs(s["f"])) * jnp.sign(s["f"])},
            lambda s: {"f": jnp.stack([s["f"] @ s["f"], s["f"][by], s["f"].sum()]) / 9},
            lambda s: {"f": lax.select_n(s["w"] > 7, s["f"], jnp.cos(s["f"]))},
            lambda s: {"f": lax.pow(jnp.tanh(s["f"]), jnp.full(3, s["i"] & 3))},
            lambda s: {"f": lax.pow(2 + jnp.sin(s["f"]), -(s["w"] & 3).astype("int8"))},
            lambda s: {"f": jnp.sqrt(jnp.abs(s["f"]) + 1) / (1 + s["f"][by] ** 2)},
        ],
    )


def _flag(rng):
    return _one_of(
        rng,
        [
            lambda s: {"b": s["i"] < s["j"]},
            lambda s: {"b": ~s["b"]},
            lambda s: {"b": (s["w"][0] > s["w"][1]) | s["b"]},
            lambda s: {"b": jnp.any(s["w"] % 3 == 0) ^ (s["i"] > 0)},
            lambda s: {"b": jnp.all((s["w"] & 1).astype(bool)) & s["b"]},
        ],
    )


def _branch(rng, depth):
    then, otherwise = _steps(rng, depth, 3), _steps(rng, depth, 3)
    return lambda s: lax.cond(
        s["b"], lambda s: _run(then, s), lambda s: _run(otherwise, s), s
    )


def _switch(rng, depth):
    branches = [_steps(rng, depth, 2) for _ in range(3)]
    run = [lambda s, b=b: _run(b, s) for b in branches]
    return lambda s: lax.switch(s["i"], run, s)


def _fixed_loop(rng, depth):
    body, count = _steps(rng, depth, 3), int(rng.integers(0, 5))
    return lambda s: lax.fori_loop(0, count, lambda _, s: _run(body, s), s)


def _while(rng, depth):
    """Loop for a number of times that differs between points, often zero."""
    body, mask = _steps(rng, depth, 3), int(_one_of(rng, [1, 3, 7]))

    def run(s):
        end = s["j"] & mask
        return lax.while_loop(
            lambda c: (c[0] < end) & (c[1]["i"] != 12345),
            lambda c: (c[0] + 1, _run(body, c[1])),
            (jnp.int32(0), s),
        )[1]

    return run


def _scan(rng, depth):
    """Scan the words several times over, in either direction."""
    body, reverse = _steps(rng, depth, 2), bool(rng.random() < 0.5)
    copies = int(_one_of(rng, [1, 3]))

    def turn(s, row):
        s = _run(body, {**s, "j": s["j"] ^ row.astype(jnp.int32)})
        return s, (s["w"][0] + row, s["f"][0])

    def run(s):
        rows = jnp.tile(s["w"], copies)
        s, (words, floats) = lax.scan(turn, s, rows, reverse=reverse)
        return {**s, "w": words[-3:], "f": (s["f"] + floats[:3]) / 2}

    return run
