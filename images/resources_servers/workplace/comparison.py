"""What two offices differ in: where one stands after a rollout, and where it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from images.resources_servers.workplace.office import Office

Record = dict[str, Any]
State = dict[str, dict[str, Record]]
"""Records by id, under ``mail``, ``event`` and ``file``. The values in a record can be compared and hashed."""


def state_of(office: Office) -> State:
    """What counts of an office, with texts in the form they are compared in.

    In mails and events neither case nor white space counts; in files neither white space at the ends of lines nor
    empty lines at the end do. Orders of recipients, attendees and attachments do not count either.
    """
    mails = {
        row["id"]: {**row, **{name: _loose(row[name]) for name in ("subject", "body")}, "to": (), "cc": (), "files": ()}
        for row in office.select("SELECT * FROM mails")
    }
    for row in office.select("SELECT * FROM recipients ORDER BY mail_id, address"):
        mails[row["mail_id"]][row["field"]] += (row["address"],)
    for row in office.select("SELECT * FROM attachments ORDER BY mail_id, path"):
        mails[row["mail_id"]]["files"] += ((row["path"], _lines(row["content"])),)
    events = {
        row["id"]: {**row, **{name: _loose(row[name]) for name in ("title", "location", "notes")}, "attendees": ()}
        for row in office.select("SELECT * FROM events")
    }
    for row in office.select("SELECT * FROM attendees ORDER BY event_id, address"):
        events[row["event_id"]]["attendees"] += (row["address"],)
    files = {
        row["path"]: {"path": row["path"], "content": _lines(row["content"])}
        for row in office.select("SELECT * FROM files")
    }
    return {"mail": mails, "event": events, "file": files}


def differences(before: State, expected: State, found: State) -> list[str]:
    """In sentences, what was not done and what was done without being asked; empty when all is as it should be.

    What was there before is known by its id. What is new is known by what it holds: in which order it was made, and
    therefore which id it got, does not count.
    """
    sentences = []
    for kind in before:
        known = set(before[kind])
        if kind == "file":  # known by its path, also when it is new
            known |= expected[kind].keys() | found[kind].keys()
        for key in sorted(known):
            sentences += _changes(f"{kind} {key}", expected[kind].get(key), found[kind].get(key))
        wanted, made = (Counter(_new_records(state[kind], known)) for state in (expected, found))
        sentences += [f"missing: {_told(kind, record)}" for record in (wanted - made).elements()]
        sentences += [f"not asked for: {_told(kind, record)}" for record in (made - wanted).elements()]
    return sentences


def _changes(name: str, expected: Record | None, found: Record | None) -> list[str]:
    if expected is None or found is None:
        if expected is found:
            return []
        return [f"{name} is missing" if found is None else f"{name} is there, and should not be"]
    return [
        f"{name}: {field} is {_shown(found[field])}; expected {_shown(expected[field])}"
        for field in expected
        if expected[field] != found[field]
    ]


def _new_records(records: Mapping[str, Record], known: Collection[str]) -> list[tuple[tuple[str, Any], ...]]:
    new = {key: record for key, record in records.items() if key not in known}
    return [_without_ids_of(new, record) for record in new.values()]


def _without_ids_of(new: Mapping[str, Record], record: Record) -> tuple[tuple[str, Any], ...]:
    """What a new record holds; a new mail that it replies to is known by what it says."""
    answered = new.get(record.get("in_reply_to") or "")
    if answered is not None:
        record = {**record, "in_reply_to": (answered["subject"], answered["body"])}
    return tuple((field, value) for field, value in record.items() if field != "id")


def _told(kind: str, record: tuple[tuple[str, Any], ...]) -> str:
    return f"{kind} with " + ", ".join(f"{field} {_shown(value)}" for field, value in record if value)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(item if isinstance(item, str) else item[0] for item in value) + "]"
    return repr(value)


def _loose(text: str) -> str:
    return " ".join(text.split()).casefold()


def _lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")
