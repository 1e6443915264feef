"""The benchmarks: their list, their statistics, and that all of them run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import plain_flags

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


def python(*args):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": plain_flags()}
    return subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_the_list_names_every_benchmark_and_its_question():
    """Without importing JAX or a peer, which take seconds or are not there."""
    code = (
        "import sys\n"
        "from benchmarks.__main__ import main\n"
        "main([])\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = python("-c", code)
    *lines, modules = done.stdout.splitlines()
    assert not {"jax", "equinox", "eqx_pipe", "numpy"} & set(modules.split()), (
        done.stderr
    )
    listed = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    scripts = {p.stem for p in FOLDER.glob("*.py") if not p.name.startswith("_")}
    assert listed.keys() == scripts
    assert all(question.endswith("?") for question in listed.values()), listed
    for name in scripts:
        text = (FOLDER / f"{name}.py").read_text()
        assert re.search(r"def main\(\s*run", text), name
        assert f"| `{name}` | {listed[name]} |" in (FOLDER / "README.md").read_text()


def test_an_unknown_name_is_answered_by_the_known_ones():
    done = python("-m", "benchmarks", "sweep_piers")
    assert done.returncode == 2 and "sweep_peers" in done.stderr


def test_ratios_are_of_the_same_round():
    from benchmarks._timing import Spread, beyond, ratio, spread, within

    assert spread([5, 1, 2, 4, 100]) == (4, 2)
    times = {"ours": [2.0, 6.0, 3.0, None], "by hand": [1.0, 2.0, 3.0, 0.5]}
    assert ratio(times, "ours", "by hand") == (2, 1)
    assert beyond(times, "ours", "by hand") == (1, 1)
    assert within(Spread(1.2, 0.1), 1.1) and not within(Spread(1.2, 0.05), 1.1)


def test_sides_take_turns_and_slow_ones_few():
    from benchmarks._timing import interleaved

    now, calls = 0.0, []

    def side(name, takes):
        def run():
            nonlocal now
            now += takes
            calls.append(name)

        return run

    sides = {"a": side("a", 1.0), "b": side("b", 3.0), "c": side("c", 2.0)}
    times = interleaved(sides, 11, clock=lambda: now, seldom={"b"})
    assert times["a"] == [1.0] * 11 and times["c"] == [2.0] * 11
    assert times["b"] == [3.0] + 9 * [None] + [3.0]
    assert "".join(calls[:8]) == "abc" + "bca" + "ca"  # one call each to warm up


def test_a_run_says_what_is_left_out_and_keeps_its_table(tmp_path, capsys):
    from benchmarks._report import Run, Spread

    file = tmp_path / "results" / "some.json"
    run = Run("some", "python -m benchmarks some", 2, only=["few"], json=file)
    assert run.chosen(["many", "few", "a few"]) == ["few", "a few"]
    assert not run.has("a_peer_that_is_not_there") and run.has("numpy")
    run.row(case="few", side="ours", time=1e-3, over=Spread(1.25, 0.5))
    run.bar("ours over by hand", Spread(1.25, 0.01), 1.1)
    run.end()
    assert run.failed
    printed = capsys.readouterr().out
    assert "$ python -m benchmarks some\n" in printed
    assert "left out: a_peer_that_is_not_there, which is not installed" in printed
    assert "1.00 ms" in printed and "1.250 (0.500)" in printed and "ABOVE" in printed
    kept = json.loads(file.read_text())
    assert {"command", "date", "device", "versions", "rounds", "notes"} < kept.keys()
    assert kept["versions"].keys() == {"python", "jax", "equinox", "numpy"}
    over = {"median": 1.25, "deviation": 0.5}
    assert kept["rows"] == [{"case": "few", "side": "ours", "time": 1e-3, "over": over}]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("[a-z]*.py")))
def test_every_benchmark_runs(tmp_path, name):
    """Run each with tiny sizes; peers that are not installed are left out."""
    file = tmp_path / f"{name}.json"
    done = python("-m", "benchmarks", name, "--quick", "--json", str(file))
    assert not done.returncode, done.stdout[-2000:] + done.stderr
    record = json.loads(file.read_text())
    assert record["rows"]
    if name == "gpu":
        check_gpu(record, file.with_suffix(".md").read_text())


def check_gpu(record, table):
    """Check that every job has rows, and that the table has each of them."""
    from benchmarks.gpu import JOBS

    assert sum(seconds for seconds, _ in JOBS.values()) <= 20 * 60
    assert [*dict.fromkeys(row["job"] for row in record["rows"])] == [*JOBS][1:]
    assert {"device", "driver", "date"} < record.keys() and not record["missing"]
    lines = table.splitlines()
    assert record["device"] in lines[0] and record["date"] in lines[0]
    assert len(lines) == 4 + len(record["rows"])


def test_a_job_on_a_gpu_that_ends_early_loses_its_own_rows_only(monkeypatch, tmp_path):
    """Keep the rows of other jobs, and those that it printed before."""
    from benchmarks import gpu
    from benchmarks._report import Run

    about = {"device": "a card", "driver": "1", "versions": {}, "missing": []}
    rows = {"card": about, "laws": {"case": "kept", "kept": True}, "loops": {"case": 1}}
    monkeypatch.setattr(gpu, "JOBS", dict.fromkeys(rows, (30, "")))
    program = """
import json, os, sys
rows, job = json.loads(sys.argv[1]), sys.argv[-1]
print(json.dumps(rows[job]), flush=True)
if job == "loops":
    print("RESOURCE_EXHAUSTED", flush=True)
    os.abort()
"""
    started = subprocess.Popen

    def fake(command, **options):
        job = [sys.executable, "-c", program, json.dumps(rows), command[3]]
        return started(job, **options)

    monkeypatch.setattr(gpu.subprocess, "Popen", fake)
    monkeypatch.setattr(gpu.signal, "signal", lambda *_: None)

    def records(*only):
        run = Run("gpu", "", 1, only=only, json=tmp_path / "gpu.json")
        gpu.main(run)
        assert run.failed == ("laws" not in only)
        return json.loads(run.json.read_text())["rows"]

    early = {"kept": False, "error": "RESOURCE_EXHAUSTED"}
    whole = [
        {"job": "laws", "case": "kept", "kept": True},
        {"job": "loops", "case": 1},
        {"job": "loops", "case": "ended early", **early},
    ]
    assert records() == whole
    assert records("laws") == [*whole[1:], whole[0]]
