"""Copies of the state in the memory of the nodes, from which a run continues after the loss of ranks.

**Content.** With `checkpoint.memory_folder` each rank writes its optimizer shard into a folder in memory
after each step (`keeper.py`). The files of a killed process stay, so the loss of processes loses no shard.
With several nodes each rank sends its updated shard to a rank of another node, which writes it too: the
shard's twin (`twins.py`). The loss of a node then loses no shard either.

**The updated shard, not its gradient.** A twin that applies the reduced gradient would receive 4 bytes of
each element and not 12 (AdamW in float32), but it would need 16 bytes of the device's memory for each element
and a second update. A copy needs host memory alone, and is equal whatever optimizer and device are.

**Overlap.** The state is copied between two steps, as a checkpoint is; a thread sends and writes the copy.
The votes of each step say whether all ranks have written. Only then older files are removed and the next copy
begins, so at most two copies of each shard exist, one of them whole.

**Return.** The run's folder names the newest start with a whole copy (`run_start.py`). The next start looks
for its files on all nodes (`survey.py`). The ranks exchange their elements for whatever number of ranks there
is (`exchanged_values.py`), and continue as from a checkpoint of that step. The files of other steps go then,
those of that step when the new start has a whole copy.
"""
