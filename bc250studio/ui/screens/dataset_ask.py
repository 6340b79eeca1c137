"""Questions about a dataset, asked before anything is learnt from it: ambiguities, columns, preference files."""

from __future__ import annotations

from textual.content import Content

from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.ui import dataset_look
from bc250studio.ui.background import in_thread
from bc250studio.ui.dataset_look import Look, quick
from bc250studio.ui.screens.choose import Choose
from bc250studio.ui.screens.columns import Columns
from bc250studio.ui.screens.dataset_words import look_text
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.widgets.line import Line


class DatasetQuestions(WizardScreen):
    """The part of the dataset screen that asks; ``#about`` is the line below the field."""

    async def _look(self) -> Content:
        return look_text(await in_thread(quick, self.draft.resolved().profile))

    def _about(self, said: object) -> None:
        line = self.query_one_optional("#about", Line)
        if line is not None:
            line.show(Content.styled(clean(said, 400), "bold $error") if isinstance(said, Exception) else said)

    def action_columns(self) -> None:
        """Which column is which."""
        self.run_worker(self._columns(), group="ask", exclusive=True, exit_on_error=False)

    async def _columns(self) -> None:
        try:
            self.take()
            profile = self.draft.resolved().profile
            columns = await in_thread(dataset_look.columns, profile.data.path)
        except (StudioError, OSError) as error:
            self._about(error)
            return
        try:
            found = (await in_thread(quick, profile)).recognition.columns
        except (StudioError, OSError):
            found = {}  # that is why the user says it by hand
        chosen = await self.app.push_screen_wait(Columns(columns, found, profile.data))
        if chosen is not None:
            try:
                for key, value in chosen.items():
                    if value != self.draft.value(key):
                        self.draft.put(key, value)
                self._about(await self._look())
            except (StudioError, OSError) as error:
                self._about(error)
            else:
                self.action_check()

    async def _settle(self) -> Look | None:
        """Look, and ask what is ambiguous with the default marked; None when it stays open.

        Raises:
            BadInput: there is nothing to learn from.
        """
        while True:
            found = await in_thread(quick, self.draft.resolved().profile)
            asked = found.recognition
            if not asked.question:
                return found
            about = "How are the rows to be read?" if asked.asks == "format" else f"Which column is the {asked.asks}?"
            answers = [(o, clean(o, 60) + ("  (default)" if i == 0 else "")) for i, o in enumerate(asked.options)]
            chosen = await self.app.push_screen_wait(Choose(about, answers, _examples(found)))
            if chosen is None:
                self._about(BadInput(asked.question))
                return None
            if asked.asks == "format":
                self.draft.put("data.format", chosen)
            else:
                self.draft.put("data.columns", {**self.draft.value("data.columns"), asked.asks: chosen})

    async def _accept_chosen(self, refusal: str) -> bool:
        """A preference file: learn its good answers alone, or stay."""
        answers = [("stay", "choose another dataset  (default)"), ("use", "learn the good answers alone")]
        if await self.app.push_screen_wait(Choose("This is a preference file", answers, refusal)) != "use":
            self._about(BadInput(refusal))
            return False
        self.draft.put("data.use_chosen", True)
        return True

    def action_check(self) -> None:
        """Every row's verdict."""
        raise NotImplementedError


def _examples(found: Look) -> str:
    """The options with what stands in them."""
    lines = [f"{clean(o, 24)}: {found.columns[o]}" for o in found.recognition.options if found.columns.get(o)]
    return "\n".join(line[:64] for line in lines[:8])
