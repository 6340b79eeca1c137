"""New fine-tune, first question: which model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Input

from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.ui.background import in_thread
from bc250studio.ui.draft import Draft
from bc250studio.ui.numbers import big, number
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows


class ModelScreen(WizardScreen):
    """A field for a path or hub id, and what was found on this machine below it."""

    step = "model"
    BINDINGS = [
        Binding("f5", "get", "Fetch from hub", id="model.get", tooltip="Download the hub model that is typed"),
        Binding("f7", "search", "Search hub", id="model.search", tooltip="Models of the hub that fit what is typed"),
        Binding("down", "list", "List", show=False, id="model.list"),
    ]
    DEFAULT_CSS = """
    ModelScreen Rows { height: 1fr; }
    ModelScreen #about { height: 6; padding: 0 1; border-top: solid $panel; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._found: list[tuple[str, str]] = []
        self._about: asyncio.Task[None] | None = None

    def body(self) -> Iterable[Widget]:
        """Field, list, description."""
        yield Line(self.way(), id="way")
        yield Line("Model: a folder, a .gguf file, a hub id, or one of the list", classes="note")
        yield Input(str(self.draft.value("model.base")), id="base", compact=True, placeholder="demo:smollm2-135m")
        yield Rows("model", "where", id="known")
        yield Line(id="about")

    async def on_mount(self) -> None:  # type: ignore[override]
        """The list is read in a thread; the demo is always there."""
        self.query_one("#base", Input).focus()
        self._found = await in_thread(_known, self.studio.snapshot)
        self.query_one("#known", Rows).show([(name, (clean(name, 60), where)) for name, where in self._found])

    def take(self) -> None:
        """The typed model."""
        self.draft.put("model.base", self.query_one("#base", Input).value.strip() or "demo:smollm2-135m")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Describe what is typed, once the typing pauses."""
        if self._about is not None:
            self._about.cancel()
        self._about = asyncio.create_task(self._describe(event.value.strip()))

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter goes on."""
        self.action_next()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The row under the cursor is the choice."""
        table = self.query_one("#known", Rows)
        if table.has_focus and table.chosen:
            self.query_one("#base", Input).value = table.chosen

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Enter takes the row and goes on."""
        chosen = self.query_one("#known", Rows).chosen
        if chosen:
            self.query_one("#base", Input).value = chosen
            self.action_next()

    def action_list(self) -> None:
        """From the field into the list."""
        self.query_one("#known", Rows).focus()

    async def _describe(self, base: str) -> None:
        await asyncio.sleep(0.3)
        about = self.query_one("#about", Line)
        try:
            about.show(await in_thread(describe_text, base))
        except (StudioError, OSError) as error:
            about.show(Content.styled(clean(error, 400), "$warning"))

    def action_search(self) -> None:
        """In a thread; what is found takes the place of the list."""
        self.run_worker(self._search(), group="search", exclusive=True, exit_on_error=False)

    async def _search(self) -> None:
        from bc250studio.ui import hub

        words = self.query_one("#base", Input).value.strip()
        about = self.query_one("#about", Line)
        about.show(f"Searching the hub for {clean(words, 60)} ...")
        try:
            found = await in_thread(hub.search, words)
        except StudioError as error:
            about.show(Content.styled(clean(error, 400), "$warning"))
            return
        self._found = found
        self.query_one("#known", Rows).show([(name, (clean(name, 60), said)) for name, said in found])
        about.show(f"{len(found)} models; take one with the arrow keys, F5 fetches it." if found else "Nothing found.")
        if found:
            self.query_one("#known", Rows).focus()

    async def action_get(self) -> None:
        """Fetch as a child process; the list shows it when it is there."""
        from bc250studio.ui.background import twin

        base = self.query_one("#base", Input).value.strip()
        self.query_one("#about", Line).show(f"Fetching {clean(base, 80)} ... (leaving this screen does not stop it)")
        try:
            await twin("models", "get", base, timeout_s=6 * 3600)
        except StudioError as error:
            self.complain(error)
            return
        self.notify(f"{base} is here.", markup=False)
        await self._describe(base)

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""

    def action_next(self) -> None:
        """On to the data only with a model that is here."""
        self.run_worker(self._next(), exclusive=True, exit_on_error=False)

    async def _next(self) -> None:
        base = self.query_one("#base", Input).value.strip()
        try:
            await in_thread(_find, base)
        except StudioError as error:
            self.complain(error)
            return
        super().action_next()


def _find(base: str) -> Any:
    from bc250studio.models.find import find

    return find(base)


def describe_text(base: str) -> Content:
    """What a model is, in four lines.

    Raises:
        BadInput: there is no such model here.
    """
    from bc250studio.models.describe import describe

    if not base:
        raise BadInput("Type a model, or take one of the list with the arrow keys.")
    source = _find(base)
    facts = describe(source)
    heads = f"{facts.heads} heads ({facts.kv_heads} for keys)"
    return Content.assemble(
        (clean(source.name, 70), "bold"),
        f"  {big(facts.parameters)} parameters · {clean(facts.model_type, 20)}\n",
        f"{facts.layers} layers · hidden {facts.hidden} · {heads} · vocabulary {number(facts.vocab, 7)} · "
        f"context {number(facts.context, 7)}\n",
        f"licence {clean(facts.licence or 'not stated', 40)} · served as {clean(facts.gguf_arch, 20)}\n",
        (clean(source.gguf or source.folder, 120), "dim"),
    )


def _known(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The demo, models of earlier runs and profiles, the hub cache."""
    from bc250studio import profiles
    from bc250studio.models import find

    found: dict[str, str] = {"demo:smollm2-135m": "ships as a package"}
    for name in find.cached():
        found.setdefault(name, "hub cache")
    for name in profiles.available():
        try:
            found.setdefault(profiles.load(name).profile.model.base, f"profile {name}")
        except StudioError:
            continue
    for row in snapshot.jobs[:30]:
        try:
            found.setdefault(row.standing.job.profile().profile.model.base, "an earlier run")
        except StudioError:
            continue
    return list(found.items())


SCREEN = ModelScreen
