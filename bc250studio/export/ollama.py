"""An Ollama Modelfile whose TEMPLATE says what the model's own chat template says.

Ollama reads Go templates, models carry Jinja. The pieces around each role are taken from what the model's template
renders, put together again, and compared with the model's own rendering of several chats. Only when all are equal is
a TEMPLATE written; otherwise the caller says that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bc250studio.errors import StudioError

Chat = Sequence[dict[str, str]]
Render = Callable[[Chat, bool], str]
"""(messages, add_generation_prompt) -> text."""
_S, _U, _A, _V = "SYSTEMTEXTQ", "USERTEXTQ", "ASSISTANTTEXTQ", "SECONDTEXTQ"


@dataclass(frozen=True)
class Pieces:
    """Text before and after each role's message.

    ``default_system``: what stands in the system message's place when there is none; None when nothing does.
    """

    start: str
    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    default_system: str | None

    def render(self, chat: Chat, generation: bool) -> str:
        """The text of a chat, as Ollama will build it."""
        messages = list(chat)
        if self.default_system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.default_system})
        around = {"system": self.system or ("", ""), "user": self.user, "assistant": self.assistant}
        text = self.start
        for message in messages:
            before, after = around[message["role"]]
            text += before + message["content"] + after
        return text + (self.assistant[0] if generation else "")


def pieces_of(render: Render) -> Pieces | None:
    """Take a chat template apart, or None when it is not a plain row of messages."""
    try:
        user = {"role": "user", "content": _U}
        answer = {"role": "assistant", "content": _A}
        second = {"role": "user", "content": _V}
        asked = render([user], True)
        bare = render([user], False)
        closed = render([user, answer], False)
        long = render([user, answer, second], False)
    except StudioError:
        return None
    if not asked.startswith(bare) or long.count(_U) != 1 or long.count(_A) != 1 or long.count(_V) != 1:
        return None
    opening = asked[len(bare) :]
    head, rest = long.split(_U)
    middle, tail = rest.split(_A)
    between, after_user = tail.split(_V)
    if opening and not middle.endswith(opening):
        return None
    user_end = middle[: len(middle) - len(opening)]
    if user_end != after_user:
        return None
    assistant_end = closed.split(_A)[-1]
    if not between.startswith(assistant_end) or not head.endswith(between[len(assistant_end) :]):
        return None
    user_start = between[len(assistant_end) :]
    pieces = Pieces(head[: len(head) - len(user_start)], None, (user_start, user_end), (opening, assistant_end), None)
    pieces = _with_system(pieces, render)
    return pieces if _verified(pieces, render) else None


def _with_system(pieces: Pieces, render: Render) -> Pieces:
    try:
        text = render([{"role": "system", "content": _S}, {"role": "user", "content": _U}], False)
    except StudioError:
        return pieces
    if text.count(_S) != 1 or text.count(_U) != 1:
        return pieces
    before, rest = text.split(_S)
    after = rest.split(_U)[0]
    if not after.endswith(pieces.user[0]):
        return pieces
    after = after[: len(after) - len(pieces.user[0])]
    default = None
    start = pieces.start
    if start and start.startswith(before) and start.endswith(after) and len(start) >= len(before) + len(after):
        default = start[len(before) : len(start) - len(after)]
        start = ""
    elif before.startswith(start):
        before = before[len(start) :]
    else:
        return pieces
    return Pieces(start, (before, after), pieces.user, pieces.assistant, default)


def _verified(pieces: Pieces, render: Render) -> bool:
    user, answer = {"role": "user", "content": "How hot?"}, {"role": "assistant", "content": "61 degrees."}
    again, last = {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Cooler."}
    chats: list[Chat] = [[user], [user, answer, again], [user, answer, again, last, user]]
    if pieces.system is not None:
        system = {"role": "system", "content": "Be brief."}
        chats += [[system, *chat] for chat in chats]
    try:
        return all(pieces.render(chat, True) == render(chat, True) for chat in chats)
    except StudioError:
        return False


def modelfile(base: str, adapter: str | None, pieces: Pieces | None, own_bos: str, stops: Sequence[str]) -> str:
    """The Modelfile's text. ``own_bos``: the token that the runner puts first by itself, so the template must not."""
    lines = [f"FROM {base}"]
    if adapter:
        lines.append(f"ADAPTER ./{adapter}")
    template = go_template(pieces, own_bos) if pieces else None
    if template is not None:
        lines.append(f'TEMPLATE """{template}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in stops if stop and '"' not in stop and "\n" not in stop]
    return "\n".join(lines) + "\n"


def go_template(pieces: Pieces, dropped_bos: str) -> str | None:
    """The pieces as a Go template over ``.Messages``; None when a piece would be read as template code."""
    start, system = pieces.start, pieces.system
    if dropped_bos:
        if start.startswith(dropped_bos):
            start = start[len(dropped_bos) :]
        elif not start and system and system[0].startswith(dropped_bos):
            system = (system[0][len(dropped_bos) :], system[1])
    default = pieces.default_system
    texts = [start, *pieces.user, *pieces.assistant, *(system or ()), default or ""]
    if any("{{" in text or "}}" in text or '"""' in text for text in texts):
        return None
    branches = [("user", pieces.user), ("assistant", pieces.assistant), *([("system", system)] if system else [])]
    body = ""
    for number, (role, (before, after)) in enumerate(branches):
        word = "if" if number == 0 else "else if"
        body += f'{{{{ {word} eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}'
    if default is not None and system:
        start += f'{{{{ if ne (index .Messages 0).Role "system" }}}}{system[0]}{default}{system[1]}{{{{ end }}}}'
    return f"{start}{{{{ range .Messages }}}}{body}{{{{ end }}}}{{{{ end }}}}{pieces.assistant[0]}"
