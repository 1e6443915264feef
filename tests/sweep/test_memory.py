"""Batches that do not fit in memory: an automatic size is halved, others raise.

Nothing public makes a program run out of memory at its second call, so the programs of
sweeps are replaced here by fakes that do."""

import math
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sweeps import close

import eqx_pipe as ep
from eqx_pipe import _memory
from eqx_pipe._run import programs
from eqx_pipe._sweep.program import layout, runner
from eqx_pipe._sweep.program.layout import LAST
from eqx_pipe._vmap import batch_size

ONE = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
SPACE = {"x": ep.Linspace(0, 3, 16), "y": ep.Values([1.0, 2.0, 4.0, 8.0])}


def wave(p):
    return {"y": jnp.sin(p["x"]) * p["y"], "n": jnp.int8(3)}


class Memory:
    """Fake programs that run out of memory if a batch is large."""

    def __init__(self):
        self.most, self.before = math.inf, "run"
        self.calls = self.refused = 0
        self.points, self.seconds = 0, 0.0
        """The number of points that were computed."""

    def check(self, now, layout):
        if now == self.before and layout.points_at_once > self.most:
            self.refused += 1
            text = "Out of memory while trying to allocate 3221225472 bytes."
            raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")

    def of(self, build):
        return lambda *args: Program(self, build(*args), args[-1])


class Program(jax.stages.Lowered):
    """A program that is lowered, and then compiled."""

    def __init__(self, memory, real, layout):
        self.memory, self.real, self.layout = memory, real, layout

    def lower(self, *args):
        return Program(self.memory, self.real.lower(*args), self.layout)

    def compile(self, **options):
        self.memory.check("compile", self.layout)
        return Compiled(self.memory, self.real.compile(**options), self.layout)


class Compiled(jax.stages.Compiled):
    def __init__(self, memory, real, layout):
        self.memory, self.real, self.layout = memory, real, layout

    def __call__(self, control, *args):
        self.memory.check("run", self.layout)
        points = int(control[0, LAST]) + 1
        self.memory.points += points
        self.memory.seconds += 100 * points / self.layout.points_at_once
        self.memory.calls += 1
        return self.real(control, *args)


@pytest.fixture
def memory(monkeypatch):
    memory = Memory()
    monkeypatch.setattr(runner, "build", memory.of(runner.build))
    # Programs that other tests have left are not compiled again.
    monkeypatch.setattr(programs, "PROGRAMS", type(programs.PROGRAMS)(128))
    return memory


@pytest.fixture(scope="module")
def expected():
    return ep.sweep(wave, SPACE).values


@pytest.mark.parametrize("before", ["compile", "run"])
def test_an_automatic_size_is_halved(memory, expected, before):
    memory.most, memory.before = 20, before
    result = ep.sweep(wave, SPACE, mesh=ONE)
    close(result.values, expected)
    assert result.ok.all() and memory.points == 64
    assert (result.batch_size, result.made) == (16, (("out_of_memory", "64, 32"),))
    assert result.to_xarray().attrs["out_of_memory"] == "64, 32"
    static = {**SPACE, "y": ep.Static([1.0, 2.0, 4.0, 8.0])}
    again = ep.sweep(wave, static, mesh=ONE, order_by=lambda p: -p["x"])
    close(again.values, expected)  # parts of 16 points each, which fit
    assert again.made == ()


def test_finished_batches_are_not_computed_again(memory, expected, monkeypatch):
    monkeypatch.setattr(layout, "CHUNK_BYTES", 64)  # one batch in a call

    class Shrinking:
        """A limit that applies after the second call."""

        def __lt__(self, size):
            return memory.calls >= 2 and size > 8

    memory.most = Shrinking()
    monkeypatch.setattr(batch_size, "MOST", 16)
    costs = np.arange(64)[::-1]
    for order_by in (None, costs):
        memory.calls = memory.points = 0
        result = ep.sweep(wave, SPACE, mesh=ONE, order_by=order_by)
        close(result.values, expected)
        assert memory.points == 64
        assert (result.batch_size, result.made) == (8, (("out_of_memory", "16"),))


@pytest.mark.parametrize(("size", "before"), [(64, "compile"), (45, "run")])
def test_reductions_halve_to_a_divisor(memory, size, before):
    memory.most, memory.before = 20, before
    reduce = {"sum": ep.reduce.Sum(), "best": ep.reduce.ArgMax(by=lambda x: x)}
    result = ep.sweep(jnp.sin, ep.Linspace(0, 3, size), reduce=reduce, mesh=ONE)
    x = np.sin(np.linspace(0, 3, size, dtype="f4"))
    assert np.allclose(result.values["sum"], x.sum(), rtol=1e-5)
    assert int(result.values["best"].index) == x.argmax()
    assert result.points == size and result.ok.all()
    # Whole batches make a block, so what remains divides what was too large.
    found = {64: (16, "64, 32"), 45: (15, "45")}[size]
    assert (result.batch_size, result.made[0][1]) == found


def test_stores_workers_and_sweepers_halve(memory, expected, tmp_path):
    memory.most = 20
    path = tmp_path / "runs.zarr"
    stored = ep.sweep(wave, SPACE, mesh=ONE, store=path)
    assert stored.batch_size == 16
    close(jax.tree.map(np.asarray, stored.values), expected)
    with ThreadPoolExecutor(2) as pool:
        close(ep.sweep(wave, SPACE, executor=pool).values, expected)
    run = ep.sweeper(wave, SPACE, mesh=ONE)
    refused = []
    for _ in range(3):
        result = run(SPACE)
        assert (result.batch_size, result.made[0][1]) == (16, "64, 32")
        close(result.values, expected)
        refused.append(memory.refused)
    assert refused[0] == refused[2]  # it tries no size twice


def test_an_explicit_size_is_never_changed(memory):
    memory.most = 20
    for isolated in ("raise", "mark"):  # it is not a point that fails
        with pytest.raises(ep.SweepError, match="batch of 32 points.*bytes. Leave"):
            ep.sweep(wave, SPACE, batch_size=32, mesh=ONE, on_error=isolated)
    with pytest.raises(ep.SweepError, match="batch of 32 points .* `batch_size` out"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 64), batch_size=32, reduce=ep.reduce.Sum())
    memory.most = 0
    with pytest.raises(ep.SweepError, match="a batch of 1 point .* hold less at a"):
        ep.sweep(wave, SPACE, mesh=ONE)


@pytest.mark.slow
def test_a_process_with_a_memory_limit():
    """Run out of memory on a CPU, in a process with a limit."""
    program = """
        import resource
        import jax, jax.numpy as jnp
        import eqx_pipe as ep

        ep.use_cpu_devices(1)

        def fn(x):
            return jax.lax.optimization_barrier(jnp.sin(jnp.arange(2**24) * x)).sum()

        space = ep.Linspace(0, 1, 8)
        ep.sweep(fn, space, batch_size=1)
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 2**28,) * 2)
        try:
            ep.sweep(fn, space, batch_size=8)
        except ep.SweepError as error:
            print(error)
        print(ep.sweep(fn, space).made)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "not enough memory for a batch of 8 points" in said
    assert "('out_of_memory', '8" in said


def test_values_larger_than_memory_raise(tmp_path, monkeypatch):
    long, small = ep.Linspace(0, 1, 2**22), ep.Linspace(0, 1, 2**12)
    for function in ("sweep", "sweeper"):
        run = ep.sweep if function == "sweep" else lambda fn, x: ep.sweeper(fn, x)(x)
        with pytest.raises(ValueError, match=rf"`eqx_pipe.{function}`.*GiB of memory"):
            run(lambda p: p[0] + p[1], [long, long])
    limit = tmp_path / "memory.max"  # as in a container
    monkeypatch.setattr(_memory, "_LIMITS", (limit,))
    limit.write_text(f"{2**27}\n")
    with pytest.raises(ValueError, match="1 GiB, and this process may use 0 GiB"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 2**28))
    assert len(ep.sweep(jnp.sin, small)) == 2**12
    limit.write_text("max\n")
    assert len(ep.sweep(jnp.sin, small)) == 2**12
