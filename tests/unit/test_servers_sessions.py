from __future__ import annotations

from nemo_gym.servers.sessions import Session, SessionStore


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
