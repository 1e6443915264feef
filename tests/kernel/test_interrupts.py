"""Signals stop a kernel in the middle of its loops, and nothing else.

The kernels here take some seconds, so that one that does not stop fails its test.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqx_pipe as ep

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="kernels run to their end there"
)


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    """Let Ctrl-C raise, also in a process in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def slow(x):
    """Take 10 steps below 1, and some seconds above."""
    steps = jnp.where(x < 1, 10, 150_000_000)
    return lax.fori_loop(0, steps, lambda _, y: 0.5 * y + jnp.sin(y), x)


def later(number=signal.SIGINT, seconds=0.3):
    """Send a signal to this process."""
    timer = threading.Timer(seconds, os.kill, [os.getpid(), number])
    timer.start()
    return timer


ERRORS = ValueError, jax.errors.JaxRuntimeError


def is_stopped(call, *args):
    """Return whether a signal that comes stops the kernel of a call."""
    outputs = []
    with pytest.raises(KeyboardInterrupt) as raised:
        try:
            outputs.append(call(*args))
            jax.block_until_ready(outputs)
        except ERRORS:
            time.sleep(5)  # here Python handles the signal, if not before
            raise
    error = raised.value.__context__
    if not isinstance(error, ERRORS):  # JAX handled the signal while it waited
        with pytest.raises(ERRORS) as found:
            jax.block_until_ready(outputs)
        error = found.value
    return "a signal stopped" in str(error)


X = jnp.linspace(0, 0.9, 40)


def test_ctrl_c_stops_a_call_and_not_the_next_one():
    run = jax.jit(jax.vmap(ep.kernel(slow)))
    want = np.asarray(run(X))
    for _ in range(2):
        timer = later()
        assert is_stopped(run, X + 2)
        timer.join()
        np.testing.assert_array_equal(jax.vmap(ep.kernel(slow))(X), want)


def late(x, a):
    """Multiply matrices for some tenths of a second before the kernel begins."""
    a = lax.fori_loop(0, 6, lambda _, a: jnp.tanh(a @ a), a)
    return jax.vmap(ep.kernel(slow))(x + 0 * a[0, 0])


def program_of_its_own(fn):
    """Return a program that is traced, since compiled calls tell nobody they begin."""
    return jax.jit(lambda *args: fn(*args))


def test_kernels_that_begin_long_after_the_signal_stop():
    run, a = program_of_its_own(late), jnp.ones((900, 900))
    jax.block_until_ready(run(X, a))
    timer = later(seconds=0.1)
    assert is_stopped(run, X + 2, a)
    timer.join()


def test_queued_calls_stop():
    run, a = program_of_its_own(late), jnp.ones((900, 900))
    jax.block_until_ready(run(X, a))
    outputs = [run(X + 2, a) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    for out in outputs:
        with pytest.raises(ERRORS, match="a signal"):
            out.block_until_ready()


def test_a_sweep_keeps_what_was_finished():
    space = ep.Space({"x": ep.Values(jnp.linspace(0, 1.2, 1200))})
    fn = ep.kernel(lambda p: slow(p["x"]))
    ep.sweep(fn, {"x": ep.Values(jnp.linspace(0, 0.9, 1200))}, batch_size=10)
    timer = later(seconds=3.0)
    with pytest.raises(KeyboardInterrupt) as error:
        ep.sweep(fn, space, batch_size=10)
    timer.join()
    result = error.value.result
    done = np.asarray(result.ok)
    assert 0 < done.sum() < 1000
    want = jax.vmap(slow)(jnp.linspace(0, 1.2, 1200)[done])
    np.testing.assert_allclose(result.values[done], want, rtol=1e-5)
    again = ep.sweep(fn, space[:1000])
    np.testing.assert_array_equal(again.values[done[:1000]], result.values[done])


def test_a_training_keeps_the_steps_before(tmp_path):
    pytest.importorskip("zarr")
    asked = tmp_path / "asked"

    def steps_of(n):
        """Send a signal in the fifth step, once."""
        late = np.max(n) == 4 and not asked.exists()
        if late:
            asked.touch()
            os.kill(os.getpid(), signal.SIGINT)
        return np.full_like(n, 150_000_000 if late else 10)

    def step(p, carry):
        n, x = carry
        steps = jax.pure_callback(steps_of, n, n, vmap_method="expand_dims")
        loop = lambda n, x: lax.fori_loop(0, n, lambda _, y: jnp.sin(y) + x, x)  # noqa: E731
        return (n + 1, ep.kernel(loop)(steps, x)), None

    training = ep.Training(lambda p: (jnp.int32(0), p["x"]), step)
    args = training, {"x": ep.Values(X[:9])}, 8
    with pytest.raises(KeyboardInterrupt) as error:
        ep.train(*args, every=2, store=tmp_path / "runs")
    stopped = error.value.result
    assert 1 <= stopped.step <= 4 and not stopped.errors
    resumed = ep.train(*args, every=2, store=tmp_path / "runs")
    whole = ep.train(*args, every=2)
    for i in (0, 8):
        assert resumed.carry(i) == whole.carry(i)


class Executor:
    """Threads, which take parts of a sweep when it is over; one is late."""

    def __init__(self, threads):
        self.pool, self.pause = ThreadPoolExecutor(threads), 0.0

    def submit(self, fn, *args):
        future = self.pool.submit(self.run, fn, *args)
        future.cancel = lambda: False
        return future

    def run(self, fn, *args):
        answer = fn(*args)
        pause, self.pause = self.pause, 0.0
        time.sleep(pause)
        return answer


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_an_executor_begin_no_kernel_after_a_signal(threads):
    pytest.importorskip("cloudpickle")
    x, options = jnp.tile(X, 2 * threads), {"batch_size": 5}
    executor = Executor(threads)
    ep.sweep(ep.kernel(slow), ep.Values(x), executor=executor, **options)
    executor.pause = 0.5
    timer = later(seconds=1.0)
    with pytest.raises(KeyboardInterrupt) as error:
        ep.sweep(ep.kernel(slow), ep.Values(x + 2), executor=executor, **options)
    timer.join()
    assert not np.asarray(error.value.result.ok).any()
    got = ep.sweep(ep.kernel(slow), ep.Values(X), executor=executor)
    np.testing.assert_allclose(got.values, jax.vmap(slow)(X), rtol=1e-5)


def test_the_programs_own_descriptor_gets_signals_and_stays():
    mine, other = socket.socketpair()
    mine.setblocking(False)
    other.settimeout(20)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    run = ep.sweeper(ep.kernel(slow), ep.Values(X))
    before = signal.set_wakeup_fd(mine.fileno())
    try:
        jax.vmap(ep.kernel(slow))(X)
        signal.raise_signal(signal.SIGUSR1)
        assert other.recv(1) == bytes([signal.SIGUSR1])
        signal.set_wakeup_fd(mine.fileno())
        run(ep.Values(X))
        assert signal.set_wakeup_fd(mine.fileno()) == mine.fileno()
        signal.raise_signal(signal.SIGUSR1)
        assert other.recv(9) == bytes([signal.SIGUSR1])
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
        mine.close()
        other.close()


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_signal_to_a_fork_is_not_one_to_this_process():
    fn = jax.jit(jax.vmap(ep.kernel(slow)))
    fn(X)
    if not (child := os.fork()):
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.raise_signal(signal.SIGINT)
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(20):
        fn(X)


SCRIPT = """
import concurrent.futures, multiprocessing, signal, sys, warnings
import jax, jax.numpy as jnp
import eqx_pipe as ep

def slow(point):
    step = lambda _, y: 0.5 * y + jnp.sin(y)
    return jax.lax.fori_loop(0, jnp.int32(600_000_000), step, point["x"])

if __name__ == "__main__":
    way, path = sys.argv[1:]
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fn, space, x = ep.kernel(slow), {"x": ep.Linspace(2, 3, 40)}, jnp.ones(40)
    options = {"store": path} if way in ("store", "processes") else {}
    if way == "asyncio":
        import asyncio
        async def run():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
            jax.vmap(fn)({"x": x})
    print("begun", flush=True)
    if way == "jit":
        run = jax.jit(jax.vmap(fn))
        jax.block_until_ready(run({"x": x}))
    elif way == "asyncio":
        asyncio.run(run())
    elif way == "explore":
        method = ep.search.Design([[k / 40] for k in range(40)])
        ep.search.explore(fn, {"x": ep.Uniform(2, 3)}, method, rounds=1, num=40)
    elif way == "processes":
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            ep.sweep(fn, space, executor=pool, **options)
    else:
        ep.sweep(fn, space, **options)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("jit", "SIGINT"),
        ("asyncio", "SIGINT"),
        ("sweep", "SIGINT"),
        ("explore", "SIGINT"),
        ("store", "SIGINT"),
        ("store", "SIGTERM"),
        ("processes", "SIGINT"),
        ("processes", "SIGTERM"),
    ],
)
def test_a_process_ends(tmp_path, way, name):
    script, path = tmp_path / "script.py", tmp_path / "runs.zarr"
    script.write_text(SCRIPT)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(script), way, str(path)]
    child = subprocess.Popen(command, **pipes)
    assert child.stdout.readline() == "begun\n"
    try:  # imports and compilation take some seconds; a kernel takes half a minute
        child.wait(25 if way == "processes" else 10)
    except subprocess.TimeoutExpired:
        child.send_signal(getattr(signal, name))
    try:
        _, err = child.communicate(timeout=15)
    finally:
        child.kill()
    if name == "SIGTERM":
        assert child.returncode == 128 + signal.SIGTERM
    else:  # asyncio has a handler of its own
        text = (
            "a signal stopped the kernel" if way == "asyncio" else "KeyboardInterrupt"
        )
        assert text in err
    if way in ("store", "processes"):
        assert not ep.SweepResult.load(path).ok.any()
