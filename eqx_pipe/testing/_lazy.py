"""The public names that need hypothesis, which is loaded when one is first used."""

from ._annotations.arguments import arguments as arguments
from ._annotations.arguments import from_jaxtyping as from_jaxtyping
from ._annotations.typed import given_typed as given_typed
from ._strategies.arrays import arrays as arrays
from ._strategies.arrays import batches as batches
from ._strategies.arrays import keys as keys
from ._strategies.arrays import structs as structs
from ._strategies.edges import edge_numbers as edge_numbers
from ._strategies.graphs import graphs as graphs
from ._strategies.pipelines import pipelines as pipelines
from ._strategies.spaces import axes as axes
from ._strategies.spaces import meshes as meshes
from ._strategies.spaces import spaces as spaces
from ._strategies.stages import register_stage as register_stage
from ._strategies.stages import stages as stages
from ._strategies.stages import unregister_stage as unregister_stage
