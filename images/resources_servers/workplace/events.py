"""The calendars of everybody in the company: look, plan, move, cancel, find free time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from images.resources_servers.workplace.office import Arguments, Office, office_of
from nemo_gym.servers.resources import RequestError, Session, tool

DAY_BEGINS, DAY_ENDS = "09:00", "17:00"
_MOMENT_FORMAT = "%Y-%m-%dT%H:%M"

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}$", description="Such as 2025-03-12T09:00.")]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="Such as 2025-03-12.")]
_EVENT_ID = Field(description="The event's id, such as e-07, as list_events and search_events tell it.")
_ADDRESSES = Field(min_length=1, description="Mail addresses.")


class Days(Arguments):
    first_day: Day
    last_day: Day
    person: str | None = Field(default=None, description="Whose calendar, by mail address; null for your own.")


class EventSearch(Arguments):
    words: str = Field(min_length=1, description="A text in the title, place or notes.")


class NewEvent(Arguments):
    title: str = Field(min_length=1)
    starts_at: Moment
    ends_at: Moment
    attendees: list[str] = Field(default=[], description="Mail addresses of those who come beside yourself.")
    location: str | None = Field(default=None, description="Where; null for nowhere in particular.")
    notes: str | None = None


class EventMove(Arguments):
    event_id: str = _EVENT_ID
    starts_at: Moment
    ends_at: Moment


class EventUpdate(Arguments):
    event_id: str = _EVENT_ID
    title: str | None = Field(default=None, description="The new title; null to keep it.")
    location: str | None = Field(default=None, description="The new place; null to keep it.")
    notes: str | None = Field(default=None, description="The new notes; null to keep them.")


class EventPeople(Arguments):
    event_id: str = _EVENT_ID
    people: list[str] = _ADDRESSES


class EventChoice(Arguments):
    event_id: str = _EVENT_ID


class FreeTime(Arguments):
    people: list[str] = Field(description="Mail addresses of those who must be free beside yourself.")
    day: Day
    minutes: int = Field(ge=5, le=480, description="How long it has to be at least.")


class CalendarTools:
    """Tools of the calendar. Everybody may see everything; an event is changed by who organizes it."""

    @tool
    async def list_events(self, days: Days, session: Session) -> dict[str, Any]:
        """List what is in a calendar from a first to a last day, both included."""
        office = office_of(session)
        _moment(f"{days.first_day}T00:00", "first_day")
        _moment(f"{days.last_day}T00:00", "last_day")
        (person,) = office.check_addresses("person", [days.person or office.me])
        return {"events": _events_of(office, person, days.first_day, days.last_day)}

    @tool
    async def search_events(self, search: EventSearch, session: Session) -> dict[str, Any]:
        """Find events of the whole company by a text."""
        office = office_of(session)
        found = office.select(
            "SELECT id FROM events WHERE instr(lower(title || char(10) || location || char(10) || notes), lower(?)) > 0"
            " ORDER BY starts_at, id",
            search.words,
        )
        return {"events": [_event(office, row["id"]) for row in found]}

    @tool
    async def find_free_time(self, wanted: FreeTime, session: Session) -> dict[str, Any]:
        """Tell when you and others are all free between 09:00 and 17:00 of a day."""
        office = office_of(session)
        people = office.check_addresses("people", [*wanted.people, office.me])
        begin = _moment(f"{wanted.day}T{DAY_BEGINS}", "day")
        end = _moment(f"{wanted.day}T{DAY_ENDS}", "day")
        busy = sorted(
            (event["starts_at"], event["ends_at"])
            for person in people
            for event in _events_of(office, person, wanted.day, wanted.day)
        )
        free, since = [], begin
        for starts_at, ends_at in [*((_moment(a, "event"), _moment(b, "event")) for a, b in busy), (end, end)]:
            until = min(starts_at, end)
            if until - since >= timedelta(minutes=wanted.minutes):
                free.append({"from": since.strftime(_MOMENT_FORMAT), "to": until.strftime(_MOMENT_FORMAT)})
            since = max(since, ends_at)
        return {"free": free}

    @tool
    async def create_event(self, event: NewEvent, session: Session) -> dict[str, Any]:
        """Put an event into your calendar and those of its attendees. You organize it, and always attend."""
        office = office_of(session)
        _check_order(event.starts_at, event.ends_at)
        attendees = office.check_addresses("attendees", event.attendees)
        event_id = office.new_id("events", "e")
        with office.transaction():
            made = {**event.model_dump(), "attendees": attendees, "id": event_id, "organizer": office.me}
            office.insert_event(made)
        return {"created": _event(office, event_id)}

    @tool
    async def move_event(self, move: EventMove, session: Session) -> dict[str, Any]:
        """Give an event that you organize another time."""
        office = office_of(session)
        event = _own_event(office, move.event_id)
        _check_order(move.starts_at, move.ends_at)
        with office.transaction():
            statement = "UPDATE events SET starts_at = ?, ends_at = ? WHERE id = ?"
            office.change(statement, move.starts_at, move.ends_at, event["id"])
        return {"moved": _event(office, event["id"])}

    @tool
    async def update_event(self, update: EventUpdate, session: Session) -> dict[str, Any]:
        """Change the title, place or notes of an event that you organize."""
        office = office_of(session)
        event = _own_event(office, update.event_id)
        title, location, notes = (
            event[name] if value is None else value
            for name, value in (("title", update.title), ("location", update.location), ("notes", update.notes))
        )
        with office.transaction():
            statement = "UPDATE events SET title = ?, location = ?, notes = ? WHERE id = ?"
            office.change(statement, title, location, notes, event["id"])
        return {"updated": _event(office, event["id"])}

    @tool
    async def add_attendees(self, addition: EventPeople, session: Session) -> dict[str, Any]:
        """Invite more people to an event that you organize."""
        office = office_of(session)
        event = _own_event(office, addition.event_id)
        people = office.check_addresses("people", addition.people)
        with office.transaction():
            for address in people:
                if address not in event["attendees"]:
                    office.insert("attendees", {"event_id": event["id"], "address": address})
        return {"updated": _event(office, event["id"])}

    @tool
    async def remove_attendees(self, removal: EventPeople, session: Session) -> dict[str, Any]:
        """Take people off an event that you organize."""
        office = office_of(session)
        event = _own_event(office, removal.event_id)
        people = office.check_addresses("people", removal.people)
        for address in people:
            if address == office.me:
                raise RequestError(422, "invalid_request", "people: who organizes an event stays; cancel_event ends it")
            if address not in event["attendees"]:
                raise RequestError(404, "not_found", f"people: {address} does not attend {event['id']}")
        with office.transaction():
            for address in people:
                office.change("DELETE FROM attendees WHERE event_id = ? AND address = ?", event["id"], address)
        return {"updated": _event(office, event["id"])}

    @tool
    async def cancel_event(self, choice: EventChoice, session: Session) -> dict[str, Any]:
        """Cancel an event that you organize, for everybody."""
        office = office_of(session)
        event = _own_event(office, choice.event_id)
        with office.transaction():
            office.change("DELETE FROM events WHERE id = ?", event["id"])
            office.change("DELETE FROM attendees WHERE event_id = ?", event["id"])
        return {"cancelled": event}


def _event(office: Office, event_id: str) -> dict[str, Any]:
    found = office.select("SELECT * FROM events WHERE id = ?", event_id)
    if not found:
        message = f"there is no event {event_id!r}; list_events and search_events tell the ids of those there are"
        raise RequestError(404, "not_found", message)
    attendees = office.select("SELECT address FROM attendees WHERE event_id = ? ORDER BY address", event_id)
    return {**found[0], "attendees": [row["address"] for row in attendees]}


def _own_event(office: Office, event_id: str) -> dict[str, Any]:
    event = _event(office, event_id)
    if event["organizer"] != office.me:
        message = f"{event_id} is organized by {event['organizer']}, who alone may change it"
        raise RequestError(403, "not_allowed", message)
    return event


def _events_of(office: Office, person: str, first_day: str, last_day: str) -> list[dict[str, Any]]:
    found = office.select(
        "SELECT id FROM events JOIN attendees ON event_id = id WHERE address = ?"
        " AND starts_at <= ? || 'T23:59' AND ends_at >= ? || 'T00:00' ORDER BY starts_at, id",
        person,
        last_day,
        first_day,
    )
    return [_event(office, row["id"]) for row in found]


def _check_order(starts_at: str, ends_at: str) -> None:
    if _moment(starts_at, "starts_at") >= _moment(ends_at, "ends_at"):
        raise RequestError(422, "invalid_request", f"ends_at: {ends_at} is not after {starts_at}, when it starts")


def _moment(text: str, field: str) -> datetime:
    try:
        return datetime.strptime(text, _MOMENT_FORMAT)  # noqa: DTZ007 - the office has one time zone, and names none
    except ValueError:
        raise RequestError(422, "invalid_request", f"{field}: {text} is in no calendar") from None
