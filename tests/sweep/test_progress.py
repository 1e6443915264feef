"""The progress bar in notebooks, and where no bar can be drawn."""

import collections
import io
import sys
import textwrap
import types
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import nbclient
import nbformat
import numpy as np
import pytest
import tqdm.std

import eqx_pipe as ep

CELL = """
    import jax.numpy as jnp
    import eqx_pipe as ep

    space = ep.Linspace(0, 1, 5)
    ep.sweep(jnp.square, space, batch_size=1)
    print(ep.sweep(jnp.square, space, batch_size=1, progress=True).values)
"""


@pytest.mark.slow
def test_a_notebook_has_a_bar():
    make = nbformat.v4
    cell = make.new_code_cell(textwrap.dedent(CELL))
    book = make.new_notebook(cells=[cell])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    shown = collections.defaultdict(str)
    for output in book.cells[0].outputs:
        shown[output.name] += output.text
    assert shown["stdout"].strip() == "[0.     0.0625 0.25   0.5625 1.    ]"
    assert "5/5" in shown["stderr"] and "Traceback" not in shown["stderr"]


def sweep(**options):
    result = ep.sweep(jnp.square, ep.Linspace(0, 1, 5), batch_size=1, **options)
    assert np.array_equal(result.values, np.linspace(0, 1, 5, dtype="f4") ** 2)


class ZMQInteractiveShell:
    """Named as Jupyter's."""


class Shell(ZMQInteractiveShell):
    """Named as Colab's."""


@pytest.fixture
def slow(monkeypatch):
    """Return a function that sweeps points of half a minute, by a clock of its own."""
    now = [0.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])

    def run(size, **options):
        def fn(x):
            now[0] += 30
            return x

        with jax.disable_jit():  # which calls it at each point
            ep.sweep(fn, ep.Linspace(0, 1, size), **options)

    return run


def test_a_shell_derived_from_that_of_jupyter_is_a_notebook(monkeypatch, capsys, slow):
    shell = types.SimpleNamespace(get_ipython=Shell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    slow(5)
    assert "5/5" in capsys.readouterr().err
    monkeypatch.setattr(shell, "get_ipython", lambda: object())
    slow(5)
    assert not capsys.readouterr().err


class Closed(io.StringIO):
    """A terminal that goes away after some writes."""

    left = 0

    def isatty(self):
        return True

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("lost the terminal")
        return super().write(text)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_lost_terminal_ends_the_bar_and_not_the_sweep(monkeypatch, left):
    stream = Closed()
    stream.left = left
    monkeypatch.setattr(sys, "stderr", stream)
    sweep(progress=True)
    with ThreadPoolExecutor(1) as other:  # which may want a bar of its own
        assert other.submit(lock_of_bars_is_free).result()


def lock_of_bars_is_free():
    locks = tqdm.std.tqdm.get_lock().locks
    taken = [lock.acquire(False) for lock in locks]
    for lock, is_ours in zip(locks, taken, strict=True):
        if is_ours:
            lock.release()
    return all(taken)


@pytest.mark.parametrize("stream", [None, object()])
def test_without_a_terminal_there_is_no_bar(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    sweep()
    sweep(progress=True)


def test_a_log_has_a_line_a_minute_and_one_at_the_end(capsys, slow):
    slow(15, progress=True)
    first, second, *others, last = lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9 and first.startswith("sweep: 0%, 0 of 15 points")
    assert second.startswith("sweep: 13%, 2 of 15 points in 01:00,  0.03 points/s, ")
    assert last == ("sweep: 100%, 15 of 15 points in 07:30,  0.03 points/s, 00:00 left")


def test_failed_points_are_counted(capsys):
    def fn(x):
        return eqx.error_if(x, x < 0.1, "no")

    ep.sweep(fn, ep.Linspace(0, 1, 5), progress=True, on_error="mark", batch_size=1)
    line = capsys.readouterr().err
    assert line.endswith(", failed=1\n") and "5 of 5" in line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_within_another_goes_away(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)

    def fn(x):
        sweep(progress=True)
        return x

    with jax.disable_jit():
        ep.sweep(fn, ep.Linspace(0, 1, 2), progress=True)
    last = stream.getvalue().rstrip().split("\r")[-1]
    assert last.startswith("sweep: 100%") and "2/2" in last
    assert "0/5" in stream.getvalue() and "\x1b[A" in stream.getvalue()


def test_the_bar_says_that_a_program_is_compiled(capsys, monkeypatch):
    monkeypatch.setattr("eqx_pipe._progress._PATIENCE", 0.0)
    ep.sweep(lambda p: p["x"] + 0.125, {"x": ep.Linspace(0, 1, 4)}, progress=True)
    shown = capsys.readouterr().err
    assert "compiling" in shown and "compiling" not in shown.splitlines()[-1]


def test_a_slow_step_is_named_once(caplog, capsys, monkeypatch):
    monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", 0)
    monkeypatch.setattr("eqx_pipe._sweep.work.flight._LONG_STEP", 0.0)

    def epochs(p):
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(x), p["x"])

    for _ in range(2):
        ep.sweep(epochs, {"x": ep.Linspace(0, 1, 4)}, progress=True)
        assert "100%, 4 of 4 points" in capsys.readouterr().err.splitlines()[-1]
    assert caplog.text.count("a step of the loop of `") == 1
    assert "epochs` takes" in caplog.text and "scan over steps" in caplog.text
