"""Sessions of a resources server: signed cookies and the state behind them."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Session:
    """One rollout's state on one server. ``state`` is the server's own; it lives as long as the session."""

    id: str
    state: dict[str, Any] = field(default_factory=dict)
    last_used: float = 0.0
    cookie: str = field(default="", repr=False)


class SessionExpiredError(Exception):
    """A cookie names a session of this run that is no more."""


class SessionStore:
    """Sessions by cookie. A cookie is ``<id>.<signature>``; one with a wrong signature is no cookie."""

    def __init__(
        self,
        server_name: str,
        secret: str,
        *,
        idle_s: float,
        on_expiry: Callable[[Session], None] = lambda session: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cookie_name = "ng_session_" + re.sub(r"[^A-Za-z0-9_.-]", "_", server_name)
        self._key = hashlib.sha256(b"session cookie\0" + secret.encode()).digest()
        self._idle_s = idle_s
        self._on_expiry = on_expiry
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get_or_create(self, cookie: str | None, *, begins: bool = True) -> Session:
        """The session that a cookie names, else a new one.

        Unless a rollout ``begins``, the cookie of a session that has expired is a ``SessionExpiredError``: a new and
        empty one would be taken for what the rollout has done so far.
        """
        now = self._clock()
        session = self._find(cookie) if cookie else None
        if session is None:
            if cookie and not begins and self._is_signed(cookie):
                raise SessionExpiredError
            self._drop_idle(now)
            session_id = secrets.token_hex(16)
            session = Session(session_id, cookie=f"{session_id}.{self._signature(session_id)}")
            self._sessions[session_id] = session
        session.last_used = now
        self._sessions.move_to_end(session.id)
        return session

    def cookie_header(self, session: Session) -> str:
        """The value of the ``Set-Cookie`` header for a session."""
        return f"{self.cookie_name}={session.cookie}; Path=/; HttpOnly; SameSite=Lax"

    def close(self) -> None:
        """Expire every session."""
        while self._sessions:
            self._on_expiry(self._sessions.popitem(last=False)[1])

    def _drop_idle(self, now: float) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < self._idle_s:
                return
            del self._sessions[oldest.id]
            self._on_expiry(oldest)

    def _signature(self, session_id: str) -> str:
        return hmac.new(self._key, session_id.encode(errors="replace"), hashlib.sha256).hexdigest()[:32]

    def _find(self, cookie: str) -> Session | None:
        session = self._sessions.get(cookie.partition(".")[0])
        if session is not None and hmac.compare_digest(session.cookie.encode(), cookie.encode(errors="replace")):
            return session
        return None

    def _is_signed(self, cookie: str) -> bool:
        session_id, _, signature = cookie.partition(".")
        return hmac.compare_digest(self._signature(session_id).encode(), signature.encode(errors="replace"))
