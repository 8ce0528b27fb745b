"""One session's office: a database of people, mails, events and files, seeded with a small company."""

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from nemo_gym.servers.resources import RequestError, Session

SCHEMA = """
PRAGMA page_size = 1024;
CREATE TABLE people (address TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, team TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE mails (
    id TEXT PRIMARY KEY, folder TEXT NOT NULL, sender TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL,
    sent_at TEXT NOT NULL, in_reply_to TEXT
) WITHOUT ROWID;
CREATE TABLE recipients (
    mail_id TEXT NOT NULL, address TEXT NOT NULL, field TEXT NOT NULL, PRIMARY KEY (mail_id, address)
) WITHOUT ROWID;
CREATE TABLE attachments (
    mail_id TEXT NOT NULL, path TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (mail_id, path)
) WITHOUT ROWID;
CREATE TABLE events (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, starts_at TEXT NOT NULL, ends_at TEXT NOT NULL, organizer TEXT NOT NULL,
    location TEXT NOT NULL, notes TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE attendees (event_id TEXT NOT NULL, address TEXT NOT NULL, PRIMARY KEY (event_id, address)) WITHOUT ROWID;
CREATE TABLE files (path TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID;
"""


class Arguments(BaseModel):
    """Base of what tools take: an argument that a tool does not have is told to the model."""

    model_config = ConfigDict(extra="forbid")


class Office:
    """A database in memory. ``now`` is a moment that does not move, ``me`` the address of whom the model works for.

    Times are texts such as ``2025-03-12T09:00``, which sort as they follow one another.
    """

    def __init__(self, connection: sqlite3.Connection, now: str, me: str) -> None:
        self._connection = connection
        self.now = now
        self.me = me

    @classmethod
    def seeded(cls, company: Path) -> Office:
        """A new office with everything that the JSON file ``company`` holds."""
        content = json.loads(company.read_text(encoding="utf-8"))
        office = cls(_new_database(), content["now"], content["me"])
        office._connection.executescript(SCHEMA)
        with office.transaction():
            for person in content["people"]:
                office.insert("people", person)
            for mail in content["mails"]:
                office.insert_mail(mail)
            for event in content["events"]:
                office.insert_event(event)
            for path, text in content["files"].items():
                office.insert("files", {"path": path, "content": text})
        return office

    def copy(self) -> Office:
        """Another office that begins as this one stands."""
        connection = _new_database()
        self._connection.backup(connection)
        return Office(connection, self.now, self.me)

    def close(self) -> None:
        """Release its memory."""
        self._connection.close()

    def transaction(self) -> AbstractContextManager[Any]:
        """What is written inside stays when the block ends, and goes when it fails."""
        return self._connection

    def select(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """The rows that a query finds."""
        return [dict(row) for row in self._connection.execute(query, values)]

    def change(self, statement: str, *values: Any) -> None:
        """Write, inside a transaction."""
        self._connection.execute(statement, values)

    def insert(self, table: str, row: dict[str, Any]) -> None:
        """Add a row, inside a transaction. Columns come from this server's code, never from a request."""
        columns, places = ", ".join(row), ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", tuple(row.values()))

    def insert_mail(self, mail: dict[str, Any]) -> None:
        """Add a mail, with the addresses in ``to`` and ``cc`` and the contents by path in ``attachments``."""
        columns = ("id", "folder", "sender", "subject", "body", "sent_at", "in_reply_to")
        self.insert("mails", {column: mail.get(column) for column in columns})
        fields = dict.fromkeys(mail.get("cc", ()), "cc") | dict.fromkeys(mail["to"], "to")
        for address, field in fields.items():
            self.insert("recipients", {"mail_id": mail["id"], "address": address, "field": field})
        for path, content in mail.get("attachments", {}).items():
            self.insert("attachments", {"mail_id": mail["id"], "path": path, "content": content})

    def insert_event(self, event: dict[str, Any]) -> None:
        """Add an event, with the addresses in ``attendees``."""
        columns = ("id", "title", "starts_at", "ends_at", "organizer")
        texts = {column: event.get(column) or "" for column in ("location", "notes")}
        self.insert("events", {**{column: event[column] for column in columns}, **texts})
        for address in sorted({event["organizer"], *event["attendees"]}):
            self.insert("attendees", {"event_id": event["id"], "address": address})

    def new_id(self, table: str, prefix: str) -> str:
        """The id after the highest one: it follows from what happened before, and from nothing else."""
        highest = max(int(row["id"].partition("-")[2]) for row in self.select(f"SELECT id FROM {table}"))
        return f"{prefix}-{highest + 1:02d}"

    def check_addresses(self, field: str, addresses: Iterable[str]) -> list[str]:
        """The addresses, each once and sorted. One of this company's that nobody has is refused."""
        known = [row["address"] for row in self.select("SELECT address FROM people")]
        own_domain = self.me.partition("@")[2]
        found = sorted({address.strip().lower() for address in addresses})
        for address in found:
            name, _, domain = address.partition("@")
            if not name or "." not in domain or " " in address:
                raise RequestError(422, "invalid_request", f"{field}: {address!r} is no mail address; see find_people")
            if domain == own_domain and address not in known:
                near = difflib.get_close_matches(address, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "find_people lists everybody's"
                raise RequestError(404, "not_found", f"{field}: nobody has the address {address}; {hint}")
        return found


def office_of(session: Session) -> Office:
    """The session's office; a request before ``/seed_session``, or after ``/verify``, is refused."""
    office = session.state.get("office")
    if not isinstance(office, Office):
        raise RequestError(409, "no_session", "this session has no office: it was not seeded, or has been judged")
    return office


def _new_database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection
