"""The workplace by itself: what each tool does and refuses, and what the verifier makes of the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from images.resources_servers.workplace.app import Workplace
from images.resources_servers.workplace.office import Office
from nemo_gym.servers.testing import Running, serving

ME, MEI = "ines.calloway@tidemark.example", "mei.tanaka@tidemark.example"
TOMAS, GRETA = "tomas.novak@tidemark.example", "greta.olsen@tidemark.example"
SEED = {"responses_create_params": {"input": "x"}}

Action = tuple[str, dict[str, Any]]


def done(*actions: Action) -> dict[str, Any]:
    reference = [{"name": name, "arguments": arguments} for name, arguments in actions]
    return {**SEED, "response": {"output": []}, "reference_actions": reference}


@asynccontextmanager
async def seeded() -> AsyncIterator[Running[Workplace]]:
    async with serving(Workplace) as workplace:
        await workplace.post("/seed_session", SEED)
        yield workplace


async def call(workplace: Running[Workplace], name: str, /, **arguments: Any) -> dict[str, Any]:
    answer = await workplace.post(f"/{name}", arguments)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def verdict_after(*actions: Action, expected: list[Action]) -> list[str]:
    """The differences after ``actions``; the reward is 1.0 exactly when there are none."""
    async with seeded() as workplace:
        for name, arguments in actions:
            await call(workplace, name, **arguments)
        verdict = (await workplace.post("/verify", done(*expected))).json()
    assert verdict["reward"] == float(not verdict["differences"])
    return list(verdict["differences"])


class TestMail:
    async def test_search_is_by_words_folder_and_sender_and_the_newest_come_first(self) -> None:
        async with seeded() as workplace:
            from_greta = await call(workplace, "search_mail", sender="greta")
            ladders = await call(workplace, "search_mail", words="LADDERS", folder="inbox")
            percent = await call(workplace, "search_mail", words="20 percent", sender=None, folder=None)
            wildcard = await call(workplace, "search_mail", words="%")
            everything = await call(workplace, "search_mail")
        assert [mail["id"] for mail in from_greta["mails"]] == ["m-20", "m-06"]
        assert ladders == {
            "mails": [
                {
                    "id": "m-04",
                    "folder": "inbox",
                    "sender": TOMAS,
                    "subject": "Re: Ladders",
                    "sent_at": "2025-03-04T15:30",
                }
            ],
            "left_out": 0,
        }
        assert [mail["id"] for mail in percent["mails"]] == ["m-08"]
        assert wildcard["mails"] == []
        assert (len(everything["mails"]), everything["left_out"]) == (25, 3)

    async def test_a_mail_is_sent_now_with_its_files_as_they_are_now(self) -> None:
        async with seeded() as workplace:
            sent = await call(
                workplace,
                "send_mail",
                to=[MEI, TOMAS.upper(), MEI],
                cc=[GRETA, MEI],
                subject="S",
                body="B",
                attachments=["/office/rooms.md"],
            )
            shown = await call(workplace, "read_mail", mail_id="m-29")
        assert sent["sent"] == shown
        assert shown == {
            "id": "m-29",
            "folder": "sent",
            "sender": ME,
            "subject": "S",
            "body": "B",
            "sent_at": "2025-03-12T09:00",
            "in_reply_to": None,
            "to": [MEI, TOMAS],
            "cc": [GRETA],
            "attachments": ["/office/rooms.md"],
        }

    async def test_a_reply_goes_to_the_sender_or_to_all_and_stays_in_its_conversation(self) -> None:
        async with seeded() as workplace:
            plain = (await call(workplace, "reply_to_mail", mail_id="m-15", body="B"))["sent"]
            to_all = (await call(workplace, "reply_to_mail", mail_id="m-15", body="B", to_all=True))["sent"]
            own = (await call(workplace, "reply_to_mail", mail_id="m-12", body="B"))["sent"]
            again = (await call(workplace, "reply_to_mail", mail_id="m-04", body="B"))["sent"]
        assert (plain["to"], plain["cc"]) == (["carlos.ibarra@deltaports.example"], [])
        assert (to_all["to"], to_all["cc"]) == (plain["to"], ["samuel.okoro@tidemark.example"])
        assert (plain["subject"], plain["in_reply_to"]) == ("Re: Invoice 2217", "m-15")
        assert own["to"] == ["leo.marchetti@tidemark.example"]
        assert again["subject"] == "Re: Ladders"

    async def test_what_is_forwarded_keeps_its_text_and_its_attachments(self) -> None:
        async with seeded() as workplace:
            sent = (await call(workplace, "forward_mail", mail_id="m-28", to=[GRETA], note=" Look: "))["sent"]
        assert sent["subject"] == "Fwd: Days off"
        begin = "Look:\n\nForwarded mail from mei.tanaka@tidemark.example, 2025-03-12T08:45:\nI take 22 to 25"
        assert sent["body"].startswith(begin)
        assert sent["attachments"] == ["/people/mei/request.txt"]

    async def test_what_is_deleted_lies_in_the_trash(self) -> None:
        async with seeded() as workplace:
            moved = await call(workplace, "delete_mail", mail_id="m-25")
            trash = await call(workplace, "search_mail", folder="trash")
        assert moved == {"mail_id": "m-25", "moved_from": "inbox", "moved_to": "trash"}
        assert [mail["id"] for mail in trash["mails"]] == ["m-25"]


class TestCalendar:
    async def test_a_calendar_is_listed_by_day_and_person(self) -> None:
        async with seeded() as workplace:
            mine = await call(workplace, "list_events", first_day="2025-03-13", last_day="2025-03-14")
            meis = await call(workplace, "list_events", first_day="2025-03-13", last_day="2025-03-13", person=MEI)
            found = await call(workplace, "search_events", words="canteen")
        assert [event["id"] for event in mine["events"]] == ["e-04", "e-05", "e-07"]
        assert [event["id"] for event in meis["events"]] == ["e-04", "e-06"]
        assert [event["title"] for event in found["events"]] == ["Lunch with Greta", "Release party for Gauge 4"]

    async def test_free_time_is_what_nobodys_events_cover(self) -> None:
        priya = "priya.raman@tidemark.example"
        async with seeded() as workplace:
            half = await call(workplace, "find_free_time", people=[priya], day="2025-03-13", minutes=30)
            two = await call(workplace, "find_free_time", people=[priya, ME], day="2025-03-13", minutes=120)
            alone = await call(workplace, "find_free_time", people=[], day="2025-03-24", minutes=5)
            weekend = await call(workplace, "find_free_time", people=[priya], day="2025-03-15", minutes=480)
        hours = [(slot["from"][-5:], slot["to"][-5:]) for slot in half["free"]]
        assert hours == [("09:15", "11:00"), ("11:30", "13:00"), ("15:00", "17:00")]
        assert two["free"] == [{"from": "2025-03-13T15:00", "to": "2025-03-13T17:00"}]
        assert alone["free"] == [{"from": "2025-03-24T16:00", "to": "2025-03-24T17:00"}]
        assert weekend["free"] == [{"from": "2025-03-15T09:00", "to": "2025-03-15T17:00"}]

    async def test_free_time_with_events_that_overlap_or_reach_over_the_day(self) -> None:
        async with seeded() as workplace:
            day = "2025-03-27"
            for start, end in [("08:00", "09:30"), ("10:00", "12:00"), ("10:30", "11:00"), ("16:30", "18:00")]:
                await call(workplace, "create_event", title="T", starts_at=f"{day}T{start}", ends_at=f"{day}T{end}")
            free = (await call(workplace, "find_free_time", people=[], day=day, minutes=15))["free"]
        hours = [(slot["from"][-5:], slot["to"][-5:]) for slot in free]
        assert hours == [("09:30", "10:00"), ("12:00", "16:30")]

    async def test_an_event_is_made_moved_changed_and_cancelled(self) -> None:
        async with seeded() as workplace:
            times = {"starts_at": "2025-03-19T09:00", "ends_at": "2025-03-19T10:00"}
            made = (await call(workplace, "create_event", title="T", attendees=[MEI, ME], location="L", **times))[
                "created"
            ]
            later = {"starts_at": "2025-03-20T09:00", "ends_at": "2025-03-20T10:30"}
            moved = (await call(workplace, "move_event", event_id="e-22", **later))["moved"]
            named = (await call(workplace, "update_event", event_id="e-22", title="U", notes="N"))["updated"]
            more = (await call(workplace, "add_attendees", event_id="e-22", people=[TOMAS, MEI]))["updated"]
            less = (await call(workplace, "remove_attendees", event_id="e-22", people=[MEI]))["updated"]
            await call(workplace, "cancel_event", event_id="e-22")
            gone = await workplace.post("/cancel_event", {"event_id": "e-22"})
        people = [ME, MEI]
        first = {"id": "e-22", "title": "T", "organizer": ME, "location": "L", "notes": "", "attendees": people}
        assert made == {**first, **times}
        assert moved == {**first, **later}
        assert named == {**moved, "title": "U", "notes": "N"}
        assert (more["attendees"], less["attendees"]) == ([ME, MEI, TOMAS], [ME, TOMAS])
        assert gone.status == 404


class TestFiles:
    async def test_files_are_listed_and_found(self) -> None:
        async with seeded() as workplace:
            listed = await call(workplace, "list_files", folder="/projects/")
            everything = await call(workplace, "list_files", folder="/")
            found = await call(workplace, "search_files", words="train")
        assert listed["files"] == ["/projects/gauge-4/plan.md", "/projects/gauge-4/risks.md"]
        assert len(everything["files"]) == 22
        assert found["files"] == [
            "/finance/budget-2025.csv",
            "/finance/receipts/cologne-2025-02-26.txt",
            "/policies/travel.md",
        ]

    async def test_a_file_is_written_added_to_moved_copied_and_deleted(self) -> None:
        async with seeded() as workplace:
            made = await call(workplace, "write_file", path="/new/a.txt", content="one")
            added = await call(workplace, "append_to_file", path="/new/a.txt", text="two\n")
            await call(workplace, "copy_file", path="/new/a.txt", new_path="/new/b.txt")
            await call(workplace, "move_file", path="/new/b.txt", new_path="/other/b.txt")
            replaced = await call(workplace, "write_file", path="/new/a.txt", content="three", overwrite=True)
            copy = await call(workplace, "read_file", path="/other/b.txt")
            await call(workplace, "delete_file", path="/new/a.txt")
            gone = await workplace.post("/list_files", {"folder": "/new"})
        assert made == {"path": "/new/a.txt", "replaced": False}
        assert added["content"] == "one\ntwo\n"
        assert replaced["replaced"]
        assert copy["content"] == "one\ntwo\n"
        assert gone.status == 404


@pytest.mark.parametrize(
    ("name", "arguments", "status", "said"),
    [
        ("read_mail", {"mail_id": "m-99"}, 404, "no mail 'm-99'; search_mail tells the ids"),
        ("read_mail", {"id": "m-01"}, 422, "mail_id: Field required; id: Extra inputs"),
        ("search_mail", {"folder": "outbox"}, 422, "folder: Input should be 'inbox', 'sent', 'archive' or 'trash'"),
        (
            "send_mail",
            {"to": ["Mei"], "subject": "S", "body": "B"},
            422,
            "to: 'mei' is no mail address; see",
        ),
        (
            "send_mail",
            {"to": ["mei.tanka@tidemark.example"], "subject": "S", "body": "B"},
            404,
            "to: nobody has the address mei.tanka@tidemark.example; did you mean mei.tanaka@tidemark.example?",
        ),
        ("send_mail", {"to": [], "subject": "S", "body": "B"}, 422, "to: List should have at least 1 item"),
        (
            "send_mail",
            {"to": [MEI], "subject": "S", "body": "B", "attachments": ["/none.txt"]},
            404,
            "attachments: there is no file '/none.txt'",
        ),
        ("forward_mail", {"mail_id": "m-01", "to": ["nobody@tidemark.example"]}, 404, "to: nobody has the address"),
        (
            "move_event",
            {"event_id": "e-05", "starts_at": "2025-03-14", "ends_at": "x"},
            422,
            "starts_at: String should",
        ),
        (
            "move_event",
            {"event_id": "e-05", "starts_at": "2025-03-14T10:00", "ends_at": "2025-03-14T10:00"},
            422,
            "ends_at: 2025-03-14T10:00 is not after",
        ),
        (
            "create_event",
            {"title": "T", "starts_at": "2025-02-30T10:00", "ends_at": "2025-03-14T10:00"},
            422,
            "starts_at: 2025-02-30T10:00 is in no calendar",
        ),
        ("cancel_event", {"event_id": "e-06"}, 403, "e-06 is organized by priya.raman@tidemark.example, who alone"),
        ("update_event", {"event_id": "e-99", "title": "T"}, 404, "no event 'e-99'; list_events and search_events"),
        (
            "remove_attendees",
            {"event_id": "e-05", "people": [GRETA]},
            404,
            "greta.olsen@tidemark.example does not",
        ),
        ("remove_attendees", {"event_id": "e-05", "people": [ME]}, 422, "who organizes an event stays"),
        (
            "list_events",
            {"first_day": "2025-13-01", "last_day": "2025-03-01"},
            422,
            "first_day: 2025-13-01T00:00 is",
        ),
        ("find_free_time", {"people": [], "day": "2025-03-13", "minutes": 0}, 422, "minutes: Input should be greater"),
        ("read_file", {"path": "/office/room.md"}, 404, "no file /office/room.md; did you mean /office/rooms.md?"),
        ("read_file", {"path": "../etc/passwd"}, 422, "path: String should match pattern"),
        ("write_file", {"path": "/office/rooms.md", "content": ""}, 409, "is there already; with overwrite it is"),
        ("write_file", {"path": "/office/rooms.md/a", "content": ""}, 409, "/office/rooms.md is there already"),
        ("write_file", {"path": "/office", "content": ""}, 409, "/office cannot be made: /office/"),
        ("move_file", {"path": "/office/todo.md", "new_path": "/office/rooms.md"}, 409, "/office/rooms.md is there"),
        ("append_to_file", {"path": "/zzz.md", "text": "x"}, 404, "no file /zzz.md; "),
        ("list_files", {"folder": "/nowhere"}, 404, "no files in '/nowhere'; / lists all"),
    ],
)
async def test_what_cannot_be_done_is_said_and_changes_nothing(
    name: str, arguments: dict[str, Any], status: int, said: str
) -> None:
    async with seeded() as workplace:
        refused = await workplace.post(f"/{name}", arguments)
        verdict = (await workplace.post("/verify", done())).json()
    assert refused.status == status
    assert said in refused.json()["error"]["message"]
    assert (verdict["reward"], verdict["differences"]) == (1.0, [])


async def test_people_are_found_by_name_role_and_team() -> None:
    async with seeded() as workplace:
        engineers = await call(workplace, "find_people", words="engineering")
        all_of_them = await call(workplace, "find_people", words="")
    assert [person["name"] for person in engineers["people"]] == ["Jonas Weber", "Mei Tanaka", "Priya Raman"]
    assert len(all_of_them["people"]) == 15


SEND_MEI: Action = ("send_mail", {"to": [MEI], "subject": "Hello", "body": "How are  you?"})
SEND_LATER: Action = ("send_mail", {"to": [MEI], "subject": "Hello", "body": "How are you later?"})
SEND_TOMAS: Action = ("send_mail", {"to": [TOMAS, GRETA], "subject": "Hi", "body": "B"})
WRITE: Action = ("write_file", {"path": "/a.txt", "content": "one\ntwo\n"})
CANCEL: Action = ("cancel_event", {"event_id": "e-13"})
MEETING: Action = (
    "create_event",
    {"title": "Talk", "starts_at": "2025-03-14T12:00", "ends_at": "2025-03-14T13:00", "attendees": [MEI, TOMAS]},
)


def reply(number: int) -> Action:
    """To the mail that is sent as the first or second of a session."""
    return ("reply_to_mail", {"mail_id": f"m-{28 + number}", "body": "One more thing."})


class TestVerdict:
    @pytest.mark.parametrize("actions", [[SEND_MEI, SEND_LATER, reply(1)], [SEND_LATER, SEND_MEI, reply(2)]])
    async def test_a_reply_to_a_new_mail_is_known_by_what_that_says(self, actions: list[Action]) -> None:
        assert await verdict_after(*actions, expected=[SEND_MEI, SEND_LATER, reply(1)]) == []

    @pytest.mark.parametrize("actions", [[SEND_MEI, SEND_LATER, reply(2)], [SEND_LATER, SEND_MEI, reply(1)]])
    async def test_and_one_to_another_new_mail_is_another(self, actions: list[Action]) -> None:
        missing, made = await verdict_after(*actions, expected=[SEND_MEI, SEND_LATER, reply(1)])
        assert missing.startswith("missing: mail with")
        assert "in_reply_to [hello, how are you?], to [mei" in missing
        assert made.startswith("not asked for: mail with")
        assert "in_reply_to [hello, how are you later?], to [mei" in made

    @pytest.mark.parametrize(
        ("actions", "expected"),
        [
            ([SEND_TOMAS, MEETING, SEND_MEI], [SEND_MEI, SEND_TOMAS, MEETING]),
            ([("send_mail", {"to": [GRETA, TOMAS], "subject": "HI", "body": " b\n"})], [SEND_TOMAS]),
            ([("write_file", {"path": "/a.txt", "content": "one  \ntwo\n\n"})], [WRITE]),
            ([WRITE, ("delete_file", {"path": "/a.txt"})], []),
            ([("move_mail", {"mail_id": "m-08", "folder": "trash"})], [("delete_mail", {"mail_id": "m-08"})]),
            ([("read_mail", {"mail_id": "m-08"}), ("list_files", {"folder": "/"})], []),
            (
                [
                    ("update_event", {"event_id": "e-14", "location": "x"}),
                    ("update_event", {"event_id": "e-14", "location": "canteen"}),
                ],
                [("update_event", {"event_id": "e-14", "location": "Canteen"})],
            ),
        ],
    )  # fmt: skip
    async def test_order_way_and_white_space_do_not_count(self, actions: list[Action], expected: list[Action]) -> None:
        assert await verdict_after(*actions, expected=expected) == []

    async def test_what_is_missing_changed_or_was_not_asked_for_is_told(self) -> None:
        mail = f"mail with folder 'sent', sender '{ME}', "
        hello = mail + f"subject 'hello', body 'how are you?', sent_at '2025-03-12T09:00', to [{MEI}]"
        hi = mail + f"subject 'hi', body 'b', sent_at '2025-03-12T09:00', to [{GRETA}, {TOMAS}]"
        assert await verdict_after(SEND_TOMAS, expected=[SEND_MEI]) == [f"missing: {hello}", f"not asked for: {hi}"]
        assert await verdict_after(expected=[("delete_mail", {"mail_id": "m-08"})]) == [
            "mail m-08: folder is 'inbox'; expected 'trash'"
        ]
        assert await verdict_after(CANCEL, expected=[]) == ["event e-13 is missing"]
        assert await verdict_after(expected=[CANCEL]) == ["event e-13 is there, and should not be"]
        uninvited = ("remove_attendees", {"event_id": "e-05", "people": [MEI]})
        assert await verdict_after(uninvited, expected=[]) == [
            f"event e-05: attendees is [{ME}, {TOMAS}]; expected [{ME}, {MEI}, {TOMAS}]"
        ]
        assert await verdict_after(WRITE, expected=[]) == ["file /a.txt is there, and should not be"]
        other = ("write_file", {"path": "/a.txt", "content": "one\nTwo\n"})
        assert await verdict_after(other, expected=[WRITE]) == [
            "file /a.txt: content is 'one\\nTwo'; expected 'one\\ntwo'"
        ]
        assert await verdict_after(expected=[("delete_file", {"path": "/tmp/seating.txt"})]) == [
            "file /tmp/seating.txt is there, and should not be"
        ]

    @pytest.mark.parametrize(
        ("actions", "expected"),
        [
            ([SEND_MEI, SEND_MEI], [SEND_MEI]),
            ([SEND_MEI], [SEND_MEI, SEND_MEI]),
            ([("send_mail", {"to": [MEI], "cc": [GRETA], "subject": "S", "body": "B"})],
             [("send_mail", {"to": [MEI, GRETA], "subject": "S", "body": "B"})]),
            ([("reply_to_mail", {"mail_id": "m-09", "body": "B"})],
             [("send_mail", {"to": [MEI], "subject": "Re: My chair", "body": "B"})]),
            ([("send_mail", {"to": [MEI], "subject": "S", "body": "B", "attachments": ["/office/todo.md"]})],
             [("send_mail", {"to": [MEI], "subject": "S", "body": "B", "attachments": ["/office/rooms.md"]})]),
        ],
    )  # fmt: skip
    async def test_what_makes_a_difference(self, actions: list[Action], expected: list[Action]) -> None:
        assert len(await verdict_after(*actions, expected=expected)) >= 1

    async def test_a_file_that_is_attached_counts_as_it_was_then(self) -> None:
        write = ("write_file", {"path": "/office/todo.md", "content": "new", "overwrite": True})
        send = ("send_mail", {"to": [MEI], "subject": "S", "body": "B", "attachments": ["/office/todo.md"]})
        assert await verdict_after(write, send, expected=[write, send]) == []
        assert len(await verdict_after(send, write, expected=[write, send])) == 2

    async def test_a_verdict_stays_and_its_session_is_over(self) -> None:
        async with seeded() as workplace:
            first = (await workplace.post("/verify", done())).json()
            ended = await workplace.post("/find_people", {"words": ""})
            second = (await workplace.post("/verify", done())).json()
            await workplace.post("/seed_session", SEED)
            await call(workplace, *CANCEL[:1], **CANCEL[1])
            third = (await workplace.post("/verify", done())).json()
        assert first == second
        assert (ended.status, ended.json()["error"]["type"]) == (409, "no_session")
        assert (first["reward"], third["reward"]) == (1.0, 0.0)

    @pytest.mark.parametrize(
        ("row", "field"),
        [
            ({**SEED, "response": {"output": []}}, "reference_actions"),
            (done(("fly", {})), "reference_actions.0.name"),
            (done(SEND_MEI, ("cancel_event", {"event_id": "e-06"})), "reference_actions.1"),
            (done(("read_mail", {"mail": "m-01"})), "reference_actions.0.arguments.mail_id"),
        ],
    )
    async def test_a_row_that_nothing_can_be_judged_by_is_refused(self, row: dict[str, Any], field: str) -> None:
        async with seeded() as workplace:
            refused = await workplace.post("/verify", row)
        assert refused.status == 422
        assert ".".join(map(str, refused.json()["detail"][0]["loc"])) == f"body.{field}"

    async def test_nothing_is_judged_without_a_session(self) -> None:
        async with serving(Workplace) as workplace:
            refused = await workplace.post("/verify", done())
            mode = (await workplace.get("/reverify_mode")).json()
        assert (refused.status, mode) == (409, "unsupported")


async def test_two_hundred_sessions_do_not_mix() -> None:
    async with serving(Workplace) as workplace, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as callers:
        client = Running(workplace.server, workplace.url, callers)
        seeded_already = asyncio.Barrier(200)

        async def rollout(number: int) -> tuple[float, float]:
            seeded = await client.post("/seed_session", SEED)
            cookie = {"Cookie": seeded.headers["Set-Cookie"].partition(";")[0]}
            await seeded_already.wait()
            mine = {"path": f"/mine/{number}.txt", "content": str(number)}
            await client.post("/write_file", mine, cookie)
            listed = (await client.post("/list_files", {"folder": "/mine"}, cookie)).json()["files"]
            verdict = (await client.post("/verify", done(("write_file", mine)), cookie)).json()
            return float(listed == [f"/mine/{number}.txt"]), verdict["reward"]

        rewards = await asyncio.gather(*(rollout(number) for number in range(200)))
    assert rewards == [(1.0, 1.0)] * 200


async def test_offices_are_released_with_their_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    open_offices: set[int] = set()
    copy, close = Office.copy, Office.close

    def counted_copy(office: Office) -> Office:
        made = copy(office)
        open_offices.add(id(made))
        return made

    def counted_close(office: Office) -> None:
        open_offices.discard(id(office))
        close(office)

    monkeypatch.setattr(Office, "copy", counted_copy)
    monkeypatch.setattr(Office, "close", counted_close)
    now = 0.0
    async with (
        serving(Workplace) as workplace,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as callers,
    ):
        monkeypatch.setattr(workplace.server._sessions, "_clock", lambda: now)
        client = Running(workplace.server, workplace.url, callers)
        for _ in range(5):
            await client.post("/seed_session", SEED)
        assert len(open_offices) == 5
        now += workplace.server.settings.session_idle_s
        cookie = {"Cookie": (await client.post("/seed_session", SEED)).headers["Set-Cookie"].partition(";")[0]}
        assert len(open_offices) == 1  # the idle ones went
        await client.post("/seed_session", SEED, cookie)
        assert len(open_offices) == 1  # begun anew
        await client.post("/verify", done(SEND_MEI), cookie)
        assert open_offices == set()  # judged
        await client.post("/seed_session", SEED)
    assert open_offices == set()  # the server has ended
