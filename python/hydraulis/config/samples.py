"""The section `samples`: texts that the model continues during training."""

from dataclasses import dataclass

from hydraulis.config.check import check_at_least, check_not_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesConfig:
    """Prompts that the model continues at intervals, as a look at its progress.

    Attributes:
        every: Iterations between two samples of all prompts; one more follows the last iteration. 0 or absent
            for none.
        prompts: Texts to continue.
        tokens: Most tokens of a continuation, which ends earlier at the end of a document.
        temperature: Divisor of the logits before a token is drawn from their softmax; 0 for the most likely
            token.
    """

    every: int | None = None
    prompts: tuple[str, ...] = ()
    tokens: int = 64
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for index, prompt in enumerate(self.prompts):
            check_not_empty(f"samples.prompts[{index}]", prompt)
        check_at_least("samples.tokens", self.tokens, 1)
        check_at_least("samples.temperature", self.temperature, 0)
        if self.every is None:
            return
        check_at_least("samples.every", self.every, 0)
        # 0 cancels the value of a file.
        object.__setattr__(self, "every", self.every or None)
        if self.every:
            check_not_empty("samples.prompts", self.prompts, "['Once upon a time']")
