"""Compose Equinox modules and sweep their parameters, with pure functions."""

import importlib as _importlib
import typing as _typing
from importlib.metadata import version as _version

from ._compose import at as at
from ._compose import batched as batched
from ._compose import chain as chain
from ._compose import cond as cond
from ._compose import ensemble as ensemble
from ._compose import feed as feed
from ._compose import frozen as frozen
from ._compose import gated as gated
from ._compose import graph as graph
from ._compose import outputs as outputs
from ._compose import parallel as parallel
from ._compose import precision as precision
from ._compose import repeat as repeat
from ._compose import residual as residual
from ._compose import scan as scan
from ._compose import switch as switch
from ._compose import tied as tied
from ._compose import trainable as trainable
from ._compose import weighted as weighted
from ._errors import MissingKeyError as MissingKeyError
from ._errors import StructureError as StructureError
from ._errors import SweepError as SweepError
from ._errors import hint as _hint
from ._mesh_context import RULES as _RULES  # noqa: F401  made now, see there
from ._stage import Stage as Stage
from ._stage import summary as summary

__version__ = _version("eqx_pipe")

if _typing.TYPE_CHECKING:
    from . import data as data
    from . import reduce as reduce
    from . import search as search
    from . import sharding as sharding
    from . import testing as testing
    from ._compiled import ProgramPlan as ProgramPlan
    from ._compiled import program as program
    from ._compiled import topology as topology
    from ._kernel import kernel as kernel
    from ._refill import refill as refill
    from ._results import SweepResult as SweepResult
    from ._show import show as show
    from ._spaces import Axis as Axis
    from ._spaces import Geomspace as Geomspace
    from ._spaces import Linspace as Linspace
    from ._spaces import LogUniform as LogUniform
    from ._spaces import Mapped as Mapped
    from ._spaces import Random as Random
    from ._spaces import Seeds as Seeds
    from ._spaces import Space as Space
    from ._spaces import Static as Static
    from ._spaces import Uniform as Uniform
    from ._spaces import Values as Values
    from ._spaces import sobol as sobol
    from ._sweep import SweepPlan as SweepPlan
    from ._sweep import plan as plan
    from ._sweep import sweep as sweep
    from ._sweep import sweeper as sweeper
    from ._sweep import vmap_space as vmap_space
    from ._train import Training as Training
    from ._train import TrainResult as TrainResult
    from ._train import plan_train as plan_train
    from ._train import train as train
    from ._vmap import use_cpu_devices as use_cpu_devices
    from ._vmap import vmap as vmap
else:
    # Loaded on first use: together they take as long to import as Equinox, and
    # composing stages does not need them.
    _MODULES = "data reduce search sharding testing".split()
    _PACKAGES = {
        "_compiled": "ProgramPlan program topology",
        "_kernel": "kernel",
        "_refill": "refill",
        "_results": "SweepResult",
        "_show": "show",
        "_spaces": "Axis Geomspace Linspace LogUniform Mapped Random Seeds Space "
        "Static Uniform Values sobol",
        "_sweep": "SweepPlan plan sweep sweeper vmap_space",
        "_train": "TrainResult Training plan_train train",
        "_vmap": "use_cpu_devices vmap",
    }
    _PACKAGE_OF = {n: p for p, names in _PACKAGES.items() for n in names.split()}

    # Modules are left out: the import hook of jaxtyping adds its own.
    _names = {n for n, x in globals().items() if type(x) is not type(_typing)}
    __all__ = sorted(name for name in _names if not name.startswith("_"))
    __all__ += [*_PACKAGE_OF, *_MODULES]

    def __getattr__(name):
        if name in _MODULES:
            return _importlib.import_module(f".{name}", __name__)
        if name in _PACKAGE_OF:
            package = _importlib.import_module(f".{_PACKAGE_OF[name]}", __name__)
            globals()[name] = value = getattr(package, name)
            return value
        wrong = f"module `eqx_pipe` has no attribute `{name}`"
        if not name.startswith("_"):
            modules = [_importlib.import_module(f".{m}", __name__) for m in _MODULES]
            wrong += f". {_hint(name, __all__, modules)}"
        raise AttributeError(wrong)

    def __dir__():
        return sorted([*__all__, "__version__"])
