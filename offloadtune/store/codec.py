"""Records to JSON values and back, checked at this edge and nowhere else.

FORMAT history:
    1  first: lines of kind header, trial, round, kept, end; readers pass over kinds they do not know.
A newer FORMAT than ours is refused; an older one will be migrated step by step.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

FORMAT = 1

Record = TypeVar("Record")


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The checker of a record type, made once: making one takes milliseconds."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(record: Any) -> Any:
    """JSON value of a record."""
    return _adapter(type(record)).dump_python(record, mode="json")


def from_json(kind: type[Record], value: Any) -> Record:
    """Record of `kind` from its JSON value. Raises pydantic.ValidationError (a ValueError) when it does not fit."""
    record: Record = _adapter(kind).validate_python(value)
    return record
