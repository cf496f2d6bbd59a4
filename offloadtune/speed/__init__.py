"""The speed law: how long settings take, before they are measured. Pure arithmetic on a header and on rates.

blocks      what a file's blocks read, compute and keep
terms       settings and a prompt -> bytes, operations and counts of each term
law         coefficients and how well they are known; runs teach them
priors      what is believed of a rig before any run on it
constants   the numbers that priors are made of, fitted on published records
predicting  both phases together -> seconds, tokens a second, intervals
bounds      the roofline: what no run can exceed
limits      what takes most of the time
gains       what more of a machine, or less to read, would bring
design      which short runs teach a law most
checks      what it has learnt, and how far runs lie from it that had no say
flags       measured speeds that cannot be what they seem
depths      two stand-ins of fewer layers -> the whole model
"""

from offloadtune.speed.bounds import least_seconds
from offloadtune.speed.depths import device_layers_around, extrapolated, read_bytes
from offloadtune.speed.gains import Turn, best_first, gain_of, next_quant_down, turn_of
from offloadtune.speed.law import N_SIGMA_90, Law, calibrated, contradiction, misses, residuals_of, run_of, shifted
from offloadtune.speed.limits import limits_of
from offloadtune.speed.predicting import (
    N_PROMPT_USUAL,
    Laws,
    Predictions,
    amounts_for,
    is_float_file,
    laws_of,
    laws_of_kind,
    predict,
    predict_many,
    work_with_threads,
)
from offloadtune.speed.priors import prior_of
from offloadtune.speed.terms import Term, Work, amounts_of, terms_of

__all__ = [
    "N_PROMPT_USUAL",
    "N_SIGMA_90",
    "Law",
    "Laws",
    "Predictions",
    "Term",
    "Turn",
    "Work",
    "amounts_for",
    "amounts_of",
    "best_first",
    "calibrated",
    "contradiction",
    "device_layers_around",
    "extrapolated",
    "gain_of",
    "is_float_file",
    "laws_of",
    "laws_of_kind",
    "least_seconds",
    "limits_of",
    "misses",
    "next_quant_down",
    "predict",
    "predict_many",
    "prior_of",
    "read_bytes",
    "residuals_of",
    "run_of",
    "shifted",
    "terms_of",
    "turn_of",
    "work_with_threads",
]
