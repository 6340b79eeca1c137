"""What the four screens of "New fine-tune" share: the draft, the way marks, next, back, save."""

from __future__ import annotations

from typing import Any

from textual.binding import Binding
from textual.content import Content

from bc250studio.errors import BadInput, clean
from bc250studio.ui.draft import Draft
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.screens.confirm import AskText
from bc250studio.ui.widgets.line import Line

WAY = ("model", "dataset", "recipe", "review")


class WizardScreen(StudioScreen[None]):
    """F3 back, F4 next, F6 saves the draft as a profile at any point. Function keys, because letters are typed."""

    step = "model"
    BINDINGS = [
        Binding("f3", "before", "Back", id="wizard.back", tooltip="The question before; nothing typed is lost"),
        Binding("f4", "next", "Next", id="wizard.next", tooltip="The next question"),
        Binding("f6", "save", "Save", id="wizard.save", tooltip="Keep this as a profile of yours"),
    ]
    DEFAULT_CSS = """
    WizardScreen #way { height: 1; padding: 0 1; }
    WizardScreen Input { height: 1; border: none; margin: 0 1; background: $surface; }
    WizardScreen Input:focus { background: $boost; text-style: bold; }
    WizardScreen #said { height: auto; max-height: 4; padding: 0 1; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self.draft = draft
        self.place = f"New fine-tune ▸ {self.step}"

    def way(self) -> Content:
        """Where we are on the way."""
        parts: list[Any] = []
        for i, name in enumerate(WAY):
            parts += [(f" {i + 1} {name} ", "reverse bold" if name == self.step else "dim"), "─" if i < 3 else ""]
        parts.append((f"   {clean(self.draft.name, 30)}", "dim"))
        return Content.assemble(*parts)

    def take(self) -> None:
        """Bring what was typed into the draft.

        Raises:
            BadInput: something does not fit.
        """

    def on_screen_resume(self) -> None:
        """Another question may have changed the draft or its name."""
        self.query_one("#way", Line).show(self.way())

    def _remember(self) -> None:
        """Keep what was typed even when it does not fit yet, and the whole draft for another day."""
        try:
            self.take()
        except BadInput:
            pass
        try:
            self.draft.keep()
        except OSError as error:
            self.complain(error)

    def action_back(self) -> None:
        """Leave for the screen below."""
        self._remember()
        super().action_back()

    def action_before(self) -> None:
        """The question before, also when the way began at a later one; before the first one, out."""
        self._remember()
        place = WAY.index(self.step)
        below = self.app.screen_stack[-2] if len(self.app.screen_stack) > 2 else None
        if place == 0 or (isinstance(below, WizardScreen) and below.step == WAY[place - 1]):
            super().action_back()
        else:
            self.app.switch_screen(self.studio._screen(WAY[place - 1], self.draft))

    def action_next(self) -> None:
        """On, when what was typed fits."""
        try:
            self.take()
        except BadInput as error:
            self.complain(error)
            return
        self._remember()
        following = WAY.index(self.step) + 1
        if following < len(WAY):
            self.studio.go(WAY[following], self.draft)

    def action_save(self) -> None:
        """Ask for a name, write the profile."""
        try:
            self.take()
        except BadInput as error:
            self.complain(error)
            return

        def named(name: str | None) -> None:
            if name is None:
                return
            try:
                file = self.draft.save(name)
                self.draft.forget()
            except (BadInput, OSError) as error:
                self.complain(error)
            else:
                self.notify(f"Saved: {file}", markup=False)
                self.query_one("#way", Line).show(self.way())

        self.app.push_screen(AskText("Save as a profile named", self.draft.name), named)
