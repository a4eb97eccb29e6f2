"""What is minimised: the regime of training, its settings, and penalties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elman.base.config import at_least, between


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is minimised."""

    regime: Literal[
        "teacher_forcing",
        "scheduled_sampling",
        "free_running",
        "professor_forcing",
        "minimum_risk",
        "self_critical",
    ] = "teacher_forcing"
    """What the model reads while it learns: the true tokens (teacher_forcing), its own
    (free_running), a mixture that moves from the first to the second (scheduled_sampling); or what
    else it learns from: a judge who tells the two apart (professor_forcing), the quality of whole
    outputs (minimum_risk, self_critical).
    """
    curriculum: Literal["linear", "exponential", "inverse_sigmoid"] = "inverse_sigmoid"
    """How the share of true tokens falls in the course of scheduled sampling."""
    least_truth: float = 0.0
    """The share of true tokens at which scheduled sampling ends."""
    judge_size: int = 128
    """Units, in each direction, of the judge in professor forcing."""
    judge_weight: float = 1.0
    """What fooling the judge weighs beside the likelihood."""
    reward: Literal["bleu", "edits"] = "bleu"
    """What an output is worth under minimum_risk and self_critical: BLEU of its tokens, or 1 minus
    its edit distance to the true ones.
    """
    num_candidates: int = 4
    """Outputs drawn for each sequence under minimum_risk; the true one is added."""
    sharpness: float = 0.05
    """The exponent of the candidates' probabilities under minimum_risk (alpha in Shen and others
    2016): 0 makes them equal, 1 leaves them as they are.
    """
    likelihood_weight: float = 0.3
    """What the likelihood of the true tokens weighs beside the quality of outputs; without some of
    it a model forgets what is never drawn.
    """
    label_smoothing: float = 0.0
    """The share of each target that is spread over all words, or labels, alike; takes whole
    distributions.
    """
    class_weights: Literal["none", "balanced"] = "none"
    """Whether all labels of a classifier weigh alike, however rare (balanced), or all texts."""
    activation_penalty: float = 0.0
    """Weight of the mean square of the last layer's output (AWD-LSTM's alpha: 2)."""
    change_penalty: float = 0.0
    """Weight of the mean squared change of that output from step to step (AWD-LSTM's beta: 1)."""

    def __post_init__(self) -> None:
        between("least_truth", self.least_truth, 0, 1)
        between("label_smoothing", self.label_smoothing, 0, 1, below=True)
        between("likelihood_weight", self.likelihood_weight, 0, 1)
        at_least("judge_size", self.judge_size, 1)
        at_least("num_candidates", self.num_candidates, 1)
