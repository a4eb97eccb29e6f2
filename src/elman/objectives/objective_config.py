"""Settings of the objectives that several tasks share.

`LikelihoodConfig` is for tasks that maximise the likelihood of tokens and nothing else.
`RegimeConfig` adds the training regimes, for language models and decoders that generate text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elman.base.config import at_least, between, check_reads


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """What is minimised."""

    label_smoothing: float = 0.0
    """The share of each target that is spread evenly over the vocabulary; needs an output layer
    that gives whole distributions.
    """
    activation_penalty: float = 0.0
    """Weight of the mean square of the last layer's output (Merity, McCann and Socher, 2017;
    AWD-LSTM's alpha: 2)."""
    change_penalty: float = 0.0
    """Weight of the mean squared change of that output from step to step (Merity, McCann and
    Socher, 2017; AWD-LSTM's beta: 1)."""

    def __post_init__(self) -> None:
        between("label_smoothing", self.label_smoothing, 0, 1, below=True)
        at_least("activation_penalty", self.activation_penalty, 0)
        at_least("change_penalty", self.change_penalty, 0)


READS = {
    "scheduled_sampling": ("curriculum", "least_truth"),
    "professor_forcing": ("judge_size", "judge_weight"),
    "minimum_risk": ("reward", "likelihood_weight", "num_candidates", "sharpness"),
    "self_critical": ("reward", "likelihood_weight"),
}
"""The settings that each training regime reads and the others do not."""


@dataclass(frozen=True, kw_only=True)
class RegimeConfig(LikelihoodConfig):
    """What is minimised, and what the model reads during training."""

    regime: Literal[
        "teacher_forcing",
        "scheduled_sampling",
        "free_running",
        "professor_forcing",
        "minimum_risk",
        "self_critical",
    ] = "teacher_forcing"
    """What the model reads during training: the true tokens (teacher_forcing), its own samples
    (free_running), or a mixture that moves from the first to the second (scheduled_sampling); or
    what it learns from besides the true tokens: a discriminator between the two
    (professor_forcing), or the quality of whole outputs (minimum_risk, self_critical).
    """
    curriculum: Literal["linear", "exponential", "inverse_sigmoid"] = "inverse_sigmoid"
    """scheduled_sampling: how the share of true tokens falls during training."""
    least_truth: float = 0.0
    """scheduled_sampling: the share of true tokens at the end."""
    judge_size: int = 128
    """professor_forcing: units of the discriminator in each direction."""
    judge_weight: float = 1.0
    """professor_forcing: weight of deceiving the discriminator, beside the likelihood."""
    reward: Literal["bleu", "edits"] = "bleu"
    """minimum_risk, self_critical: the quality of an output: BLEU of its tokens, or 1 minus its
    normalised edit distance to the true ones.
    """
    num_candidates: int = 4
    """minimum_risk: outputs sampled for each sequence; the true one is added."""
    sharpness: float = 0.05
    """minimum_risk: exponent of the candidates' probabilities (alpha in Shen and others 2016): 0
    makes them equal, 1 leaves them unchanged.
    """
    likelihood_weight: float = 0.3
    """minimum_risk, self_critical: weight of the likelihood of the true tokens beside the reward;
    at 0 a model forgets tokens that it never samples.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        between("least_truth", self.least_truth, 0, 1)
        between("likelihood_weight", self.likelihood_weight, 0, 1)
        at_least("judge_size", self.judge_size, 1)
        at_least("judge_weight", self.judge_weight, 0)
        at_least("sharpness", self.sharpness, 0)
        at_least("num_candidates", self.num_candidates, 1)
        check_reads(self, "objective", "regime", READS)

    @property
    def is_teacher_forcing(self) -> bool:
        """Whether the objective is the likelihood alone."""
        return self.regime == "teacher_forcing"

    @property
    def reads_truth(self) -> bool:
        """Whether the reported loss is the likelihood of the true text."""
        return self.regime not in ("scheduled_sampling", "free_running")
