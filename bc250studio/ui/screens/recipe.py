"""New fine-tune, third question: the recipe. Few fields; every other one is folded below them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Collapsible, Input

from bc250studio.errors import BadInput, clean
from bc250studio.profiles.profile import describe, sections
from bc250studio.ui.draft import shown
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line

FEW = (
    "adapter.kind",
    "adapter.rank",
    "train.epochs",
    "train.steps",
    "train.learning_rate",
    "train.tokens_per_step",
    "data.max_length",
    "data.train_on",
    "train.eval_every",
)


class RecipeScreen(WizardScreen):
    """Each field explains itself from the profile's own documentation."""

    step = "recipe"
    DEFAULT_CSS = """
    RecipeScreen #fields { height: 1fr; padding: 0 1; }
    RecipeScreen .field { height: 1; }
    RecipeScreen .field Line { width: 26; }
    RecipeScreen .field Input { width: 1fr; max-width: 44; }
    RecipeScreen Collapsible { background: transparent; border: none; padding: 0; height: auto; }
    RecipeScreen #said { height: 3; border-top: solid $panel; padding: 0 1; }
    """

    def body(self) -> Iterable[Widget]:
        """Few fields, expert fields folded, help."""
        yield Line(self.way(), id="way")
        with VerticalScroll(id="fields"):
            for key in FEW:
                yield self._field(key)
            yield Collapsible(title="expert: everything else", collapsed=True, id="expert")
        yield Line(id="said")

    def _field(self, key: str) -> Widget:
        options = choices(key)
        entry = Input(
            shown(self.draft.value(key)),
            id=_id(key),
            compact=True,
            suggester=SuggestFromList(options) if options else None,
        )
        return Horizontal(Line(key), entry, classes="field")

    def on_mount(self) -> None:
        """The first field."""
        self.query_one(f"#{_id(FEW[0])}", Input).focus()

    async def on_collapsible_expanded(self, _: Collapsible.Expanded) -> None:
        """The expert fields are made when first wanted; sixty inputs take a moment."""
        contents = self.query_one("#expert Contents")
        if not contents.children:
            keys = [key for key in _all_keys() if key not in (*FEW, "model.base", "data.path")]
            await contents.mount(*[self._field(key) for key in keys])

    def on_descendant_focus(self) -> None:
        """The help of the field that has the cursor."""
        focused = self.focused
        if isinstance(focused, Input) and focused.id:
            key = _key(focused.id)
            options = choices(key)
            origin = "this draft" if key in self.draft.changes else self.draft.resolved().origins.get(key, "default")
            text = describe(key) + (f" One of: {', '.join(options)}." if options else "")
            self.query_one("#said", Line).show(
                Content.assemble((f"{key}  ", "bold"), text, (f"  ({clean(origin, 40)})", "dim"))
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter keeps the value and goes to the next field."""
        if self._keep(event.input):
            self.focus_next(Input)

    def on_descendant_blur(self, event: Any) -> None:
        """Leaving a field keeps its value."""
        widget = getattr(event, "widget", None)
        if isinstance(widget, Input):
            self._keep(widget)

    def _keep(self, entry: Input) -> bool:
        try:
            self.draft.put_text(_key(entry.id or ""), entry.value)
        except BadInput as error:
            entry.add_class("bad")
            self.query_one("#said", Line).show(Content.styled(clean(error, 300), "bold $error"))
            return False
        entry.remove_class("bad")
        return True

    def take(self) -> None:
        """All fields; the first that does not fit keeps us here."""
        for entry in self.query(Input):
            if entry.id and entry.id.startswith("field-"):
                try:
                    self.draft.put_text(_key(entry.id), entry.value)
                except BadInput:
                    entry.add_class("bad")
                    entry.focus()
                    raise

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""


def _all_keys() -> list[str]:
    return [f"{section}.{key}" for section, cls in sections().items() for key in cls.model_fields]


def _id(key: str) -> str:
    return "field-" + key.replace(".", "-", 1)


def _key(widget_id: str) -> str:
    return widget_id.removeprefix("field-").replace("-", ".", 1)


def choices(key: str) -> list[str]:
    """Allowed words of a field; empty when it is free."""
    from typing import Literal, get_args, get_origin

    section, _, name = key.partition(".")
    annotation = sections()[section].model_fields[name].annotation
    if annotation is bool:
        return ["true", "false"]
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


SCREEN = RecipeScreen
