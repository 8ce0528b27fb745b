from __future__ import annotations

import pytest

from nemo_gym.servers.sessions import Session, SessionExpiredError, SessionStore


def cookie_of(store: SessionStore, session: Session) -> str:
    return store.cookie_header(session).split(";")[0].partition("=")[2]


def test_a_session_is_found_by_its_own_cookie_only() -> None:
    store, other = SessionStore("a b/c", "secret", idle_s=10), SessionStore("a b/c", "other secret", idle_s=10)
    session = store.get_or_create(None)
    assert store.cookie_name == "ng_session_a_b_c"
    assert store.get_or_create(cookie_of(store, session)) is session
    signature = cookie_of(other, other.get_or_create(None)).partition(".")[2]
    assert store.get_or_create(f"{session.id}.{signature}") is not session
    assert store.get_or_create(f"{session.id}.ü\udc80") is not session
    assert store.get_or_create(f"{session.id}.") is not session
    assert store.get_or_create(session.id) is not session
    assert store.get_or_create("ü.ü") is not session


def test_idle_sessions_are_closed_and_used_ones_stay() -> None:
    now, closed = [0.0], list[str]()
    store = SessionStore("s", "k", idle_s=10, on_expiry=lambda s: closed.append(s.id), clock=lambda: now[0])
    first, second = store.get_or_create(None), store.get_or_create(None)
    now[0] = 9
    store.get_or_create(cookie_of(store, first))
    now[0] = 12
    store.get_or_create(None)
    assert closed == [second.id]
    assert store.get_or_create(cookie_of(store, first)) is first
    assert store.get_or_create(cookie_of(store, second)).id != second.id
    store.close()
    assert len(store) == 0
    assert first.id in closed


def test_a_session_that_has_expired_is_not_begun_anew_in_the_middle_of_a_rollout() -> None:
    now = [0.0]
    store = SessionStore("s", "k", idle_s=10, clock=lambda: now[0])
    cookie = cookie_of(store, store.get_or_create(None))
    assert store.get_or_create(cookie, begins=False).cookie == cookie
    now[0] = 11
    assert store.get_or_create(cookie, begins=False).cookie == cookie  # nobody has needed its place yet
    now[0] = 22
    store.get_or_create(None)
    with pytest.raises(SessionExpiredError):
        store.get_or_create(cookie, begins=False)
    assert store.get_or_create(cookie).cookie != cookie
    # what this run has not signed, or nothing at all, is no session that could have expired
    assert store.get_or_create(cookie[:-1] + "!", begins=False).cookie != cookie
    assert store.get_or_create("a.b\udc80", begins=False).cookie != cookie
    assert store.get_or_create(None, begins=False).cookie != cookie
    assert len(store) == 5
