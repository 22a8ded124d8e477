"""How far an exported artefact may be from the model that it was made of, by its precision. All such bounds stand here.

The certificate holds artefacts to them, and so does the check that a graph makes of itself where it is loaded.
"""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """What an artefact of a precision may differ by.

    Args:
        log_prob: between its log P of its own tokens and the model's, in nats a token, for each text.
        mean_log_prob: the same for all texts of a trial together, with its sign, less two standard errors: a wrong
            length penalty errs always one way.
        probability: of a label, a token or an item.
        vector: the length of the difference of two vectors, in lengths of the model's.
        identical: the least share of answers with the model's own tokens or label; of fewer than 100 all but one.
        choice: by how much the model may find another answer worse than its own, in score or probability; in low
            precision a text counts at most so much in the mean.
        mean_choice: the same on average over the texts of a trial, less two standard errors.
        bleu: the loss of BLEU, or half the width of its 95 % paired-bootstrap interval where that is larger.
    """

    log_prob: float
    mean_log_prob: float
    probability: float
    vector: float
    identical: float
    choice: float
    mean_choice: float
    bleu: float


BOUNDS = {
    "float32": Bounds(1e-4, 1e-4, 1e-3, 1e-3, 0.99, 1e-3, 1e-3, 0.0),
    "float16": Bounds(0.05, 0.002, 0.05, 0.05, 0.0, 0.5, 0.02, 0.5),
    "int8": Bounds(0.3, 0.02, 0.3, 0.3, 0.0, 0.5, 0.05, 0.5),
}
NEAR_TIE = 1e-4  # in log-probability: a search in float32 may choose either of two hypotheses that are so near
LEAST_BLEU = 5.0  # of the model: below that, BLEU tells nothing of a low precision
