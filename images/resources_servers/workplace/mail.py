"""The mailbox: search, read, send, reply, forward, file away."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from images.resources_servers.workplace.office import Arguments, Office, office_of
from nemo_gym.servers.resources import RequestError, Session, tool

MOST_FOUND = 25
Folder = Literal["inbox", "sent", "archive", "trash"]
_MAIL_ID = Field(description="The mail's id, such as m-07, as search_mail tells it.")
_TO = Field(min_length=1, description="Mail addresses.")


class MailSearch(Arguments):
    words: str | None = Field(default=None, description="A text in the subject or body; null for any.")
    folder: Folder | None = Field(default=None, description="Where to look; null for everywhere.")
    sender: str | None = Field(default=None, description="A part of the sender's address; null for anybody.")


class MailChoice(Arguments):
    mail_id: str = _MAIL_ID


class NewMail(Arguments):
    to: list[str] = _TO
    cc: list[str] = Field(default=[], description="Mail addresses that get a copy.")
    subject: str = Field(min_length=1)
    body: str = Field(min_length=1)
    attachments: list[str] = Field(default=[], description="Paths of files to attach as they are now.")


class Reply(Arguments):
    mail_id: str = _MAIL_ID
    body: str = Field(min_length=1)
    to_all: bool = Field(default=False, description="Whether the mail's other recipients get the reply too.")


class Forward(Arguments):
    mail_id: str = _MAIL_ID
    to: list[str] = _TO
    note: str = Field(default="", description="A text of your own above the forwarded one; may be empty.")


class MailMove(Arguments):
    mail_id: str = _MAIL_ID
    folder: Folder


class MailTools:
    """Tools of the mailbox. Nothing is ever gone: what is deleted lies in the trash."""

    @tool
    async def search_mail(self, search: MailSearch, session: Session) -> dict[str, Any]:
        """List mails, the newest first, without their bodies. All conditions must hold."""
        office = office_of(session)
        found = office.select(
            "SELECT id, folder, sender, subject, sent_at FROM mails"
            " WHERE (?1 IS NULL OR instr(lower(subject || char(10) || body), lower(?1)) > 0)"
            " AND (?2 IS NULL OR folder = ?2) AND (?3 IS NULL OR instr(lower(sender), lower(?3)) > 0)"
            " ORDER BY sent_at DESC, id DESC",
            search.words,
            search.folder,
            search.sender,
        )
        return {"mails": found[:MOST_FOUND], "left_out": max(0, len(found) - MOST_FOUND)}

    @tool
    async def read_mail(self, choice: MailChoice, session: Session) -> dict[str, Any]:
        """Show one mail whole."""
        return _mail(office_of(session), choice.mail_id)

    @tool
    async def send_mail(self, mail: NewMail, session: Session) -> dict[str, Any]:
        """Send a new mail."""
        office = office_of(session)
        to = office.check_addresses("to", mail.to)
        cc = [address for address in office.check_addresses("cc", mail.cc) if address not in to]
        attachments = {path: _file_content(office, path) for path in mail.attachments}
        sent = {"to": to, "cc": cc, "subject": mail.subject, "body": mail.body, "attachments": attachments}
        return _send(office, sent)

    @tool
    async def reply_to_mail(self, reply: Reply, session: Session) -> dict[str, Any]:
        """Answer a mail, in its conversation: to its sender or, with to_all, to its other recipients as well."""
        office = office_of(session)
        mail = _mail(office, reply.mail_id)
        # Of one's own mail, those it went to are meant.
        to = mail["to"] if mail["sender"] == office.me else [mail["sender"]]
        others = [address for address in [*mail["to"], *mail["cc"]] if address not in (*to, office.me)]
        subject = mail["subject"] if mail["subject"].startswith("Re: ") else f"Re: {mail['subject']}"
        cc = others if reply.to_all else []
        return _send(office, {"to": to, "cc": cc, "subject": subject, "body": reply.body, "in_reply_to": mail["id"]})

    @tool
    async def forward_mail(self, forward: Forward, session: Session) -> dict[str, Any]:
        """Send a mail on to others, with its attachments."""
        office = office_of(session)
        mail = _mail(office, forward.mail_id)
        to = office.check_addresses("to", forward.to)
        quoted = f"Forwarded mail from {mail['sender']}, {mail['sent_at']}:\n{mail['body']}"
        body = f"{forward.note.strip()}\n\n{quoted}".strip()
        attachments = {
            row["path"]: row["content"]
            for row in office.select("SELECT path, content FROM attachments WHERE mail_id = ?", mail["id"])
        }
        sent = {"to": to, "subject": f"Fwd: {mail['subject']}", "body": body, "attachments": attachments}
        return _send(office, sent)

    @tool
    async def move_mail(self, move: MailMove, session: Session) -> dict[str, Any]:
        """Put a mail into another folder."""
        return _move(office_of(session), move.mail_id, move.folder)

    @tool
    async def delete_mail(self, choice: MailChoice, session: Session) -> dict[str, Any]:
        """Put a mail into the trash."""
        return _move(office_of(session), choice.mail_id, "trash")


def _mail(office: Office, mail_id: str) -> dict[str, Any]:
    found = office.select("SELECT * FROM mails WHERE id = ?", mail_id)
    if not found:
        raise RequestError(
            404, "not_found", f"there is no mail {mail_id!r}; search_mail tells the ids of those there are"
        )
    recipients = office.select("SELECT address, field FROM recipients WHERE mail_id = ? ORDER BY address", mail_id)
    attached = office.select("SELECT path FROM attachments WHERE mail_id = ? ORDER BY path", mail_id)
    return {
        **found[0],
        "to": [row["address"] for row in recipients if row["field"] == "to"],
        "cc": [row["address"] for row in recipients if row["field"] == "cc"],
        "attachments": [row["path"] for row in attached],
    }


def _send(office: Office, mail: dict[str, Any]) -> dict[str, Any]:
    mail_id = office.new_id("mails", "m")
    with office.transaction():
        office.insert_mail({**mail, "id": mail_id, "folder": "sent", "sender": office.me, "sent_at": office.now})
    return {"sent": _mail(office, mail_id)}


def _move(office: Office, mail_id: str, folder: str) -> dict[str, Any]:
    mail = _mail(office, mail_id)
    with office.transaction():
        office.change("UPDATE mails SET folder = ? WHERE id = ?", folder, mail_id)
    return {"mail_id": mail_id, "moved_from": mail["folder"], "moved_to": folder}


def _file_content(office: Office, path: str) -> str:
    found = office.select("SELECT content FROM files WHERE path = ?", path)
    if not found:
        raise RequestError(
            404, "not_found", f"attachments: there is no file {path!r}; list_files shows those there are"
        )
    return str(found[0]["content"])
