#!/bin/sh
#SBATCH --array=1-2
#SBATCH --cpus-per-task=1
# sbatch on_slurm.sh; a task that is stopped is requeued and goes on
#SBATCH --requeue
hardnet enforce policy states.parquet certified.parquet --net policy.py:build --set policy.py:limits \
    --x speed,angle,load --keep id --shards "$SLURM_ARRAY_TASK_ID/${SLURM_ARRAY_TASK_COUNT:-2}"
