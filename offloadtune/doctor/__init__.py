"""The doctor: what holds a machine back, what changed of it, and what each of its media is good for. Pure functions.

classes       the bandwidths usually seen of each class of memory, link and drive
joining       which card is which device of the engine's
ladder        the media of a machine, measured beside their class
findings      all rules in one table, and `examine`
memory  cards  engine  surroundings    the rules, one small function each
changes       what is otherwise than it was
"""

from offloadtune.doctor.changes import changes
from offloadtune.doctor.findings import RULES, examine
from offloadtune.doctor.ladder import bytes_per_token, ladder

__all__ = ["RULES", "bytes_per_token", "changes", "examine", "ladder"]
