"""What does `train` cost beside a `lax.scan` of vmapped steps by hand?

Networks trained by Adam, with small and large carries, on one device: the ratio of
times of an interval of about a second, that of the same program by hand twice
("again"), the ratio of the floating-point operations of a step, and the bytes of the
carries. By hand, the carries stay on the device, and losses come to the host.
"""

import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import eqx_pipe as ep

from ._timing import spread

ROUNDS = 15
DEVICES = 1
QUICK = {"steps": 3}

CASES = {"small": (64, 64, 300), "large": (256, 32, 12)}
"""The width of the networks, the number of trainings, and the steps of an interval."""

X = np.random.default_rng(0).normal(size=(256, 16)).astype(np.float32)
Y = np.sin(X).sum(1)


def training_of(width):
    def init(p, key):
        model = eqx.nn.MLP(16, "scalar", width, 2, key=key)
        return model, optax.adam(p["rate"]).init(eqx.filter(model, eqx.is_array))

    def step(p, carry, key):
        model, state = carry
        rows = jr.randint(key, (32,), 0, len(X))

        def loss_of(model):
            out = jax.vmap(model)(jnp.asarray(X)[rows])
            return jnp.mean((out - jnp.asarray(Y)[rows]) ** 2)

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = optax.adam(p["rate"]).update(grads, state)
        return (eqx.apply_updates(model, updates), state), {"loss": loss}

    return ep.Training(init, step)


def by_hand(training, space, key, steps):
    """Return the first carries and the program of an interval, as one writes it."""
    numbers = jnp.arange(space.size)
    points = jax.vmap(space.point)(numbers)
    keys = jax.vmap(lambda i: space.point_key(i, key=key))(numbers)
    begin = eqx.filter_vmap(lambda p, own: training.init(p, jr.fold_in(own, 0)))
    arrays, rest = eqx.partition(begin(points, keys), eqx.is_array)

    def lane(p, own, arrays, start):
        def one(arrays, k):
            carry = eqx.combine(arrays, rest)
            carry, metrics = training.step(p, carry, jr.fold_in(own, k + 1))
            return eqx.filter(carry, eqx.is_array), metrics["loss"]

        return jax.lax.scan(one, arrays, start + jnp.arange(steps))

    every = jax.vmap(lane, (0, 0, 0, None))
    program = jax.jit(lambda arrays, start: every(points, keys, arrays, start))
    return arrays, program


def flops_of(lanes):
    """Return the operations of the program of `train`, each loop counted once."""
    _, program, consts = lanes._programs["step"]
    plan = np.int32(0), np.int32(1), np.int32(1), np.bool_(False)
    own = lanes.rows.astype(np.int32), *lanes.columns.values(), *lanes.carries
    return program.lower(*consts, *own, *plan).compile().cost_analysis()["flops"]


def measured(width, lanes, steps, rounds):
    """Return the ratios of times, and of the operations of a step."""
    training, key = training_of(width), jr.key(0)
    space = ep.Space({"rate": ep.Geomspace(1e-4, 1e-2, lanes)})
    arrays, program = by_hand(training, space, key, steps)
    flops = program.lower(arrays, 0).compile().cost_analysis()["flops"]
    times: dict[str, list[float]] = {"train": [], "hand": [], "again": []}
    last = time.perf_counter()

    def callback(result):
        nonlocal last, arrays
        times["train"].append(time.perf_counter() - last)
        for name in ("hand", "again"):
            begun = time.perf_counter()
            arrays, losses = program(arrays, result.step - steps)
            np.asarray(losses)
            times[name].append(time.perf_counter() - begun)
        last = time.perf_counter()

    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    warm = 6  # the first calls compile, and are short
    options = {"every": steps, "key": key, "mesh": mesh, "log_every": 1}
    result = ep.train(
        training, space, steps * (rounds + warm), callback=callback, **options
    )
    kept = {name: some[warm:] for name, some in times.items()}
    pairs = zip(kept["train"], kept["hand"], kept["again"], strict=True)
    ratios = [(ours / hand, again / hand) for ours, hand, again in pairs]
    ours = flops_of(result._groups[0])
    size = sum(x.nbytes for x in jax.tree.leaves(arrays))
    return {
        "train": spread(r for r, _ in ratios),
        "again": spread(r for _, r in ratios),
        "seconds": statistics.median(kept["hand"]),
        "flops": ours / flops,
        "bytes": size,
    }


def main(run, *, steps=0):
    """Measure each case; `steps` replaces the length of its intervals."""
    for case in run.chosen(CASES):
        width, lanes, usual = CASES[case]
        run.row(case=case, **measured(width, lanes, steps or usual, run.rounds))
