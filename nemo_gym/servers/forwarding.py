"""Requests sent on to an OpenAI-compatible endpoint, and its answers as the APIs promise them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nemo_gym.servers.base import InvalidRequestError, Readiness, ServerSettings
from nemo_gym.servers.chat import ConversionError, chat_request
from nemo_gym.servers.chat_answers import filled_completion, response_of_chat
from nemo_gym.servers.endpoint import Endpoint, RetryPolicy
from nemo_gym.servers.json_values import dumps
from nemo_gym.servers.messages import IncompleteAnswerError, JsonDict, filled_response

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ForwardingSettings(ServerSettings):
    """Which endpoint, as what, and how patiently. The README of ``openai_model`` explains each."""

    openai_base_url: str
    openai_api_key: str = Field(default="", repr=False)
    openai_model: str
    api: Literal["responses", "chat_completions"] = "responses"
    extra_body: dict[str, Any] = Field(default_factory=dict)
    extra_headers: dict[str, str] = Field(default_factory=dict)
    drop_params: list[str] = Field(default_factory=list)
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning"] | None = "reasoning_content"
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    connect_timeout_s: float = Field(default=10.0, gt=0)
    request_timeout_s: float | None = Field(default=3600.0, gt=0)
    retry: RetryPolicy = RetryPolicy()

    @field_validator("openai_api_key")
    @classmethod
    def _key_fits_a_header(cls, key: str) -> str:
        _check_header_value(key)
        return key

    @field_validator("extra_headers")
    @classmethod
    def _headers_can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError("a header's name is letters, digits and hyphens; found one with other characters")
            _check_header_value(value, f"{name}: ")
        return headers

    @model_validator(mode="after")
    def _check_cap(self) -> Self:
        if self.max_concurrent_requests is not None and (self.num_workers or 1) > 1:
            raise ValueError(
                f"max_concurrent_requests is counted by one process, and num_workers is {self.num_workers}: give one"
            )
        return self


def _check_header_value(value: str, of: str = "") -> None:
    """It may be a secret, so the error does not show it."""
    if "\n" in value or "\r" in value:
        found = "a line break (a YAML text after | ends with one, after |- it does not)"
    elif not value.isprintable():
        found = "a control character"
    elif value != value.strip():
        found = "white space at an end"
    else:
        return
    raise ValueError(f"{of}needed: one line without white space at its ends, as a header carries it; found: {found}")


class Forwarder:
    """Sends each request to the endpoint with the configured model name and key. Made in a running event loop."""

    def __init__(self, settings: ForwardingSettings) -> None:
        self._settings = settings
        self._endpoint = Endpoint(
            settings.openai_base_url,
            settings.openai_api_key,
            extra_headers=settings.extra_headers,
            max_concurrent_requests=settings.max_concurrent_requests,
            connect_timeout_s=settings.connect_timeout_s,
            request_timeout_s=settings.request_timeout_s,
            retry=settings.retry,
        )

    async def close(self) -> None:
        await self._endpoint.close()

    async def probe(self) -> Readiness:
        """Whether the endpoint answers at all, and takes the key."""
        return await self._endpoint.probe()

    async def responses(self, params: JsonDict) -> JsonDict:
        """The endpoint's answer to a Responses API request, by way of chat completions where it has only those."""
        if self._settings.api == "chat_completions":
            return await self._responses_by_chat(params)
        response = await self._endpoint.post("/responses", self._body(params))
        try:
            return filled_response(response, params, model=self._settings.openai_model)
        except IncompleteAnswerError as error:
            raise self._endpoint.junk("/responses", str(error), response) from None

    async def chat_completions(self, params: JsonDict) -> JsonDict:
        """The endpoint's answer to a chat completions request, whatever ``api`` says."""
        completion = await self._endpoint.post("/chat/completions", self._body(params))
        try:
            return filled_completion(completion, model=self._settings.openai_model)
        except IncompleteAnswerError as error:
            raise self._endpoint.junk("/chat/completions", str(error), completion) from None

    async def _responses_by_chat(self, params: JsonDict) -> JsonDict:
        settings = self._settings
        try:
            request = chat_request(
                params, max_tokens_field=settings.max_tokens_field, reasoning_field=settings.reasoning_field
            )
        except ConversionError as error:
            raise InvalidRequestError.of_field(error.field, str(error)) from None
        completion = await self._endpoint.post("/chat/completions", self._body(request))
        try:
            return response_of_chat(completion, params, model=settings.openai_model)
        except IncompleteAnswerError as error:
            raise self._endpoint.junk("/chat/completions", str(error), completion) from None

    def _body(self, params: Mapping[str, Any]) -> bytes:
        """The request as the endpoint gets it: dropped parameters left out, the configured ones on top."""
        body = {**params, "model": self._settings.openai_model, **self._settings.extra_body}
        for name in self._settings.drop_params:
            body.pop(name, None)
        return dumps(body)
