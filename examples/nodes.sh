#!/bin/sh
# A run on several nodes without a scheduler. Start it on each node at about the same time:
#
#   examples/nodes.sh NODES HOST run.toml --preset nodes
#
# NODES: the number of nodes. HOST: the name of one of them. RANKS: the ranks of each node (8). PORT: a free port of HOST
# (29500). MAX_RESTARTS: restarts after a loss of ranks (3). NODES may be MIN:MAX: the run goes on with fewer nodes, except
# without HOST.
set -eu

[ $# -ge 3 ] || { echo "usage: $0 NODES HOST RUN.toml [option of hydraulis.train ...]" >&2; exit 2; }
nodes=$1 host=$2
shift 2

# torchrun itself would look for HOST for minutes without a message.
python3 -I - "$host" <<'END' || exit 2
import socket, sys
try:
    socket.getaddrinfo(sys.argv[1], None)
except (OSError, UnicodeError) as error:
    sys.exit(
        f"HOST = '{sys.argv[1]}' has no address on {socket.gethostname()} ({error.args[-1]}): "
        "give the name that hostname prints on one of the nodes, and see to it that all nodes find it"
    )
END

# Without it torch 2.13 survives no loss of the node of rank 0, and takes no node in place of a lost one.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# Configuration, data, index, model and output.directory must be on a file system that every node sees.
exec torchrun --nnodes "$nodes" --nproc-per-node "${RANKS:-8}" \
    --max-restarts "${MAX_RESTARTS:-3}" --rdzv-id "${RUN_ID:-hydraulis}" --rdzv-backend c10d --rdzv-endpoint "$host:${PORT:-29500}" \
    -m hydraulis.train "$@" --resume latest
