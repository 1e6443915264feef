"""The progress bar in notebooks, and where no bar can be drawn."""

import importlib.util
import io
import sys
import textwrap
import types
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import nbclient
import nbformat
import numpy as np
import pytest
import tqdm.std

import eqx_pipe as ep
from eqx_pipe._progress import Progress

CELLS = {
    "no widgets": """
        import importlib, sys, warnings
        import jax.numpy as jnp
        import eqx_pipe as ep

        class Hidden:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name.partition(".")[0] == "ipywidgets":
                    raise ModuleNotFoundError(name)

        def sweep(**options):
            space = ep.Linspace(0, 1, 5)
            print(ep.sweep(jnp.square, space, batch_size=1, **options).values)

        sys.meta_path.insert(0, Hidden)
        sweep()
    """,
    "text": "sweep(progress=True)",
    "widgets": """
        import tqdm.auto, tqdm.autonotebook, tqdm.notebook
        sys.meta_path.remove(Hidden)
        with warnings.catch_warnings(action="ignore"):
            for module in (tqdm.notebook, tqdm.autonotebook, tqdm.auto):
                importlib.reload(module)
        sweep(progress=True)
    """,
    "broken widgets": """
        def broken(*args, **options):
            raise RuntimeError("no front end")
        tqdm.notebook.IProgress = broken
        sweep(progress=True)
    """,
}
VALUES = "[0.     0.0625 0.25   0.5625 1.    ]"


@pytest.mark.slow
def test_a_notebook_has_a_bar_with_and_without_widgets():
    make = nbformat.v4
    cells = [make.new_code_cell(textwrap.dedent(text)) for text in CELLS.values()]
    book = make.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    first, text, widgets, broken = (_by_kind(cell.outputs) for cell in book.cells)
    assert all(VALUES in shown["stdout"] for shown in (first, text, widgets, broken))
    for shown in (text, broken):
        assert "5/5" in shown["stderr"] and "Traceback" not in shown["stderr"]
        assert "widget" not in shown
    if importlib.util.find_spec("ipywidgets"):
        assert "widget" in widgets and "stderr" not in widgets


def _by_kind(outputs):
    """Return the text that a cell printed, and whether it shows a widget."""
    shown = {}
    for output in outputs:
        if output.output_type == "stream":
            shown[output.name] = shown.get(output.name, "") + output.text
        elif any("widget" in kind for kind in output.data):
            shown["widget"] = True
    return shown


def sweep(**options):
    result = ep.sweep(jnp.square, ep.Linspace(0, 1, 5), batch_size=1, **options)
    assert np.array_equal(result.values, np.linspace(0, 1, 5, dtype="f4") ** 2)


class ZMQInteractiveShell:
    """Named as Jupyter's."""


class Shell(ZMQInteractiveShell):
    """Named as Colab's."""


def test_a_shell_derived_from_that_of_jupyter_is_a_notebook(monkeypatch, capfd):
    shell = types.SimpleNamespace(get_ipython=Shell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    # The bar of a quick sweep is not shown, so ask for what would be.
    assert Progress(None, 5).count(64, 1) < 64
    monkeypatch.setattr(shell, "get_ipython", lambda: object())
    assert Progress(None, 5).count(64, 1) == 64


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


def test_a_log_has_a_line_a_minute_and_one_at_the_end(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
    with Progress(True, 1000, 100) as bar:
        for k in range(900):
            now[0] += 0.5
            bar.failed(k // 300)
            bar.done(1)
    first, *_, before, last = lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9 and first.startswith("sweep: 10%, 100 of 1,000 points")
    assert before.startswith(
        "sweep: 94%, 940 of 1,000 points in 07:00,  2.00 points/s, 00:30"
    )
    assert last == (
        "sweep: 100%, 1,000 of 1,000 points in 07:30,  2.00 points/s, "
        "00:00 left, failed=2"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_within_another_goes_away(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(True, 2, title="rounds", unit="rounds") as outer:
        for _ in range(2):
            sweep(progress=True)
            outer.done(1)
    last = stream.getvalue().rstrip().split("\r")[-1]
    assert last.startswith("rounds: 100%") and "2/2" in last
    assert "sweep: " in stream.getvalue() and "\x1b[A" in stream.getvalue()
