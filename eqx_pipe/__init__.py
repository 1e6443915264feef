"""Composition and sweeps as pure functions over immutable Equinox modules."""

import typing as _typing
from importlib.metadata import version as _version

from ._compose.batched import batched as batched
from ._compose.branch import cond as cond
from ._compose.branch import switch as switch
from ._compose.chain import chain as chain
from ._compose.ensemble import ensemble as ensemble
from ._compose.feed import feed as feed
from ._compose.focus import at as at
from ._compose.frozen import frozen as frozen
from ._compose.gated import gated as gated
from ._compose.graph import graph as graph
from ._compose.outputs import outputs as outputs
from ._compose.parallel import parallel as parallel
from ._compose.precision import precision as precision
from ._compose.repeat import repeat as repeat
from ._compose.residual import residual as residual
from ._compose.scan import scan as scan
from ._compose.tapped import tapped as tapped
from ._compose.tied import tied as tied
from ._compose.trainable import trainable as trainable
from ._compose.weighted import weighted as weighted
from ._errors import MissingKeyError as MissingKeyError
from ._errors import StructureError as StructureError
from ._errors import SweepError as SweepError
from ._stage import Stage as Stage

__version__ = _version("eqx_pipe")

if _typing.TYPE_CHECKING:
    from ._later import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Sweeps, sharding and pictures: loaded together when first asked for."""
        if not name.startswith("_"):
            from . import _later

            public = {k: v for k, v in vars(_later).items() if not k.startswith("_")}
            globals().update(public)
            if name in public:
                return public[name]
        raise AttributeError(f"module `eqx_pipe` has no attribute `{name}`")


def __dir__() -> list[str]:
    from . import _later

    return sorted({*globals(), *(k for k in vars(_later) if not k.startswith("_"))})
