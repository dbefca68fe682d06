"""Checkpoints: training state in files, written during training and read by any number of ranks.

**Content.** The optimizer shards contain all training state: master parameters, the optimizer's moments and
the step count. A checkpoint has one file per rank with the rank's shard, and a manifest that names the
interval of each parameter in each file.

**Writing.** The shard is copied between two steps; on CUDA the copy overlaps computation, and the next
optimizer step waits for it. A thread that calls no collective writes the file. The manifest is written last,
after every rank's file, so a folder with a manifest is a complete checkpoint.

**Reading.** A reader requests parameters by name and interval, for any number of ranks. A Hugging Face folder
and the generator of initial values have the same interface (`ParameterValues`).

**Data.** Batches depend only on the seed and the step, so the step is the state of the data. A digest of the
next batch detects a difference.
"""
