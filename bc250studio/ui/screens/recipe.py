"""New fine-tune, third question: the recipe. Few fields; every other one is folded below them, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from textual import events
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Collapsible, Input

from bc250studio.errors import BadInput, clean
from bc250studio.profiles.profile import describe, sections
from bc250studio.ui.draft import Draft, default_of, shown
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.choice import Choice
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
ELSEWHERE = ("model.base", "data.path")
"""Asked on the pages before."""


class RecipeScreen(WizardScreen):
    """Each field explains itself from the profile's own documentation."""

    step = "recipe"
    BINDINGS = [
        Binding("f8", "default", "Default", id="recipe.default", tooltip="The field under the cursor to its default"),
        Binding("down", "move(1)", "Field after", show=False, id="recipe.down", tooltip="The next field"),
        Binding("up", "move(-1)", "Field before", show=False, id="recipe.up", tooltip="The field before"),
    ]  # fmt: skip
    DEFAULT_CSS = """
    RecipeScreen #fields { height: 1fr; padding: 0 1; }
    RecipeScreen .field { height: 1; }
    RecipeScreen .field .name { width: 26; }
    RecipeScreen .field Input { width: 24; margin: 0; padding: 0 1; }
    RecipeScreen .field Choice { width: 24; }
    RecipeScreen .field .default { width: 1fr; color: $text-muted; padding: 0 1; text-wrap: nowrap;
        text-overflow: ellipsis; }
    RecipeScreen #fields .head { padding: 0; margin-top: 1; }
    RecipeScreen Collapsible { background: transparent; border: none; padding: 0; height: auto; }
    RecipeScreen Collapsible Contents { padding: 0; }
    RecipeScreen CollapsibleTitle { padding: 0; }
    RecipeScreen #said { height: 4; border-top: solid $panel; padding: 0 1; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._keys: dict[str, str] = {}

    def body(self) -> Iterable[Widget]:
        """Few fields, expert sections folded, help."""
        yield Line(self.way(), id="way")
        with VerticalScroll(id="fields", can_focus=False):
            for key in FEW:
                yield self._field(key)
            yield Line("Expert: enter unfolds a section", classes="head")
            for section in sections():
                yield Collapsible(title=self._fold_title(section), collapsed=True, id=f"fold-{section}")
        yield Line(id="said")

    def _fold_title(self, section: str) -> str:
        keys = expert_keys(section)
        changed = sum(self.draft.value(key) != default_of(key) for key in keys)
        return f"{section} ({len(keys)} more" + (f", {changed} not default)" if changed else ")")

    def _field(self, key: str) -> Widget:
        options, value = choices(key), self.draft.typed.get(key, shown(self.draft.value(key)))
        entry: Widget
        if options:
            words = ["by itself" if word == "" else word for word in options]
            entry = Choice(options, value, words if value in options else (), id=_id(key))
        else:
            entry = Input(value, id=_id(key), compact=True, placeholder="not set")
        entry.set_class(key in self.draft.typed, "bad")
        self._keys[_id(key)] = key
        return Horizontal(Line(key, classes="name"), entry, Line(self._note(key), classes="default"), classes="field")

    def _note(self, key: str) -> str:
        """What the default is, where the value is another."""
        default = default_of(key)
        return "" if self.draft.value(key) == default else f"default {clean(shown(default) or 'not set', 60)}"

    def on_mount(self) -> None:
        """The first field."""
        self.query_one(f"#{_id(FEW[0])}").focus()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """A section's fields are made when first wanted; sixty inputs take a moment."""
        contents = event.collapsible.query_one("Contents")
        if not contents.children:
            section = (event.collapsible.id or "").removeprefix("fold-")
            await contents.mount(*[self._field(key) for key in expert_keys(section)])
        if contents.children:
            contents.children[0].scroll_visible(animate=False)

    # Help

    def on_descendant_focus(self, _: events.DescendantFocus) -> None:
        """The help of the field that has the cursor."""
        key = self._keys.get((self.focused.id or "") if self.focused else "")
        if key:
            self._explain(key)

    def _explain(self, key: str) -> None:
        options = [word for word in choices(key) if word]
        origin = "this draft" if key in self.draft.changes else self.draft.resolved().origins.get(key, "default")
        text = describe(key) + (f" One of: {', '.join(options)}." if options else "")
        unset = "" if default_of(key) is not None else " Empty: not set."
        self.query_one("#said", Line).show(
            Content.assemble((f"{key}  ", "bold"), text, unset, (f"  (value from: {clean(origin, 40)})", "dim"))
        )

    # Keeping what is typed

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter keeps the value and goes to the next field."""
        if self._keep(event.input):
            self.focus_next()

    def on_choice_changed(self, event: Choice.Changed) -> None:
        """A word is kept at once."""
        self._keep(event.choice)

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Leaving a field keeps its value."""
        if isinstance(event.widget, (Input, Choice)):
            self._keep(event.widget)

    def _keep(self, entry: Input | Choice) -> bool:
        key = self._keys.get(entry.id or "")
        if key is None or not self.is_attached:
            return True
        try:
            self.draft.put_text(key, entry.value)
        except BadInput as error:
            self.draft.typed[key] = entry.value
            entry.add_class("bad")
            self.query_one("#said", Line).show(Content.styled(clean(error, 300), "bold $error"))
            return False
        self.draft.typed.pop(key, None)
        entry.remove_class("bad")
        if entry.parent is not None:
            entry.parent.query_one(".default", Line).show(self._note(key))
        return True

    def take(self) -> None:
        """All fields; the first that does not fit keeps us here."""
        for name, key in self._keys.items():
            entry = self.query_one(f"#{name}")
            if isinstance(entry, (Input, Choice)) and not self._keep(entry):
                entry.focus()
                self.draft.put_text(key, entry.value)  # says why

    def action_default(self) -> None:
        """The default again."""
        entry = self.focused
        key = self._keys.get((entry.id or "") if entry else "")
        if key and isinstance(entry, (Input, Choice)):
            text = shown(default_of(key))
            if isinstance(entry, Choice):
                entry.put(text)
            else:
                entry.value = text
            self._keep(entry)
            self._explain(key)

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action == "default" and self.ready and not self._keys.get((self.focused.id or "") if self.focused else ""):
            return "Put the cursor on a field first."
        return None

    def action_move(self, direction: int) -> None:
        """Up and down go from field to field."""
        (self.focus_next if direction > 0 else self.focus_previous)()

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""


def expert_keys(section: str) -> list[str]:
    """Keys of a section that are not among the few."""
    names = [f"{section}.{key}" for key in sections()[section].model_fields]
    return [key for key in names if key not in FEW and key not in ELSEWHERE]


def _id(key: str) -> str:
    return "field-" + key.replace(".", "-", 1)


def choices(key: str) -> list[str]:
    """Allowed words of a field, an empty one where it may be unset; none at all when it is free."""
    section, _, name = key.partition(".")
    annotation: Any = sections()[section].model_fields[name].annotation
    optional = type(None) in get_args(annotation)
    if optional:
        rest = [part for part in get_args(annotation) if part is not type(None)]
        annotation = rest[0] if len(rest) == 1 else None
    if annotation is bool:
        words = ["true", "false"]
    elif get_origin(annotation) is Literal:
        words = [str(word) for word in get_args(annotation)]
    else:
        return []
    return ["", *words] if optional else words


SCREEN = RecipeScreen
