#!/bin/bash
# Submits a training run on several nodes to SLURM:
#
#     sbatch --nodes=2 --gpus-per-node=8 --time=12:00:00 examples/slurm/submit.sh recipes/qwen3_8b_code.yaml --steps 500
#
# from the repository's root, which has to be on a file system that all nodes see, and so has its .venv. What follows the
# script is for the trainer; TRAINER names it (default trainers.grpo), PORT the hosts' port (default 22222).
# Options of sbatch before the script win over the lines below; add --account and --partition as your cluster wants them.
# A run that was ended by its time limit goes on with: sbatch ... submit.sh CONFIG --output outputs/RUN --resume
#SBATCH --job-name=forge_env
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output=slurm-%j.log
#SBATCH --signal=B:TERM@120

set -euo pipefail

if [ "$#" -lt 1 ] || [ ! -f "$1" ]; then
    echo "usage: sbatch [options] examples/slurm/submit.sh CONFIG.yaml [trainer options]" >&2
    exit 2
fi
config=$1
shift
cd "${SLURM_SUBMIT_DIR:?this script is for sbatch}"
python=${PYTHON:-$PWD/.venv/bin/python}
port=${PORT:-22222}

# One program on each node, which starts the run's processes there and ends them when the run is gone.
srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 "$python" -m contrib.clusters.host --port "$port" &
hosts=$!
# The run itself, here on the first node.
"$python" -m "${TRAINER:-trainers.grpo}" --config "$config" \
    --launcher.kind slurm --launcher.hosts "$SLURM_JOB_NUM_NODES" --launcher.port "$port" "$@" &
run=$!

# SLURM's warning two minutes before the time limit ends the run in order; then the hosts.
trap 'kill -TERM "$run" 2>/dev/null || true' TERM INT
trap 'kill "$hosts" 2>/dev/null || true' EXIT
code=0
wait "$run" || code=$?
if kill -0 "$run" 2>/dev/null; then # the wait was ended by a signal: the run is still winding up
    code=0
    wait "$run" || code=$?
fi
exit "$code"
