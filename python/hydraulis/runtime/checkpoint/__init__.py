"""The state of training in files: written during training, read by any number of ranks.

**Content.** All state of training is in the optimizer shards: master parameters, AdamW's moments, the number
of steps. A checkpoint is one file for each rank with its shard, and a manifest that names the interval of
each parameter in each file.

**Writing.** The shard is copied between two steps; on CUDA the copy overlaps computation, and the next
optimizer step waits for it. A thread that calls no collective writes the file. The manifest is written last,
after every rank's file, so a folder with a manifest is a complete checkpoint.

**Reading** asks for parameters by name and interval, whatever the number of ranks. A Hugging Face folder and
the generator of initial values answer the same question (`ParameterValues`).

**Data.** The following batches depend on seed and step alone, so the state of the data is the step. A digest
of the next batch detects a difference.
"""
