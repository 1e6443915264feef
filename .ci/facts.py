"""Facts about programs that are compiled for devices which are not here.

    JAX_PLATFORMS=cpu python .ci/facts.py tpu|gpu [--short] [--break] [NAME ...]

Each case compiles a program with the library and checks it against a program by hand,
or against a number that follows from the sizes of its arrays. `--short` takes ten cases
on one chip. `--break` compiles, for each fact, a program that violates it, and fails
unless the fact notices. Facts are counts and ratios; none is a time.
"""

import dataclasses
import functools as ft
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"
# A cache of programs cannot read those of devices that are not here.
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
# Equinox reports errors by callbacks, which the compilers of devices do not support.
os.environ.setdefault("EQX_ON_ERROR", "nan")

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import eqx_pipe as ep  # noqa: E402
from eqx_pipe._compiled import plan_of_program  # noqa: E402

KIND = sys.argv[1]
ONE = ep.topology({"tpu": "v5e", "gpu": "h100"}[KIND])
EIGHT = ep.topology({"tpu": "v5e:2x4", "gpu": "h100:8"}[KIND])


@dataclasses.dataclass
class Case:
    """A program, and what is known of it.

    `most_bytes` is the memory accessed by hand, times a factor; `trips` are the steps
    of loops that a GPU has to know, and `dynamic` the most loops whose steps it asks
    for. `kernels` is the largest number of kernels of a step of the innermost loop.
    """

    plan: ep.ProgramPlan
    gathers: int = 0
    scatters: int = 0
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)
    most_bytes: float | None = None
    most_temporary: float | None = None
    trips: tuple[int, ...] = ()
    dynamic: int = 1
    kernels: int | None = None
    wide: bool = False

    def broken(self) -> list[str]:
        """Return the facts that do not hold."""
        plan, known = self.plan, [steps for steps, _ in self.plan.loops]
        on_gpu = KIND == "gpu"  # text for a TPU does not contain the steps of loops
        facts = {
            f"{plan.gathers} gathers": plan.gathers <= self.gathers,
            f"{plan.scatters} scatters": plan.scatters <= self.scatters,
            f"collectives {plan.collectives}": plan.collectives == self.collectives,
            f"{plan.callbacks} callbacks": plan.callbacks == 0,
            "64 bits": plan.wide == self.wide,
            f"{plan.accessed_bytes} bytes": self.most_bytes is None
            or plan.accessed_bytes is None
            or plan.accessed_bytes <= self.most_bytes,
            f"{plan.temporary_bytes} temporary bytes": self.most_temporary is None
            or plan.temporary_bytes <= self.most_temporary,
            f"trips {plan.loops}": not on_gpu or all(n in known for n in self.trips),
            f"dynamic loops {plan.loops}": not on_gpu
            or sum(n is None for n in known) <= self.dynamic,
            f"kernels {plan.loops}, by hand {self.kernels}": self.kernels is None
            or step_kernels(plan) <= self.kernels,
        }
        return [text for text, holds in facts.items() if not holds]


CASES: dict[str, Callable[[], Case]] = {}
SHORT: set[str] = set()


def case(make: Callable[[], Case], short: bool = False) -> Callable[[], Case]:
    """Register a case by its name."""
    CASES[make.__name__] = make
    if short:
        SHORT.add(make.__name__)
    return make


def step_kernels(plan: ep.ProgramPlan) -> int:
    """Return the kernels of a step of the innermost loop, which comes first."""
    return plan.loops[0][1] if plan.loops else plan.kernels


def sweep(fn: Any, space: Any, mesh: Mesh = ONE, **options: Any) -> ep.ProgramPlan:
    """Return the program of a sweep."""
    plan = ep.plan(fn, space, mesh=mesh, compiled=True, **options).program
    assert plan is not None
    return plan


def floats(*shape: int, spec: Any = None, mesh: Mesh = ONE) -> jax.ShapeDtypeStruct:
    """Return the type of an array."""
    sharding = NamedSharding(mesh, P() if spec is None else spec)
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


# ---- models


def formula(p):
    return jnp.sin(p["a"] * 1.7) * p["b"]


def logistic(p):
    return jax.lax.fori_loop(0, 100, lambda _, x: 3.1 * p["b"] * x * (1 - x), p["a"])


def lorenz(p, steps=1000):
    def f(y):
        x, y, z = y
        return jnp.array([10 * (y - x), x * (p["a"] * 21 - z) - y, x * y - 8 / 3 * z])

    def step(_, y):
        h = 0.01 * p["b"]
        k1 = f(y)
        k2 = f(y + h / 2 * k1)
        k3 = f(y + h / 2 * k2)
        k4 = f(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return jax.lax.fori_loop(0, steps, step, jnp.array([1.0, 0.0, 0.0]))


def waiting(p):
    return jax.lax.while_loop(lambda x: x < p["b"], lambda x: 2.7 * x + 1, p["a"])


def perceptron(w, x):
    return jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]).sum()


GRID = {"a": ep.Linspace(0, 1, 1000), "b": ep.Linspace(1, 2, 1000)}
NUMBER = 4 * 10**6  # the bytes of a number for each point of GRID
WEIGHTS = floats(32, 64), floats(64, 8)

# ---- sweeps: bytes by hand are a column of values for each axis, and the output


@ft.partial(case, short=True)
def formula_on_a_grid():
    return Case(sweep(formula, GRID), most_bytes=1.5 * 3 * NUMBER)


@case
def formula_on_eight():
    return Case(sweep(formula, GRID, EIGHT), most_bytes=1.5 * 3 * NUMBER / 8)


@ft.partial(case, short=True)
def three_axes():
    space = {f"x{k}": ep.Linspace(0, 1, 100) for k in range(3)}
    plan = sweep(lambda p: jnp.sin(p["x0"]) * p["x1"] + p["x2"], space)
    return Case(plan, most_bytes=1.5 * 4 * NUMBER)


@case
def four_axes_of_odd_lengths():
    lengths = {"w": 31, "x": 37, "y": 29, "z": 31}
    space = {name: ep.Linspace(0, 1, n) for name, n in lengths.items()}
    plan = sweep(lambda p: p["w"] * p["x"] + p["y"] * p["z"], space)
    return Case(plan, most_bytes=1.5 * 5 * 4 * 31 * 37 * 29 * 31)


@case
def a_short_inner_axis():
    space = {"a": ep.Linspace(0, 1, 250_000), "b": ep.Values(np.arange(4.0))}
    return Case(sweep(formula, space), most_bytes=1.5 * 3 * NUMBER)


@case
def a_prime_axis():
    plan = sweep(lambda p: p["a"] * 2, {"a": ep.Linspace(0, 1, 1_000_003)})
    return Case(plan, most_bytes=1.51 * 2 * NUMBER)


@ft.partial(case, short=True)
def zipped_axes():
    numbers = np.linspace(0, 1, 1000, dtype=np.float32)
    space = {
        "a": ep.Values(numbers, dim="t"),
        "c": ep.Values(numbers**2, dim="t"),
        "b": ep.Linspace(1, 2, 1000),
    }
    plan = sweep(lambda p: jnp.sin(p["a"] + p["c"]) * p["b"], space)
    return Case(plan, most_bytes=1.5 * 4 * NUMBER)


@case
def a_part_of_a_grid():
    space = ep.Space({"a": ep.Linspace(0, 1, 1000), "b": ep.Linspace(1, 2, 2000)})
    plan = sweep(formula, space[123_457:1_123_457])
    return Case(plan, most_bytes=1.5 * 3 * NUMBER)


@case
def mapped_and_random_axes():
    mapped = ep.Mapped(jnp.exp, ep.Linspace(0, 1, 1000))
    axes = {"a": mapped, "b": ep.Random(jr.normal, 1000)}
    return Case(sweep(formula, ep.Space(axes, key=jr.key(1))))


@case
def vectors_as_values():
    vectors = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    space = {"a": ep.Values(vectors), "b": ep.Linspace(1, 2, 1000)}
    plan = sweep(lambda p: (p["a"] * p["b"]).sum(), space)
    # Numbers of a lane are not padded to the 128 of a row.
    return Case(plan, most_bytes=1.5 * 24 * NUMBER, most_temporary=NUMBER)


@ft.partial(case, short=True)
def keys_of_points():
    plan = sweep(lambda p, key: jr.normal(key, (3,)) * p["a"], GRID, key=jr.key(0))
    return Case(plan)


def by_hand(fn):
    """Compile a function of a point under `jax.vmap`, without a sweep."""
    lanes = jax.vmap(lambda a, b: fn({"a": a, "b": b}))
    return ep.program(lanes, floats(2**20), floats(2**20), mesh=ONE)


@ft.partial(case, short=True)
def a_loop():
    kernels = step_kernels(by_hand(logistic))
    return Case(sweep(logistic, GRID), trips=(100,), kernels=kernels)


@ft.partial(case, short=True)
def a_long_loop():
    # Runge-Kutta steps are in pieces of 50, so that a call may end between two.
    kernels = step_kernels(by_hand(lorenz)) + 1  # a copy
    facts = {"kernels": kernels, "most_bytes": 0.7e9}
    return Case(sweep(lorenz, GRID), trips=(50,), dynamic=2, **facts)


@case
def a_long_loop_of_prime_length():
    plan = sweep(lambda p: lorenz(p, 997), GRID)
    return Case(plan, trips=(64, 997 % 64), dynamic=2)


@case
def a_loop_that_waits():
    return Case(sweep(waiting, GRID, EIGHT), dynamic=2)


@case
def a_mean():
    plan = sweep(formula, GRID, reduce=ep.reduce.Mean())
    return Case(plan, most_bytes=20e6, dynamic=2)


@ft.partial(case, short=True)
def a_histogram():
    plan = sweep(formula, GRID, reduce=ep.reduce.Histogram(np.linspace(0, 2, 72)))
    return Case(plan, most_bytes=20e6, dynamic=2)


@case
def a_histogram_of_many_bins():
    plan = sweep(formula, GRID, reduce=ep.reduce.Histogram(np.linspace(0, 2, 513)))
    return Case(plan, most_bytes=20e6, dynamic=2)


@case
def listed_points():
    # Points that are sorted by cost are listed with their values.
    plan = sweep(waiting, GRID, order_by=lambda p: p["a"])
    return Case(plan, most_bytes=1.5 * 8 * NUMBER, dynamic=2)


@case
def failing_points():
    return Case(sweep(formula, GRID, on_error="mark"), most_bytes=1.5 * 3 * NUMBER)


@case
def a_solver():
    import diffrax

    def solve(p):
        term = diffrax.ODETerm(lambda t, y, _: -p["a"] * y)
        made = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, p["b"],
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4),
        )  # fmt: skip
        return made.ys[0]

    # Its own loop depends on values, in a batch and in one lane.
    return Case(sweep(solve, GRID), gathers=8, scatters=8, dynamic=3)


# ---- vmap


def total(w, xs, mesh=None, batch_size="auto"):
    lanes = ep.vmap(perceptron, in_axes=(None, 0), mesh=mesh, batch_size=batch_size)
    return lanes(w, xs).sum()


@ft.partial(case, short=True)
def vmap_forward():
    return Case(ep.program(total, WEIGHTS, floats(2**18, 32), mesh=ONE))


@ft.partial(case, short=True)
def vmap_gradient():
    # Temporaries of a gradient do not grow with the lanes.
    gradient = jax.grad(ft.partial(total, batch_size=2**14))
    few, many = (
        ep.program(gradient, WEIGHTS, floats(n, 32), mesh=ONE) for n in (2**17, 2**20)
    )
    most = 1.1 * few.temporary_bytes + 2**20
    return Case(many, most_temporary=most, dynamic=2)


@case
def vmap_gradient_on_eight():
    w = tuple(floats(*x.shape, mesh=EIGHT) for x in WEIGHTS)
    xs = floats(2**20, 32, spec=P("devices"), mesh=EIGHT)
    gradient = jax.grad(ft.partial(total, mesh=EIGHT))
    plan = ep.program(gradient, w, xs, mesh=EIGHT)
    return Case(plan, collectives={"all-reduce": 1}, dynamic=2)


@case
def gated_and_cond_in_lanes():
    layer = eqx.nn.Linear(16, 16, key=jr.key(0))
    gates = (lambda x: x.sum() > 0, lambda x: x[0] > 0)
    stage = ep.chain(
        ep.gated(layer, jnp.tanh, gates=gates),
        ep.cond(lambda x: x[0] > 0, layer, jnp.tanh),
    )
    plan = ep.program(jax.vmap(lambda x: stage(x)), floats(2**16, 16), mesh=ONE)
    return Case(plan)


# ---- several devices


@case
def pipelined_stages():
    stack = ep.repeat(
        lambda key: ep.batched(eqx.nn.Linear(256, 256, key=key)), 8, key=jr.key(0)
    )
    pipe = ep.sharding.pipelined(stack, EIGHT, 8)
    args = pipe, floats(64, 256, mesh=EIGHT)
    plan = ep.program(lambda pipe, x: pipe(x), *args, mesh=EIGHT)
    # A tick hands a microbatch on; the compiler does so in two halves of the loop. At
    # the end all devices get the output.
    return Case(plan, collectives={"all-reduce": 1, "collective-permute": 2})


def by_names():
    return Mesh(EIGHT.devices.reshape(2, 4), ("data", "model"))


@case
def a_parallelized_loss():
    def loss(w, x):
        return jnp.sum(ep.sharding.constrain(x @ w, "batch", None) ** 2)

    batch = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
    mesh, rules = by_names(), {"batch": "data"}
    parallel, _ = ep.sharding.parallelize(
        jax.grad(loss),
        init_params=jnp.ones,
        initial_batch=batch,
        mesh=mesh,
        rules=rules,
    )
    made = parallel.compiled(jax.ShapeDtypeStruct((256, 64), jnp.float32), batch)
    # The sum of the gradients over the data.
    plan = plan_of_program(made, 0.0, EIGHT.devices.flat[0].platform)
    return Case(plan, collectives={"all-reduce": 1})


@case
def a_transformer_by_logical_axes():
    rules = ep.sharding.AxisRules(
        [("batch", "data"), ("hidden", "model"), ("heads", "model")]
    )
    mesh, constrain = by_names(), ep.sharding.constrain

    def make(key):
        shapes = {"qkv": (3, 8, 256, 32), "out": (8, 32, 256)}
        shapes |= {"up": (256, 1024), "down": (1024, 256)}
        return {k: 0.02 * jr.normal(key, shape) for k, shape in shapes.items()}

    specs = {
        "qkv": P(None, "model"),
        "out": P("model"),
        "up": P(None, "model"),
        "down": P("model"),
    }
    model = ep.sharding.init_sharded(make, jr.key(0), mesh, specs)

    def block(w, x):
        q, k, v = jnp.einsum("btd,shde->sbhte", x, w["qkv"])
        scores = constrain(
            jnp.einsum("bhte,bhse->bhts", q, k), "batch", "heads", None, None
        )
        mixed = jnp.einsum("bhts,bhse->bhte", jax.nn.softmax(scores), v)
        x = x + constrain(
            jnp.einsum("bhte,hed->btd", mixed, w["out"]), "batch", None, None
        )
        up = constrain(jax.nn.gelu(x @ w["up"]), "batch", None, "hidden")
        return x + constrain(up @ w["down"], "batch", None, None)

    def step(w, x):
        with rules.on(mesh):
            loss, grads = jax.value_and_grad(lambda w: jnp.mean(block(w, x) ** 2))(w)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), loss

    x = jax.ShapeDtypeStruct(
        (16, 64, 256), jnp.float32, sharding=NamedSharding(mesh, P("data"))
    )
    # Two sums over the model forward, two backward, and those of gradients over data.
    plan = ep.program(step, model, x, mesh=mesh)
    return Case(plan, collectives={"all-reduce": 4})


# ---- trainings


@ft.cache
def training():
    import optax

    x = jr.uniform(jr.key(0), (1024, 2))
    y = jnp.sin(2 * x[:, 0]) * x[:, 1]

    def init(p, key):
        model = eqx.nn.MLP(2, "scalar", 32, 2, key=key)
        return model, optax.adam(p["rate"]).init(eqx.filter(model, eqx.is_array))

    def step(p, carry, key):
        model, state = carry
        rows = jr.randint(key, (64,), 0, 768)

        def loss(model):
            return jnp.mean((jax.vmap(model)(x[rows]) - y[rows]) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optax.adam(p["rate"]).update(grads, state)
        return (eqx.apply_updates(model, updates), state), {"loss": value}

    return ep.Training(init, step)


RATES = {"rate": ep.Geomspace(1e-4, 1e-1, 8), "seed": ep.Seeds(8)}
# The rows of a batch are gathered from the data, and their gradients not scattered.
ROWS = {"gathers": 6}


@ft.partial(case, short=True)
def a_step_of_64_trainings():
    plan = ep.plan_train(training(), RATES, key=jr.key(0), mesh=ONE)
    return Case(plan, trips=(64,), dynamic=2, **ROWS)


@case
def a_step_of_trainings_on_eight():
    plan = ep.plan_train(training(), RATES, key=jr.key(0), mesh=EIGHT)
    return Case(plan, trips=(64,), dynamic=2, **ROWS)


# ---- data


@ft.cache
def loader():
    # Images as those of CIFAR-10, stored as on the device that is not here.
    images = np.zeros((50_000, 32, 32, 3), np.uint8)
    with mock.patch("eqx_pipe._data.source.default_devices", lambda: [ONE.devices[0]]):
        source = ep.data.ArraySource({"x": images})
    loader = ep.data.Loader(source, batch_size=128)
    return loader, loader.init(jr.key(0))


# A batch is one gather of whole rows, and its images are written in two layouts: the
# data, 154 MB, is not copied. The permutation walks along cycles until it arrives at a
# record, in a loop whose length is data; on a GPU, which would ask the host at each of
# its steps, it is looked up.
BATCHES = {"most_bytes": 20 * 128 * 3072, "most_temporary": 4 * 128 * 3072}
BATCHES |= {"dynamic": 0, "gathers": {"tpu": 1, "gpu": 3}[KIND]}


@case
def the_next_batch():
    plan = ep.program(lambda loader, at: loader.next(at), *loader(), mesh=ONE)
    return Case(plan, **BATCHES)


@case
def a_scan_over_batches():
    def step(carry, batch):
        return carry + batch["x"].astype(jnp.float32).mean(), None

    def run(loader, cursor):
        return loader.scan(step, jnp.float32(0), cursor, 100)

    plan = ep.program(run, *loader(), mesh=ONE)
    return Case(plan, trips=(100,), **BATCHES)


# ---- facts, broken on purpose


def broken_on_purpose() -> dict[str, Callable[[], Case]]:
    """Return for each fact a program that violates it; the name is in its text."""
    numbers = floats(2**16)
    table, index = floats(4096, 4), jax.ShapeDtypeStruct((4096,), jnp.int32)
    sharded = floats(2**16, spec=P("devices"), mesh=EIGHT)

    def called_back(x):
        return jax.pure_callback(np.sin, x, x, vmap_method="expand_dims")

    def dynamic(x, n):
        return jax.lax.fori_loop(0, n, lambda _, x: jnp.sin(x), x)

    def program(*args, mesh=ONE, **facts):
        return lambda: Case(ep.program(*args, mesh=mesh), **facts)

    def wide():
        with jax.enable_x64(True):
            return Case(ep.program(lambda x: x.astype(jnp.float64) * 1.1, numbers))

    plain = jax.grad(lambda w, xs: jax.vmap(perceptron, (None, 0))(w, xs).sum())
    steps = jax.ShapeDtypeStruct((), jnp.int32)
    facts = {
        "gathers": program(lambda x, i: x[i], table, index),
        "scatters": program(lambda x, i: x.at[i].add(1.0), table, index),
        "collectives": program(lambda x: x.sum(), sharded, mesh=EIGHT),
        "64 bits": wide,
        "callbacks": program(called_back, numbers),
        "bytes": lambda: Case(sweep(formula, GRID), most_bytes=NUMBER),
        "temporary": program(plain, WEIGHTS, floats(2**20, 32), most_temporary=2**20),
        "kernels": program(dynamic, numbers, steps, kernels=0, dynamic=9),
    }
    if KIND == "gpu":
        facts["trips"] = program(dynamic, numbers, steps, trips=(100,), dynamic=9)
        facts["dynamic"] = program(dynamic, numbers, steps, dynamic=0)
        del facts["bytes"]  # the compiler gives no estimate
    return facts


def main() -> int:
    names = [x for x in sys.argv[2:] if not x.startswith("--")]
    if "--break" in sys.argv:
        wrong = 0
        for name, make in broken_on_purpose().items():
            try:
                found = make().broken()
            except Exception as error:  # the compiler itself refuses callbacks
                found = [f"{name}: {str(error).splitlines()[0]}"] * (
                    name == "callbacks"
                )
            noticed = any(name in text for text in found)
            wrong += not noticed
            print("noticed" if noticed else "MISSED ", name, found, flush=True)
        return wrong
    some = SHORT if "--short" in sys.argv else CASES.keys()
    wrong, begun = 0, time.perf_counter()
    for name, make in CASES.items():
        if name not in (names or some):
            continue
        try:
            made = make()
            found, plan = made.broken(), made.plan
            text = f"{plan.gathers} gathers, accessed {plan.accessed_bytes}, temporary "
            text += f"{plan.temporary_bytes}, loops {plan.loops}, {plan.collectives}"
        except Exception as error:
            found, text = [f"{type(error).__name__}: {str(error)[:300]}"], ""
        wrong += bool(found)
        print("BAD " if found else "ok  ", name, *found, text, flush=True)
    print(f"{time.perf_counter() - begun:.0f} s on {KIND}")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
