"""The facts by which ranks compare their configurations, packages and data."""

import dataclasses
from pathlib import Path

import numpy as np

from hydraulis.data.corpus import Corpus
from hydraulis.data.tokens import MaskedTokens
from hydraulis.runtime.agreement.run_facts import data_facts, run_facts
from hydraulis.runtime.agreement.step_digest import tokens_digest
from runtime.tiny import made_up_corpus, run_config


def test_every_setting_except_those_of_a_node_is_a_fact() -> None:
    config = run_config(3, ["1x<1>"])
    facts = run_facts(config)
    assert facts["train.steps"] == 3
    assert facts["optimizer.learning_rate"] == config.optimizer.learning_rate
    other = dataclasses.replace(config.data, index_directory="elsewhere", index_processes=3)
    assert run_facts(dataclasses.replace(config, data=other)) == facts
    differs = dataclasses.replace(config.data, held_out=0.5)
    assert run_facts(dataclasses.replace(config, data=differs)) != facts


def test_the_files_of_the_initial_parameters_are_facts(tmp_path: Path) -> None:
    config = run_config(3, ["1x<1>"])
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    config = dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, weights=str(tmp_path))
    )
    assert run_facts(config)["the bytes of model.safetensors"] == 5


def test_other_tokens_of_the_same_lengths_are_other_data() -> None:
    corpus = made_up_corpus(256)
    facts = data_facts(corpus)
    assert facts == data_facts(made_up_corpus(256))
    changed = corpus.token_T.copy()
    changed[-1] ^= 1
    others = data_facts(Corpus(token_T=changed, offset=corpus.offset, left_out={}))
    assert [name for name in facts if facts[name] != others[name]] == ["the digest of sequence 39"]


def test_a_digest_of_tokens_depends_on_their_mask() -> None:
    tokens = np.arange(3)
    masks = [np.array([True, True, last]) for last in (True, False)]
    digests = {tokens_digest(tokens), *(tokens_digest(MaskedTokens(tokens, mask)) for mask in masks)}
    assert len(digests) == 3
