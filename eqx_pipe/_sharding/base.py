"""What stages that wrap one stage and run it on a mesh share."""

from collections.abc import Mapping

import equinox as eqx
from jax.sharding import Mesh

from .._stage import Composite
from .._types import AnyStage


class OnMesh(Composite):
    """A stage and the mesh it runs on; how it runs there is left to `run`."""

    stage: AnyStage
    mesh: Mesh = eqx.field(static=True)

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def settings(self) -> dict[str, dict[str, int]]:
        return {"mesh": {str(k): v for k, v in self.mesh.shape.items()}}
