#!/bin/bash
# A run on several nodes under Slurm: one torchrun on each node, with a rank for each GPU.
#
#   sbatch examples/slurm.sh run.toml --preset nodes
#
# The loss of a rank starts all ranks again (MAX_RESTARTS, 3 times). A lost node ends the job: submit it again.
#
# Submitted again, it continues from the newest checkpoint. Two minutes before the job's time ends Slurm sends SIGTERM. The
# run then ends after the current step with a checkpoint, if both fit into TORCH_ELASTIC_SHUTDOWN_TIMEOUT (below; 30 s in
# versions of torch without this variable). Otherwise it continues from the last checkpoint of checkpoint.every_steps: set it.
#SBATCH --job-name=hydraulis
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=hydraulis-%j.log
set -eu

[ $# -ge 1 ] || { echo "usage: sbatch $0 RUN.toml [option of hydraulis.train ...]" >&2; exit 2; }
[ -n "${SLURM_JOB_NODELIST:-}" ] || { echo "SLURM_JOB_NODELIST is not set: submit this by sbatch" >&2; exit 2; }
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-100}"

# Configuration, data, index, model and output.directory must be on a file system that every node sees.
exec srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --max-restarts "${MAX_RESTARTS:-3}" --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:${PORT:-29500}" \
    -m hydraulis.train "$@" --resume latest
