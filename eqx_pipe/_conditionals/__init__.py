"""The primitive of `cond`, `switch` and `gated`, with its transformation rules."""

from .choose import Like as Like
from .choose import choose as choose
from .choose import varying_as as varying_as
from .choose import zeros_varying as zeros_varying
