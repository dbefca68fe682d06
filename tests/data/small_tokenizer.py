"""A tokenizer made in a test: byte-level BPE without any download."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = ["the quick brown fox jumps over the lazy dog", "the the then they there", "naïve café 水 🚰"] * 20


def write_tokenizer(folder: Path, *, bos: bool = False, **config: Any) -> Path:
    """Train a tokenizer of about 300 tokens, and write it as Hugging Face does.

    Args:
        folder: Folder to write to.
        bos: Whether it puts `<s>` before every text.
        config: Fields of `tokenizer_config.json`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
