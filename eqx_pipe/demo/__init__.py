"""The main job, end to end: `eqx-pipe demo`."""
