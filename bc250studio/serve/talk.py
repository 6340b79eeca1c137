"""Talking to a llama-server over HTTP: completions, chat streams, next-token probabilities, templates.

No proxy, no redirect, no other host than the server's own. Errors are sentences; a server that is gone
raises :class:`ServerGone`, so that a chat can offer to start it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import requests

from bc250studio.errors import BadInput, JobFailed, clean

CONNECT_S = 10.0
MOST_DEATHS = 12


class ServerGone(JobFailed):
    """Nothing answers at the server's address any more."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy. None leaves a value to the server."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Answer:
    """What came back. Rates in tokens a second; ``stop``: ``end`` (by itself), ``limit`` or ``cancelled``."""

    text: str
    thinking: str = ""
    tokens: int = 0
    tokens_per_s: float = 0.0
    prompt_tokens: int = 0
    prompt_per_s: float = 0.0
    stop: str = "end"

    def as_dict(self) -> dict[str, Any]:
        """For records and transcripts."""
        return {
            "text": self.text,
            "thinking": self.thinking,
            "tokens": self.tokens,
            "tokens_per_s": round(self.tokens_per_s, 2),
            "prompt_tokens": self.prompt_tokens,
            "prompt_per_s": round(self.prompt_per_s, 2),
            "stop": self.stop,
        }


@dataclass(frozen=True)
class Piece:
    """A bit of a streamed answer; ``answer`` is set on the last one only."""

    text: str = ""
    thinking: str = ""
    answer: Answer | None = None


@dataclass(frozen=True)
class Top:
    """The likeliest next tokens, best first: ``ids`` int64 [K], ``logp`` float64 [K] in nats."""

    ids: np.ndarray
    logp: np.ndarray


@dataclass
class Talk:
    """A client of one server. ``has_adapter`` says whether scales mean anything.

    ``revive``: starts the server again and gives its address and key; used at most :data:`MOST_DEATHS` times, for
    requests that may be repeated. ``deaths`` counts them. Without it a dead server is a :class:`ServerGone`.
    ``rescale``: starts the server again with the adapter at another scale, for devices where changing it with the
    request is not safe; the scale then is the server's own, ``scale_now``.
    """

    url: str
    key: str
    timeout_s: float = 600.0
    has_adapter: bool = True
    revive: Callable[[], tuple[str, str]] | None = None
    deaths: int = 0
    rescale: Callable[[float], tuple[str, str]] | None = None
    scale_now: float = 1.0
    _session: requests.Session = field(default_factory=requests.Session, repr=False)

    def __post_init__(self) -> None:
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {self.key}"

    def _brought_back(self) -> bool:
        if self.revive is None or self.deaths >= MOST_DEATHS:
            return False
        self.deaths += 1
        self._moved(self.revive())
        return True

    def _moved(self, where: tuple[str, str]) -> None:
        self.url, self.key = where
        self._session.headers["Authorization"] = f"Bearer {self.key}"

    def settle(self) -> None:
        """Leave the server as it was found: with the adapter at its full scale."""
        if self.rescale is not None and self.scale_now != 1.0:
            self._moved(self.rescale(1.0))
            self.scale_now = 1.0

    # -- state ---------------------------------------------------------------------------------

    def healthy(self) -> bool:
        """Whether the model is loaded. Never raises."""
        try:
            answer = self._session.get(f"{self.url}/health", timeout=(2.0, 5.0), allow_redirects=False)
        except requests.RequestException:
            return False
        return answer.status_code == 200

    def props(self) -> dict[str, Any]:
        """The server's properties: model_path, chat_template, default_generation_settings.n_ctx ..."""
        record = self._get("/props")
        return record if isinstance(record, dict) else {}

    def adapters(self) -> list[dict[str, Any]]:
        """The adapters it loaded."""
        record = self._get("/lora-adapters")
        return [entry for entry in record if isinstance(entry, dict)] if isinstance(record, list) else []

    def slots(self) -> list[dict[str, Any]]:
        """What each slot does (``is_processing``)."""
        record = self._get("/slots")
        return [entry for entry in record if isinstance(entry, dict)] if isinstance(record, list) else []

    # -- text and tokens -----------------------------------------------------------------------

    def render(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The prompt text the server's own template makes of a chat that ends with a question."""
        record = self._post("/apply-template", {"messages": list(messages), **options})
        return str(record.get("prompt", ""))

    def tokenize(self, text: str) -> list[int]:
        """Token ids; special tokens in the text are recognised, none is added."""
        record = self._post("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        return [int(token) for token in record.get("tokens", [])]

    # -- probabilities -------------------------------------------------------------------------

    def top(self, ids: Sequence[int], scale: float, guard: int, count: int = 20, slot: int | None = None) -> Top:
        """The ``count`` likeliest tokens after ``ids`` with the adapter at ``scale``.

        ``guard`` is a plain token that the server is made to pick: with an end token it would send no
        probabilities at all, with half a UTF-8 character it answers 500. A bias on the pick leaves the
        reported probabilities as they were.
        """
        record = self._post(
            "/completion",
            {
                "prompt": [int(token) for token in ids],
                "n_predict": 1,
                "n_probs": count,
                "temperature": 0,
                "cache_prompt": True,
                "post_sampling_probs": False,
                "logit_bias": [[int(guard), 1e4]],
                **self._lora(scale),
                **({"id_slot": slot} if slot is not None else {}),
            },
        )
        try:
            first = record["completion_probabilities"][0]["top_logprobs"]
            tokens = np.array([int(entry["id"]) for entry in first], dtype=np.int64)
            logp = np.array([float(entry["logprob"]) for entry in first], dtype=np.float64)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise JobFailed(
                f"{self.url} sent no next-token probabilities; this llama-server is too old to be proved."
            ) from error
        order = np.argsort(-logp, kind="stable")
        return Top(tokens[order], logp[order])

    # -- answers -------------------------------------------------------------------------------

    def complete(
        self, prompt: str | Sequence[int], n_predict: int, scale: float, sampling: Sampling | None = None, **extra: Any
    ) -> Answer:
        """A plain completion of text or token ids."""
        record = self._post(
            "/completion",
            {
                "prompt": prompt if isinstance(prompt, str) else [int(token) for token in prompt],
                "n_predict": n_predict,
                **(sampling or Sampling()).as_dict(),
                **self._lora(scale),
                **extra,
            },
        )
        timings = record.get("timings") or {}
        return _answer(
            str(record.get("content", "")), "", timings, "limit" if record.get("stop_type") == "limit" else "end"
        )

    def chat(self, messages: Sequence[dict[str, Any]], scale: float, **options: Any) -> Answer:
        """A whole answer; options as for :meth:`stream`."""
        answer = None
        for piece in self.stream(messages, scale, **options):
            answer = piece.answer or answer
        if answer is None:
            raise ServerGone(f"{self.url} ended the answer before it was finished.")
        return answer

    def stream(
        self,
        messages: Sequence[dict[str, Any]],
        scale: float,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        thinking: bool | None = None,
        slot: int | None = None,
        **extra: Any,
    ) -> Iterator[Piece]:
        """An answer as it grows. Closing the iterator closes the connection, which frees the slot.

        Raises:
            ServerGone: the server died or was never there.
            BadInput: it refused the request (the chat is longer than the context, for one).
        """
        body: dict[str, Any] = {
            "messages": list(messages),
            "max_tokens": max_tokens,
            "stream": True,
            "timings_per_token": True,
            "cache_prompt": True,
            **(sampling or Sampling()).as_dict(),
            **self._lora(scale),
            **extra,
        }
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        if slot is not None:
            body["id_slot"] = slot
        text = thought = ""
        timings: dict[str, Any] = {}
        finish = ""
        response = self._request("POST", "/v1/chat/completions", json=body, stream=True)
        try:
            for record in _events(response):
                if "error" in record:
                    if _unreadable(record):
                        # The model said something that the server's chat parser cannot read. What was said stands.
                        finish = "format"
                        break
                    raise _refusal(self.url, record, 500)
                timings = record.get("timings") or timings
                choice = (record.get("choices") or [{}])[0]
                delta = choice.get("delta") or {}
                new, new_thought = delta.get("content") or "", delta.get("reasoning_content") or ""
                finish = choice.get("finish_reason") or finish
                if new or new_thought:
                    text, thought = text + new, thought + new_thought
                    yield Piece(new, new_thought)
        except requests.RequestException as error:
            raise ServerGone(f"The server at {self.url} went away in the middle of an answer.") from error
        finally:
            response.close()
        if not finish:
            raise ServerGone(f"The server at {self.url} went away in the middle of an answer.")
        stop = {"length": "limit", "format": "format"}.get(finish, "end")
        yield Piece(answer=_answer(text, thought, timings, stop))

    # -- HTTP ----------------------------------------------------------------------------------

    def _lora(self, scale: float) -> dict[str, Any]:
        if self.has_adapter and self.rescale is not None:
            if scale != self.scale_now:
                self._moved(self.rescale(scale))
                self.scale_now = scale
            return {}
        return {"lora": [{"id": 0, "scale": float(scale)}]} if self.has_adapter else {}

    def _get(self, path: str) -> Any:
        return self._json(self._request("GET", path))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        record = self._json(self._request("POST", path, json=body))
        return record if isinstance(record, dict) else {}

    def _request(self, method: str, path: str, **options: Any) -> requests.Response:
        try:
            response = self._session.request(
                method, self.url + path, timeout=(CONNECT_S, self.timeout_s), allow_redirects=False, **options
            )
        except requests.ReadTimeout as error:
            raise JobFailed(f"{self.url} has not answered {path} within {self.timeout_s:.0f} seconds.") from error
        except requests.RequestException as error:
            if self._brought_back():
                return self._request(method, path, **options)
            raise ServerGone(f"Nothing answers at {self.url}; the server is gone or still loading.") from error
        if response.status_code >= 400:
            try:
                record = response.json()
            except ValueError:
                record = {}
            raise _refusal(self.url, record if isinstance(record, dict) else {}, response.status_code)
        return response

    def _json(self, response: requests.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise JobFailed(f"{self.url} answered something that is not JSON; is it llama-server?") from error


def _refusal(url: str, record: dict[str, Any], status: int) -> BadInput | JobFailed:
    inner = record.get("error")
    message = clean(inner.get("message", "") if isinstance(inner, dict) else inner or "", 300)
    if status == 401:
        return BadInput(f"{url} does not know this key; it is not the server that server.json describes.")
    if status in (400, 413, 422):
        if "context" in message.lower():
            return BadInput(
                f"The chat is longer than the server's context ({message}); start a new one or raise serve.context."
            )
        return BadInput(f"{url} refused the request: {message or f'status {status}'}.")
    return JobFailed(f"{url} answered with an error: {message or f'status {status}'}.")


def _unreadable(record: dict[str, Any]) -> bool:
    """Whether a streamed error is llama.cpp's chat parser giving up on the model's own words."""
    error = record.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return "does not match the expected" in str(message)


def _events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, until [DONE]. Other lines are passed over."""
    for raw in response.iter_lines():
        line = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        name, _, payload = line.partition(":")
        if name not in ("data", "error"):
            continue
        payload = payload.strip()
        if payload == "[DONE]":
            return
        try:
            record = json.loads(payload)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield {"error": record} if name == "error" else record


def _answer(text: str, thinking: str, timings: dict[str, Any], stop: str) -> Answer:
    return Answer(
        text=clean(text),
        thinking=clean(thinking),
        tokens=int(timings.get("predicted_n") or 0),
        tokens_per_s=float(timings.get("predicted_per_second") or 0.0),
        prompt_tokens=int(timings.get("prompt_n") or 0),
        prompt_per_s=float(timings.get("prompt_per_second") or 0.0),
        stop=stop,
    )
