"""What stages that wrap one stage and run it on a mesh share."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
from jax.sharding import Mesh

from .._stage import Composite


class OnMesh(Composite):
    """A stage and the mesh it runs on; how it runs there is left to `run`."""

    stage: eqx.AbstractVar[Any]
    mesh: eqx.AbstractVar[Mesh]

    def children(self) -> Mapping[str, Any]:
        return {"stage": self.stage}

    def settings(self) -> dict[str, Any]:
        return {"mesh": {str(k): v for k, v in self.mesh.shape.items()}}
