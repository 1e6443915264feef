"""Records in an order that is a function of the seed: sources, loader, cursor, scan.

A batch goes down once: `order` (which records), the source (`array_source`, or
`host_source` through `read_ahead`), `pipes` (the stages), `layout` (the sharding).
The device's way is `device_batch`, the host's `host_batch`; `loader`, `epoch` and
`scan` call them, through compiled `programs` that are found again.
"""
