"""Points that take longer than others: small batches, `order_by` or `refill`?

Each way at the batch size that is best for it, of those tried in one pass; then all in
turn. `waste` is how many steps of loops are executed for each one that a point needs.
`order_by` gets the steps that each point takes, as an earlier sweep counts them, or
(`guessed`) those times a number of 0.7 to 1.3.

Loops of 1 to 1,000 steps, 150 on average; Van der Pol's oscillator from easy to stiff
(`mu` from 0.3 to 100) by diffrax; fits by optimistix. `kernel` refuses the last two: a
neural ODE and a master equation, over a range of time scales. Points are in random
order.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

from ._timing import quickest

DEVICES = "all"
ROUNDS = 7
QUICK = {"points": 64, "sizes": (8,), "only": ("sine, random", "optimistix")}


def sine(p):
    """Return the result of a loop of `p["n"]` steps."""
    step = lambda c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1]))  # noqa: E731
    start = jnp.int32(0), p["x"]
    return jax.lax.while_loop(lambda c: c[0] < p["n"], step, start)[1]


def van_der_pol(mu, y):
    return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


def solved(field, end, first_step, start, args, rtol=1e-4):
    """Return the state at the end, by diffrax with adaptive steps."""
    import diffrax

    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        0.0,
        end,
        first_step,
        start,
        args,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-6),
        max_steps=100_000,
        throw=False,
    ).ys[0]


def by_diffrax():
    def field(t, y, mu):
        return van_der_pol(mu, y)

    def fn(p):
        return solved(field, 10.0, None, jnp.stack([p["x"], p["x"]]), p["mu"])

    return fn


def neural_ode():
    import equinox as eqx

    mlp = eqx.nn.MLP(2, 2, 32, 2, jnp.tanh, key=jax.random.key(0))

    def field(t, y, scale):
        return scale * mlp(y) + jnp.stack([y[1], -scale * y[0]])

    def fn(p):
        start = jnp.array([1.0, 0.0])
        return solved(field, 4.0, 0.05, start, p["scale"], rtol=1e-5)

    return fn


def lindblad():
    """Return the photons in a driven cavity that loses some."""
    size = 6
    lower = jnp.diag(jnp.sqrt(jnp.arange(1.0, size)), 1) + 0j
    number, drive = lower.T @ lower, lower + lower.T

    def field(t, parts, scale):
        state = parts[0] + 1j * parts[1]
        energy = number + 0.3 * scale * drive
        change = -1j * (energy @ state - state @ energy)
        change += 0.1 * lower @ state @ lower.T
        change -= 0.05 * (number @ state + state @ number)
        return jnp.stack([change.real, change.imag])

    def fn(p):
        start = jnp.zeros((2, size, size)).at[0, 0, 0].set(1.0)
        end = solved(field, 2.0, 0.05, start, p["scale"])
        return jnp.trace(end[0] @ number.real)

    return fn


def by_optimistix():
    import optimistix as optx

    def loss(y, p):
        return (1 - y[0]) ** 2 + p["mu"] * (y[1] - y[0] ** 2) ** 2

    def fn(p):
        start = jnp.stack([-2 * p["x"], p["x"]])
        solver = optx.BFGS(rtol=1e-4, atol=1e-4)
        return optx.minimise(loss, solver, start, p, max_steps=1000, throw=False).value

    return fn


def cases(points):
    """Yield each case: the package, the function, the points."""
    rng = np.random.default_rng(0)
    trips = rng.exponential(152, 2 * points).astype(np.int32)
    trips = trips[(trips >= 1) & (trips <= 1000)][:points]
    loops = {"n": trips, "x": np.float32(rng.uniform(0.1, 0.9, points))}
    few = points // 4
    mu = np.float32(np.geomspace(0.3, 100, few))
    mixed = {"mu": rng.permutation(mu), "x": np.float32(rng.uniform(0.5, 2, few))}
    yield "sine, random", None, lambda: sine, loops
    yield "diffrax Tsit5, random", "diffrax", by_diffrax, mixed
    yield "optimistix BFGS, random", "optimistix", by_optimistix, mixed
    scale = lambda most, n: {"scale": _log_uniform(rng, 0.1, most, n)}  # noqa: E731
    yield "neural ODE, random", "diffrax", neural_ode, scale(10, few)
    yield "lindblad, random", "diffrax", lindblad, scale(20, few // 4)


def _log_uniform(rng, least, most, size):
    return np.float32(np.exp(rng.uniform(np.log(least), np.log(most), size)))


def ways(run, fn, space, sizes):
    """Return each way as a call that gives a result, with its best size."""
    middle = sizes[(len(sizes) - 1) // 2]
    counted = ep.sweep(fn, space, batch_size=middle, count_steps=True)
    needed = counted.steps.needed.astype(float)
    guess = needed * np.random.default_rng(1).uniform(0.7, 1.3, len(needed))
    sweep = functools.partial(ep.sweep, space=space)
    found = {"auto": (functools.partial(sweep, fn), "auto")}
    most = -(-space.size // jax.device_count())
    for name, of, order_by in (
        ("small batches", fn, None),
        ("order_by", fn, needed),
        ("order_by, guessed", fn, guess),
        ("refill", jax.jit(ep.refill(fn)), None),
    ):
        call = functools.partial(sweep, of, order_by=order_by)
        tried = [s if name != "refill" else 16 * s for s in sizes]
        sides = {
            s: lambda s=s, call=call: call(batch_size=s).values
            for s in {min(s, most) for s in tried}
        }
        found[name] = call, next(iter(quickest(sides, 1, run.clock)))
    return found


def main(run, *, points=16_384, sizes=(8, 32, 128, 512)):
    for case, package, make, arrays in cases(points):
        if not run.chosen([case]) or (package and not run.has(package)):
            continue
        # Under `jit` each is traced once, and not in every sweep.
        fn = jax.jit(make())
        space = ep.Space({k: ep.Values(v) for k, v in arrays.items()}, "zip")
        found = ways(run, fn, space, sizes)
        sides = {
            name: lambda call=call, size=size: call(batch_size=size).values
            for name, (call, size) in found.items()
        }

        def columns(name, times, found=found):
            call, size = found[name]
            if name == "refill":
                return {"batch size": size, "waste": "-"}
            result = call(batch_size=size, count_steps=True)
            return {"batch size": result.batch_size, "waste": f"{result.waste:.2f}"}

        run.compare(case, sides, to="small batches", columns=columns)
