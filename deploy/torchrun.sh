#!/usr/bin/env bash
# One run on several machines. Start this on each of them, with the same arguments:
#
#   NODES=4 NODE=0 HEAD=first.machine PROCESSES=2 deploy/torchrun.sh /shared/runs/one \
#       --task cifar10 --model resnet20 --topology 4x2 --method hierarchical --local-steps 1 16
#
# NODES: machines. NODE: this one, from 0. HEAD: a name of the first that all can reach.
# PROCESSES: on each machine, one where not given. PORT: of HEAD, 29500 where not given.
# The folder must be one that all machines see. Once it holds a run, the same command goes on with it.
set -euo pipefail
: "${NODES:?how many machines there are}" "${NODE:?which of them this is, from 0}"
: "${HEAD:?a name of machine 0 that all can reach}" "${1:?the folder of the run}"

folder=$1
shift
# All look before the first process starts, as none starts before all have met.
if [ -e "$folder/run.json" ]; then
  what=(resume "$folder")
else
  what=(run --out "$folder" "$@")
fi
# Else torchrun gives each of several processes a single thread.
threads=$(( $(nproc) / ${PROCESSES:-1} ))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(( threads > 0 ? threads : 1 ))}
export PYTHONSAFEPATH=1  # no module is imported from the current folder
# The network must be trusted; README.md says what to do where it isn't.
exec torchrun --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "${PROCESSES:-1}" \
  --master-addr "$HEAD" --master-port "${PORT:-29500}" -m localsgd "${what[@]}"
