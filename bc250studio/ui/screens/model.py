"""New fine-tune, first question: which model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Input

from bc250studio.errors import StudioError, clean
from bc250studio.ui import hub, local_models
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.draft import Draft
from bc250studio.ui.local_models import LocalModel
from bc250studio.ui.numbers import size
from bc250studio.ui.screens.model_words import about_hub, describe_text, hub_cells, local_cells
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows

SETTLE_S = 0.3
"""A name is looked up when nothing was typed for so long."""


class ModelScreen(WizardScreen):
    """A field for a path or hub id; below it what is on this machine, or what the hub has."""

    step = "model"
    BINDINGS = [
        Binding("f5", "get", "Fetch", id="model.get", tooltip="Download the hub model that is typed"),
        Binding("f7", "search", "Search hub", id="model.search", tooltip="Models of the hub that fit what is typed"),
        Binding("f8", "here", "Local list", id="model.here", tooltip="Models on this machine, looked for anew"),
        Binding("down", "list", "List", show=False, id="model.list", tooltip="From the field into the list"),
    ]
    DEFAULT_CSS = """
    ModelScreen Rows { height: 1fr; }
    ModelScreen #hub { display: none; }
    ModelScreen.-hub #hub { display: block; }
    ModelScreen.-hub #known { display: none; }
    ModelScreen #about { height: 6; padding: 0 1; border-top: solid $panel; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._local: dict[str, LocalModel] = {}
        self._hub: dict[str, hub.HubModel] = {}
        self._about: asyncio.Task[None] | None = None

    def body(self) -> Iterable[Widget]:
        """Field, two lists of which one shows, description."""
        yield Line(self.way(), id="way")
        yield Line("Model: a folder, a .gguf file, a hub id (paste works), or one of the list", classes="note")
        yield Input(str(self.draft.value("model.base")), id="base", compact=True, placeholder="demo:smollm2-135m")
        yield Rows(
            "model", "params", "size", "type", "where", id="known", elastic=("where", "model"), right=("params", "size")
        )
        yield Rows(
            "hub model", "params", "size", "licence", "access", "downloads", id="hub",
            elastic=("licence", "hub model"), right=("params", "size", "downloads"),
        )  # fmt: skip
        yield Line(id="about")

    def on_mount(self) -> None:  # Textual calls the one of each class
        """The lists are read in a thread; the demo is always there."""
        self.query_one("#base", Input).focus()
        self.run_worker(self._look(), group="look", exclusive=True, exit_on_error=False)

    async def _look(self) -> None:
        """What is known by name first, then what lies on the disk."""
        for look in (_named, _on_disk):
            for model in await in_thread(look, self.studio.snapshot, self._folders()):
                self._local.setdefault(model.base, model)
            self.query_one("#known", Rows).show([(m.base, local_cells(m)) for m in self._local.values()])

    def _folders(self) -> list[str]:
        """What the settings name, and the folder of the draft's data: models often lie near it."""
        data = str(self.draft.value("data.path"))
        return [*self.studio.machine.models.folders, *filter(None, [_beside(data)])]

    @property
    def base(self) -> str:
        """What is typed; a pasted address of a hub page is its id."""
        return hub.plain_id(self.query_one("#base", Input).value)

    @property
    def _list(self) -> Rows:
        return self.query_one("#hub" if self.has_class("-hub") else "#known", Rows)

    def take(self) -> None:
        """The typed model."""
        self.draft.put("model.base", self.base or "demo:smollm2-135m")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Describe what is typed, once the typing pauses."""
        if self._about is not None:
            self._about.cancel()
        self._about = asyncio.create_task(self._describe(self.base))

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter goes on."""
        self.action_next()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The row under the cursor is the choice."""
        table = self._list
        if event.data_table is table and table.has_focus and table.chosen:
            self.query_one("#base", Input).value = table.chosen

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Enter takes the row and goes on."""
        chosen = self._list.chosen
        if chosen:
            self.query_one("#base", Input).value = chosen
            self.action_next()

    def action_list(self) -> None:
        """From the field into the list."""
        self._list.focus()

    async def _describe(self, base: str) -> None:
        await asyncio.sleep(SETTLE_S)
        about = self.query_one_optional("#about", Line)
        if about is None:
            return
        try:
            about.show(await in_thread(describe_text, base))
        except (StudioError, OSError) as error:
            about.show(about_hub(self._hub[base]) if base in self._hub else self._unknown(base, error))

    def _unknown(self, base: str, error: Exception) -> Content:
        """Why not, with the nearest spelling of all that is known here."""
        text = str(error)
        if "Did you mean" not in text and base:
            text += local_models.spelling(base, [*self._local, *self._hub])
        return Content.styled(clean(text, 400), "$warning")

    # The hub

    def action_here(self) -> None:
        """Back to the models of this machine."""
        self.remove_class("-hub")
        self._list.focus()
        self.run_worker(self._look(), group="look", exclusive=True, exit_on_error=False)

    def action_search(self) -> None:
        """In a thread; what is found takes the place of the list."""
        self.run_worker(self._search(), group="search", exclusive=True, exit_on_error=False)

    async def _search(self) -> None:
        words = self.base.removeprefix("demo:").strip()
        about = self.query_one("#about", Line)
        if not words:
            about.show("Type a word of the model's name, such as qwen3, then F7.")
            return
        about.show(f"Searching the hub for {clean(words, 60)} ...")
        try:
            found = await in_thread(hub.search, words)
        except StudioError as error:
            about.show(Content.styled(clean(error, 400), "$warning"))
            return
        self._hub = {model.id: model for model in found}
        self.add_class("-hub")
        self._list.show([(model.id, hub_cells(model)) for model in found])
        said = f"{len(found)} models; the arrow keys take one, F5 fetches it, F8 returns to the local list."
        about.show(said if found else f"The hub has no model with weights for {clean(words, 60)!r}.")
        if found:
            self._list.focus()

    def action_get(self) -> None:
        """Fetch in a child process that belongs to the app, so leaving this screen does not end it."""
        self.studio.run_worker(self._get(self.base), group="fetch", exit_on_error=False)

    async def _get(self, base: str) -> None:
        wanted = self._hub[base].size_bytes if base in self._hub else None
        fetch = asyncio.create_task(twin("models", "get", base, timeout_s=6 * 3600))
        while not fetch.done():
            self._say_fetched(base, await in_thread(hub.fetched_bytes, base), wanted)
            await asyncio.wait([fetch], timeout=1.0)
        try:
            fetch.result()
        except StudioError as error:
            self.studio.complain(error)
            about = self.query_one_optional("#about", Line) if self.is_attached else None
            if about is not None:
                about.show(Content.styled(clean(error, 400), "$warning"))
            return
        self.studio.notify(f"{clean(base, 80)} is here.", markup=False)
        if self.is_attached:
            await self._describe(base)

    def _say_fetched(self, base: str, done: int, wanted: int | None) -> None:
        about = self.query_one_optional("#about", Line) if self.is_attached else None
        if about is not None and self.base == base:
            of = f" of about {size(wanted)}" if wanted else ""
            about.show(f"Fetching {clean(base, 80)}: {size(done)}{of} ... F4 goes on when it is here.")

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""

    def action_next(self) -> None:
        """On to the data only with a model that is here."""
        self.run_worker(self._next(), exclusive=True, exit_on_error=False)

    async def _next(self) -> None:
        base = self.base
        try:
            await in_thread(describe_text, base)
        except (StudioError, OSError) as error:
            self.query_one("#about", Line).show(self._unknown(base, error))
            self.complain(error)
            return
        super().action_next()


def _named(snapshot: Snapshot, _: list[str]) -> list[LocalModel]:
    """The demo, models of earlier runs and of profiles."""
    from bc250studio import profiles

    bases: list[tuple[str, str]] = []
    for row in snapshot.jobs[:30]:
        try:
            bases.append((row.standing.job.profile().profile.model.base, "an earlier run"))
        except StudioError:
            continue
    for name in profiles.available():
        try:
            bases.append((profiles.load(name).profile.model.base, f"profile {name}"))
        except StudioError:
            continue
    return local_models.named(bases)


def _on_disk(snapshot: Snapshot, folders: list[str]) -> list[LocalModel]:
    """What the settings name, the present folder, where this draft's and earlier runs' data lie, the usual places."""
    near = []
    for row in snapshot.jobs[:10]:
        try:
            near.append(_beside(row.standing.job.profile().profile.data.path))
        except StudioError:
            continue
    return local_models.on_disk([*folders, local_models.present_folder(), *filter(None, near)])


def _beside(data: str) -> str:
    """The folder in which a dataset lies; empty for those of the hub and of the package."""
    return "" if data.startswith(("hub:", "assets:")) else str(Path(data).expanduser().absolute().parent)


SCREEN = ModelScreen
