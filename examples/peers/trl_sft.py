"""TRL's SFTTrainer: `torchrun --nproc-per-node 2 examples/peers/trl_sft.py`."""

import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers
from toy import VOCABULARY, toy_data, toy_model
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from hydraulis.batching.adapters.transformers_trainer import balance_trainer

words = {str(token): token for token in range(VOCABULARY)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
arguments = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    max_steps=6,
    # Else TRL leaves the mask of tokenized data out of the labels.
    completion_only_loss=True,
    gradient_accumulation_steps=2,
    learning_rate=1e-2,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
data = toy_data()
data = data.add_column(
    "completion_mask", [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in data["input_ids"]]
)
trainer = SFTTrainer(
    model=toy_model(),
    args=arguments,
    train_dataset=data,
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="1", pad_token="2"),
)
balance_trainer(trainer, cap_tokens=512)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if arguments.process_index == 0:
    print(f"{len(losses)} steps, loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
