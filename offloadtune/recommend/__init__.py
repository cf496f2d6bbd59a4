"""From results to an answer in words: pure. The simplest settings inside the noise of the best win.

evidence   what a sweep has shown, and how settings compare in it
looks      when the rounds side by side are judged, and at which confidence
answer     who is recommended, and whether more rounds could still change what is said
limits     whether the speeds that the user wants at least are reached
reasons    why, in sentences
front      what else can be had, for what
explaining what lies around it, what limits it, and who came next
"""

from offloadtune.recommend.answer import is_decided, losers, n_changes, recommend
from offloadtune.recommend.evidence import Round, counted_visits, figures
from offloadtune.recommend.explaining import explain
from offloadtune.recommend.front import pareto_front
from offloadtune.recommend.looks import N_ROUNDS_A_LOOK, N_ROUNDS_LEAST, are_used_up

__all__ = [
    "N_ROUNDS_A_LOOK",
    "N_ROUNDS_LEAST",
    "Round",
    "are_used_up",
    "counted_visits",
    "explain",
    "figures",
    "is_decided",
    "losers",
    "n_changes",
    "pareto_front",
    "recommend",
]
