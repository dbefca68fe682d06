"""transformers' Trainer: `torchrun --nproc-per-node 2 examples/peers/transformers_trainer.py`."""

import tempfile

from toy import toy_data, toy_model
from transformers import Trainer, TrainingArguments

from hydraulis.batching.adapters.transformers_trainer import balance_trainer

arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    num_train_epochs=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-2,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=toy_model(), args=arguments, train_dataset=toy_data())
balance_trainer(trainer, cap_tokens=512, barrier="step")
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if arguments.process_index == 0:
    print(f"{len(losses)} steps, loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
