"""From results to an answer in words: pure. The simplest settings inside the noise of the best win.

evidence   what a sweep has shown, and how settings compare in it
looks      when the rounds side by side are judged, and at which confidence
answer     who is recommended, and whether more rounds could still change what is said
reasons    why, in sentences
"""

from offloadtune.recommend.answer import is_decided, losers, n_changes, recommend
from offloadtune.recommend.evidence import Round, counted_visits, figures
from offloadtune.recommend.looks import N_ROUNDS_A_LOOK, N_ROUNDS_LEAST, are_used_up

__all__ = [
    "N_ROUNDS_A_LOOK",
    "N_ROUNDS_LEAST",
    "Round",
    "are_used_up",
    "counted_visits",
    "figures",
    "is_decided",
    "losers",
    "n_changes",
    "recommend",
]
