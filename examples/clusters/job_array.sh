#!/bin/bash
#SBATCH --array=0-3
#SBATCH --cpus-per-task=1
#SBATCH --requeue
# Slurm sends SIGTERM before it stops a task: the sweep then keeps what is finished. To restart a
# lost task use `scontrol requeue JOB_TASK`, since `sbatch --array=2` would count a single task.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/jax}
exec python job_array.py "${1:-runs.zarr}"
