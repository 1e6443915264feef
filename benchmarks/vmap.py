"""What does `vmap` cost beside a `lax.scan` of vmapped batches by hand?

Five functions, forward and reverse, on one device and on two: the ratio of times, that
of the same program by hand twice ("again"), and the ratio of temporary memory. The
program by hand has the same batches, `jax.checkpoint`, and `shard_map` on two devices.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

ROUNDS = 20
DEVICES = 2
QUICK = {"lanes": 256, "batch": 32, "block": 0.001}

W = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32) / 4


def rollout(w, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(w @ h), None), x, length=50)[0].sum()


def runge_kutta(w, x):
    def step(y, _):
        slope = w @ y
        return y + 0.01 * (slope + w @ (y + 0.01 * slope)), None

    return jax.lax.scan(step, x, length=50)[0].sum()


FUNCTIONS = {
    "formula": lambda w, x: jnp.sum(jnp.sin(w[0] * x) ** 2),
    "network": lambda w, x: jnp.tanh(w @ jnp.tanh(w @ jnp.tanh(w @ x))).sum(),
    "rollout": rollout,
    "Runge-Kutta": runge_kutta,
    "softmax": lambda w, x: jax.nn.logsumexp(w * x) + jnp.linalg.norm(w @ x),
}


def by_hand(fn, batch, mesh):
    """Return `fn` over the lanes, in batches, as one writes it oneself."""

    def on_device(w, xs):
        rows = xs.reshape(-1, batch, *xs.shape[1:])
        step = jax.checkpoint(jax.vmap(fn, (None, 0)), prevent_cse=False)
        return jax.lax.scan(lambda _, x: (None, step(w, x)), None, rows)[1].reshape(-1)

    if mesh is None:
        return on_device
    specs = {"in_specs": (P(), P("x")), "out_specs": P("x"), "check_vma": False}
    return jax.shard_map(on_device, mesh=mesh, **specs)


def compiled(every, backward, xs):
    def loss(w, xs):
        return every(w, xs).mean()

    program = jax.jit(jax.grad(loss) if backward else every).lower(W, xs).compile()
    return program, program.memory_analysis().temp_size_in_bytes


def main(run, *, lanes=65_536, batch=64, block=0.05):
    xs = jr.normal(jr.key(1), (lanes, 16))
    axis_types = (jax.sharding.AxisType.Auto,)
    two = jax.make_mesh((2,), ("x",), axis_types=axis_types)
    cases = {
        f"{name}, {'reverse' if backward else 'forward'}, {where}": (fn, backward, mesh)
        for name, fn in FUNCTIONS.items()
        for backward in (False, True)
        for where, mesh in (("one device", None), ("two devices", two))
    }
    for case in run.chosen(cases):
        fn, backward, mesh = cases[case]
        ours = ep.vmap(fn, (None, 0), batch_size=batch, mesh=mesh)
        program, temporaries = compiled(ours, backward, xs)
        hand, of_hand = compiled(by_hand(fn, batch, mesh), backward, xs)
        sides = {
            "by hand": lambda hand=hand: hand(W, xs),
            "again": lambda hand=hand: hand(W, xs),
            "vmap": lambda program=program: program(W, xs),
        }
        run.compare(case, sides, to="by hand", least=block)
        run.note(f"{case}: temporaries {temporaries / max(of_hand, 1):.3f}")
