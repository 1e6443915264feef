"""What does `train` cost beside a `lax.scan` of vmapped steps by hand?

Networks trained by Adam, with small and large carries, on one device: the ratio of
times of an interval of about a second, that of the same program by hand twice
("again"), the ratio of the floating-point operations of a step, and the bytes of the
carries. By hand, the carries stay on the device, and losses come to the host.

The case `digits` trains 64 networks on handwritten digits, 16 rates with 4 seeds, of
which most stop early: by `search.Halving`, and by pruners of Optuna, whose trials run
one after another and share one compiled program for the steps between two reports. The
table has the best accuracy on held-out digits, and the steps computed.
"""

import functools as ft
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
QUICK = {"steps": 3, "only": ("small", "digits")}

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


def flops_of(result):
    """Return the operations of the program of `train`, each loop counted once."""
    ((lanes, carries),) = result._groups
    program, consts = lanes.step.call, lanes.step.consts
    plan = np.int32(0), np.int32(1), np.bool_(False)
    own = lanes.rows.astype(np.int32), *result._columns.values(), *carries
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
    ours = flops_of(result)
    size = sum(x.nbytes for x in jax.tree.leaves(arrays))
    return {
        "train": spread(r for r, _ in ratios),
        "again": spread(r for _, r in ratios),
        "seconds": statistics.median(kept["hand"]),
        "flops": ours / flops,
        "bytes": size,
    }


RUNGS = 50, 100, 200, 400
"""The steps after which the trainings of the digits are compared."""


def digits():
    """Return a training on digits, whose metric is the held-out accuracy."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = jnp.asarray(x, jnp.float32) / 16, jnp.asarray(y)
    train, test = slice(0, 1200), slice(1200, None)

    def init(p, key):
        model = eqx.nn.MLP(64, 10, 64, 1, key=key)
        return model, optax.adam(p["rate"]).init(eqx.filter(model, eqx.is_array))

    def loss_of(model, x, y):
        logits = jax.vmap(model)(x)
        losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)
        return jnp.mean(losses)

    def step(p, carry, key):
        model, state = carry
        rows = jr.randint(key, (64,), train.start, train.stop)
        grads = eqx.filter_grad(loss_of)(model, x[rows], y[rows])
        updates, state = optax.adam(p["rate"]).update(grads, state)
        return (eqx.apply_updates(model, updates), state), None

    def evaluate(p, carry):
        found = jnp.argmax(jax.vmap(carry[0])(x[test]), axis=1)
        return {"accuracy": jnp.mean(found == y[test])}

    return ep.Training(init, step, evaluate)


def by_optuna(training, space, rungs, pruner):
    """Return the best accuracy of Optuna's trials at the points, and their steps."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    @eqx.filter_jit
    def segment(p, carry, own, start, steps):
        def one(i, arrays):
            carry = eqx.combine(arrays, rest)
            carry, _ = training.step(p, carry, jr.fold_in(own, i + 1))
            return eqx.filter(carry, eqx.is_array)

        arrays, rest = eqx.partition(carry, eqx.is_array)
        arrays = jax.lax.fori_loop(start, start + steps, one, arrays)
        carry = eqx.combine(arrays, rest)
        return carry, training.evaluate(p, carry)["accuracy"]

    init, trained = eqx.filter_jit(training.init), []

    def objective(trial):
        i = trial.suggest_int("i", 0, space.size - 1)
        p, own = space.point(i), space.point_key(i, key=jr.key(0))
        carry, start = init(p, jr.fold_in(own, 0)), 0
        for end in rungs:
            begin, steps = jnp.int32(start), jnp.int32(end - start)
            carry, accuracy = segment(p, carry, own, begin, steps)
            start = end
            trial.report(float(accuracy), end)
            if trial.should_prune():
                break
        trained.append(start)
        return float(accuracy)

    study = optuna.create_study(direction="maximize", pruner=pruner)
    for i in range(space.size):
        study.enqueue_trial({"i": i})
    study.optimize(objective, n_trials=space.size)
    return study.best_value, sum(trained)


def against_optuna(run, rungs):
    """Time halving beside the pruners of Optuna."""
    training, found = digits(), {}
    space = ep.Space({"rate": ep.Geomspace(1e-5, 1.0, 16), "seed": ep.Seeds(4)})

    def halving():
        result = ep.train(
            training,
            space,
            rungs[-1],
            every=rungs,
            scheduler=ep.search.Halving("accuracy", 2, "max"),
            key=jr.key(0),
        )
        found["train"] = result.best("accuracy", "max").value, result.trained.sum()

    def pruned(name, pruner):
        found[name] = by_optuna(training, space, rungs, pruner())

    sides = {"train": halving}
    if run.has("optuna"):
        from optuna.pruners import (
            HyperbandPruner,
            MedianPruner,
            SuccessiveHalvingPruner,
        )

        pruners = {
            "MedianPruner": ft.partial(MedianPruner, n_warmup_steps=rungs[0]),
            "HyperbandPruner": ft.partial(
                HyperbandPruner, rungs[0], rungs[-1], reduction_factor=2
            ),
            "SuccessiveHalvingPruner": ft.partial(
                SuccessiveHalvingPruner, rungs[0], reduction_factor=2
            ),
        }
        sides |= {k: ft.partial(pruned, k, pruner) for k, pruner in pruners.items()}

    def columns(side, times):
        accuracy, steps = found[side]
        return {"accuracy": float(accuracy), "steps": int(steps)}

    run.compare("digits", sides, "train", columns=columns)


def main(run, *, steps=0):
    """Measure each case; `steps` replaces the length of its intervals."""
    for case in run.chosen([*CASES, "digits"]):
        if case == "digits":
            against_optuna(run, tuple(k * steps for k in (1, 2)) if steps else RUNGS)
        elif case in CASES:
            width, lanes, usual = CASES[case]
            run.row(case=case, **measured(width, lanes, steps or usual, run.rounds))
