"""Logs of real requests, line by line, as what each says of its lengths. Memory stays bounded, whatever the log.

lines      the lines of a file or of stdin
counts     what one line's objects say in numbers
texts      and in words
prefixes   what a text shares with earlier ones
reading    all of it, one line after the other

Apart from those: llama_bench reads what llama-bench printed.
"""

from offloadtune.logs.llama_bench import ReadRows, read_rows
from offloadtune.logs.reading import read_log

__all__ = ["ReadRows", "read_log", "read_rows"]
