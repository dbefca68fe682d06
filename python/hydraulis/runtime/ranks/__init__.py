"""The processes of a run: devices, process groups, lost ranks, requests to stop.

**Device.** A rank chooses its device once, from the configuration and LOCAL_RANK, before the process group
exists. Ranks share a device only with HYDRAULIS_SHARE_DEVICES=1 (`shared_devices.py`). Decisions and messages
use gloo and host memory; device tensors use NCCL. WORLD is `cpu:gloo,cuda:nccl`; groups of stages and
transfers are NCCL groups. Their ranks, and neighbouring stages, are connected before a step needs them
(`parallel/groups.py`), since a connection blocks two hosts.

**Host and device.** One thread issues all work; backward hooks run while it waits. On CUDA the host runs
ahead of the device and waits for it once per iteration: for the sums of loss, squared gradient norm,
failures, digests and votes, which one all-reduce of device tensors carries (`agreement/step_sum.py`). Two
collectives of an iteration are in host memory: rank 0's plan, and the measurements for rank 0. Micro-batches
are copied through pinned memory, losses are read at the end, and times are event pairs.

**Streams.** Transfers and their groups use high-priority streams, because torch reuses its 32 streams of each
priority in turn and the groups of stages may need more than the normal-priority ones. The device gets 32
queues, since streams in one queue wait for each other. All ranks launch their communication in one common
order (`runtime/redistribute/launch_order.py`), so a step ends even if each launch waits for the one before.

**Kernels** are loaded when CUDA starts, and each stage computes once before its first step
(`runtime/pipeline/warm_up.py`), since loading a kernel can make the host wait for the device.

**Memory.** The allocator uses expandable segments. The environment overrides the queues
(CUDA_DEVICE_MAX_CONNECTIONS), the loading of kernels (CUDA_MODULE_LOADING) and the allocator
(PYTORCH_ALLOC_CONF). The allocator's peak is a metric of each iteration; on the CPU, persistent tensors are
counted. `runtime/memory/device_memory.py` reads the memory outside the allocator.

**Determinism.** With `train.deterministic` every kernel adds in a fixed order.

**Joining.** The ranks meet in torchrun's store under a name of their attempt, so the keys of an attempt
before a restart are never read. Only then do they connect.

**Failure.** A rank that fails aborts its groups, because destroying them would wait for the other ranks. A
rank that loses the connection to another one raises `lost_rank` and calls all ranks through torchrun's
store, which outlives them. A thread of each rank beats there and answers calls, also while the main thread
is blocked, and says which processes of its node have ended or are stopped. The first caller collects the
answers, and the lowest living rank reports the loss. A rank without signs of life is a loss too. A rank that
fails alone writes its error into the store before it aborts, and the others end by it.

**Waits.** A call of CUDA that blocks sees no loss. The host therefore polls events (`host_wait.py`), and
looks in between at the loss that its thread has found, at the request to stop and at the time. Torch ends no
process by itself, and its flight recorder writes into the run's folder (`flight_recorder.py`).

**Stop.** A request to stop takes effect between two steps, on all ranks at the same step. Rank 0's request
takes the place of the next plan; another rank's goes with the sums of the next step. An error of rank 0 in
the records of a step goes with its next reply.
"""
