"""The main job: train a pipeline, sweep its training, keep what was found."""

import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

import eqx_pipe as ep

from . import report
from .data import Digits, load
from .model import make_model, mixture
from .training import (
    FULL,
    QUICK,
    Setting,
    Size,
    choose,
    loss_and_accuracy,
    search,
    train,
)


def run(out: Path, seed: int, quick: bool) -> None:
    """Runs the demo, prints what happens and writes to the folder `out`."""
    started = time.perf_counter()
    size = QUICK if quick else FULL
    digits = load(seed)
    _introduce(digits, make_model(key=jax.random.key(seed)))
    fast_train = eqx.filter_jit(train)

    def fit(setting: Setting) -> ep.Stage:
        return fast_train(setting, digits.train, size.num_steps)[0]

    _train_once(fit, digits, size, seed)
    result = _sweep(digits, size, seed)
    table = result.to_xarray()
    best, accuracy = choose(table)
    # A training is a pure function of its setting, so the sweep need not keep the
    # models: the setting gives the model back.
    model = fit(best)
    tested = loss_and_accuracy(model, digits.test)[1]
    weights = ", ".join(f"{w:.2f}" for w in np.asarray(mixture(model)))
    print(f"\n3. Best setting: {report.setting_text(best)}.")
    print(f"   Validation accuracy {accuracy:.1%}, mean over {size.seeds} seeds.")
    print(f"   Test accuracy {tested:.1%}, of the model with seed {best.seed}.")
    print(f"   Learned weights of blur, edges, identity: {weights}.\n")
    report.save(out, result, model, best)
    print(report.how_to_open(out))
    print(f"\nDone in {_since(started)}.")


def _introduce(digits: Digits, model: ep.Stage) -> None:
    counts = [len(part.labels) for part in digits]
    print(
        f"{sum(counts):,} handwritten digits of 8 x 8 pixels: {counts[0]:,} to train "
        f"on, {counts[1]} to choose a setting by, {counts[2]} to test once.\n"
    )
    print("The pipeline:")
    print(report.outline(model))


def _train_once(
    fit: Callable[[Setting], ep.Stage], digits: Digits, size: Size, seed: int
) -> None:
    setting = Setting(
        learning_rate=np.asarray(3e-3, "float32"),
        weight_decay=np.asarray(1e-2, "float32"),
        seed=np.asarray(seed * size.seeds, "int32"),
    )
    steps = f"{size.num_steps:,} steps, {report.setting_text(setting)}"
    print(f"\n1. One training: {steps}.", flush=True)
    begin = time.perf_counter()
    accuracy = loss_and_accuracy(fit(setting), digits.validation)[1]
    seconds = f"{_since(begin)} with compilation"
    print(f"   Validation accuracy {accuracy:.1%}, in {seconds}.")


def _sweep(digits: Digits, size: Size, seed: int) -> ep.SweepResult:
    devices = jax.local_device_count()
    print(
        f"\n2. A sweep of {size.num_trainings} trainings: {size.learning_rates} "
        f"learning rates x {size.weight_decays} weight decays x {size.seeds} seeds, on "
        f"{devices} {jax.default_backend().upper()} device{'s' * (devices > 1)}.",
        flush=True,
    )
    begin = time.perf_counter()
    result = search(digits, size, seed)
    rate = len(result) / (time.perf_counter() - begin)
    print(f"   {_since(begin)}, {rate:.1f} trainings a second.")
    return result


def _since(begin: float) -> str:
    return f"{time.perf_counter() - begin:.1f} s"
