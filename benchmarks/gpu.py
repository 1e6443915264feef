"""On a GPU: are values right, what does a step of a loop cost, what fits, how fast?

Runs at most 20 minutes on one card, with the most valuable first. Each job runs in a
process of its own, so a crash loses the rest of that job only. Every row is written as
soon as it is known, so stop at any time; `--only JOB ...` repeats some jobs and keeps
the rows of others. The results are `benchmarks/results/gpu-CARD.json`, and a table for
`docs/gpus.md` beside it.

`benchmarks/requirements-gpu.txt` lists what it needs. `--wheels FOLDER` installs the
wheels in a folder first, without a network, into a temporary folder.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ._report import shown
from ._timing import Spread

RESULTS = Path(__file__).parent / "results"
GRAPHS = "--xla_gpu_enable_command_buffer="
OPTIMISED = "--xla_backend_optimization_level=3"
JOBS = {
    "card": (60, ""),
    "laws": (180, OPTIMISED),
    "tests": (300, OPTIMISED),
    "loops": (90, ""),
    "loops, no CUDA graphs": (30, GRAPHS),
    "loops, CUDA graphs": (30, f"{GRAPHS}+WHILE,+CONDITIONAL"),
    "order": (180, ""),
    "memory, attention": (60, ""),
    "memory, runge_kutta": (60, ""),
    "beside": (150, ""),
    "beside, no autotuning": (60, "--xla_gpu_autotune_level=0"),
}
"""The seconds after which each job ends, and its flags of XLA."""


def install(wheels):
    """Install wheels where jobs find them first, and return that folder, to keep it."""
    folder = tempfile.TemporaryDirectory(prefix="eqx_pipe-wheels-")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    files = map(str, Path(wheels).glob("*.whl"))
    subprocess.run([*pip, "--no-compile", "--target", folder.name, *files], check=True)
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder.name, path]))
    return folder


def rows_of(job, quick):
    """Run a job, and yield its rows, the last with an error if it ended early."""
    seconds, flags = JOBS[job]
    environment = {"CUDA_VISIBLE_DEVICES": "0"} | os.environ
    environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
    if not quick:
        # Both the GPU and a CPU, and nothing that an earlier run has compiled.
        for name in ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR"):
            environment.pop(name, None)
    command = [sys.executable, "-m", "benchmarks._gpu_jobs", job, *["--quick"] * quick]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    root = RESULTS.parents[1]
    with subprocess.Popen(command, cwd=root, env=environment, **pipes) as process:
        # With --quick it ends by itself, if CI is slow.
        alarm, last = threading.Timer(seconds * (20 if quick else 1), process.kill), ""
        alarm.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line, object_hook=as_spread)
                last = line.strip() or last
            if status := process.wait():
                reason = f"killed, after {seconds} s at most" if status == -9 else last
                yield {"case": "ended early", "kept": False, "error": reason[:300]}
        finally:
            alarm.cancel()
            process.kill()


def as_spread(entry):
    """Return an object of the JSON, as the median that it was."""
    return Spread(**entry) if entry.keys() == {"median", "deviation"} else entry


def table(record):
    """Return the table for `docs/gpus.md`, in Markdown."""
    versions = ", ".join(f"{name} {v}" for name, v in record["versions"].items())
    header = f"**{record['device']}**, driver {record['driver']}, {record['date']}, "
    lines = [f"{header}{versions}:\n", "| job | case | measured |", "|---|---|---|"]
    for row in record["rows"]:
        (_, job), (_, case), *rest = row.items()
        cells = [f"{name.replace('_', ' ')} {shown(name, v)}" for name, v in rest]
        lines.append(f"| {job} | {case} | {', '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(run, *, wheels=""):
    _folder = install(wheels) if wheels else None
    run.about = next(rows_of("card", run.quick))
    if "error" in run.about:
        sys.exit(run.about["error"])
    if missing := run.about["missing"]:
        run.note(f"not installed, so their jobs fail: {', '.join(missing)}")
    if run.json.parent == RESULTS:
        card = re.sub(r"\W+", "-", run.about["device"])
        run.json = run.json.with_stem(f"{run.json.stem}-{card}")
    jobs = run.chosen(list(JOBS)[1:])
    if run.json.exists():
        before = json.loads(run.json.read_text(), object_hook=as_spread)
        if all(before.get(name) == value for name, value in run.about.items()):
            run.rows += [row for row in before["rows"] if row["job"] not in jobs]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    for job in jobs:
        for row in rows_of(job, run.quick):
            run.failed |= row.get("kept") is False
            run.row(job=job, **row)
            run.write()
            run.json.with_suffix(".md").write_text(table(run.record()))
