"""New fine-tune by keys: model, dataset, recipe, review, and what is really written, queued and started."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import threading
import urllib.parse
from pathlib import Path

import pytest
from textual.widgets import Input

from bc250studio import paths, pipeline, profiles
from bc250studio.errors import JobFailed
from bc250studio.jobs import JobFolder, standing
from bc250studio.pipeline import queue
from bc250studio.settings import ModelSettings, Settings
from bc250studio.ui.draft import Draft
from bc250studio.ui.screens.choose import Choose
from bc250studio.ui.widgets.choice import Choice
from bc250studio.ui.widgets.files import Files
from bc250studio.ui.widgets.preview import Preview
from tests import recording
from tests.ui_help import app, on, page, rows, said, screen_name, text, until

ROWS = [{"prompt": f"What is {n} and {n}?", "completion": f"It is {2 * n}."} for n in range(40)]
PREFERENCE = [{"prompt": f"Say {n}.", "chosen": f"{n} it is.", "rejected": "No."} for n in range(20)]
AMBIGUOUS = [{"question": f"What is {n}?", "answer": str(n), "response": f"That is {n}."} for n in range(30)]


def write_rows(file: Path, values: list[dict]) -> Path:
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return file


async def to_model(pilot) -> None:
    await until(pilot, on(pilot, "HomeScreen"))
    await until(pilot, lambda: rows(pilot, "#profiles"))
    await pilot.press("n")
    await until(pilot, lambda: "135 M parameters" in text(pilot, "#about"), "the demo model is described")


async def to_dataset(pilot) -> None:
    await to_model(pilot)
    await pilot.press("f4")
    await until(pilot, on(pilot, "DatasetScreen"))
    await until(pilot, lambda: rows(pilot, "#known"))


async def put(pilot, selector: str, value: str) -> None:
    """As a paste does."""
    field = pilot.app.screen.query_one(selector, Input)
    field.focus()
    field.value = value
    await pilot.pause()


# -- the whole way ---------------------------------------------------------------------------------------------


async def test_new_fine_tune_from_model_to_start(home, monkeypatch):
    launched = {}

    def launch(resolved: profiles.Resolved, stages, title="", kind="train") -> JobFolder:
        launched.update(resolved=resolved, stages=tuple(stages))
        return recording.write_run("new", step=1)

    monkeypatch.setattr(pipeline, "launch", launch)
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        await pilot.press("f4")
        await until(pilot, on(pilot, "RecipeScreen"))
        await pilot.press("right")  # adapter.kind is a choice: lora -> full
        assert pilot.app.screen.query_one("#field-adapter-kind", Choice).value == "full"
        await pilot.press("left", "tab", *["backspace"] * 2, "8", "enter")
        await until(pilot, lambda: "Times every row is seen" in text(pilot, "#said"), "the next field explains itself")
        await pilot.press("f3")
        await until(pilot, on(pilot, "DatasetScreen"))
        await pilot.press("f4")
        await until(pilot, on(pilot, "RecipeScreen"))
        assert pilot.app.screen.query_one("#field-adapter-rank", Input).value == "8"
        assert "default 16" in page(pilot)
        await pilot.press("f4")
        await until(pilot, on(pilot, "ReviewScreen"))
        await until(pilot, lambda: "rows used" in text(pilot, "#found") and "time" in text(pilot, "#found"))
        found = text(pilot, "#found")
        for words in ("135 M parameters", "adapter and AdamW", "LoRA adapter as GGUF", "rocBLAS", "starts at once"):
            assert words in found, found
        assert "not known: no run of this model has been trained on this machine" in " ".join(found.split())
        assert "adapter.rank" in text(pilot, "#changed") and "this draft" in text(pilot, "#changed")
        await pilot.press("s")
        await until(pilot, on(pilot, "TrainingScreen"))
    assert launched["resolved"].profile.adapter.rank == 8 and launched["stages"] == pipeline.STAGES
    assert Draft.kept() is None, "a started draft is no unfinished one"


@pytest.mark.slow
async def test_the_wizard_trains_a_tiny_model_for_real(home, tmp_path):
    """Model found in a folder of the settings, rows from the browser, t trains; the time is then known by measure."""
    from tests.survival import byte_model

    base = byte_model(tmp_path / "models" / "bytes")
    write_rows(tmp_path / "sums.jsonl", ROWS)
    machine = Settings(models=ModelSettings(folders=[str(tmp_path / "models")]))
    async with app(machine=machine).run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        await until(pilot, lambda: str(base) in rows(pilot, "#known"), "the folder of the settings is looked at")
        cells = rows(pilot, "#known")[str(base)]
        assert cells[3] == "llama" and "KiB" in cells[2]
        await put(pilot, "#base", str(base))
        await until(pilot, lambda: "1 layers of 32" in text(pilot, "#about"))
        await pilot.press("f4")
        await until(pilot, on(pilot, "DatasetScreen"))
        await put(pilot, "#path", str(tmp_path / "sums.jsonl"))
        await until(pilot, lambda: "prompt_completion rows" in text(pilot, "#about"))
        await pilot.press("f4")
        await until(pilot, on(pilot, "RecipeScreen"))
        for key, value in (("adapter-rank", "4"), ("train-steps", "4"), ("train-tokens_per_step", "256")):
            await put(pilot, f"#field-{key}", value)
        await put(pilot, "#field-data-max_length", "128")
        await pilot.press("f4")
        await until(pilot, on(pilot, "ReviewScreen"))
        await until(pilot, lambda: "time" in text(pilot, "#found"))
        assert "4 steps of 256 tokens" in " ".join(text(pilot, "#found").split())
        await pilot.press("t")
        await until(pilot, on(pilot, "TrainingScreen"))
        job = pilot.app.screen.job
        await until(pilot, lambda: standing(job).verdict == "done", "the run ends", within_s=240)
        await pilot.press("1")
        await until(pilot, on(pilot, "HomeScreen"))
        await until(pilot, lambda: f"✓ done {job.name}" in text(pilot, "#live"), "the morning page's head")
        await pilot.press("shift+tab", "shift+tab", "tab")
        pilot.app.screen.query_one("#runs").focus()
        await pilot.press("r")
        await until(pilot, on(pilot, "ReviewScreen"))
        await until(pilot, lambda: f"tokens/sof{job.name}" in "".join(text(pilot, "#found").split()))
    assert (job.path / "checkpoints" / "final" / "adapter_model.safetensors").exists()
    assert job.profile().profile.train.steps == 4 and job.profile().profile.data.max_length == 128


@pytest.mark.slow
@pytest.mark.server
async def test_a_rehearsal_goes_the_whole_way_and_esc_returns_to_the_review(home, tmp_path):
    from bc250studio.serve import server
    from tests.tiny import tiny_model

    base = tiny_model("llama")
    data = write_rows(tmp_path / "sums.jsonl", ROWS)
    changes = {
        "model.base": str(base), "model.device": "cpu", "data.path": str(data), "train.tokens_per_step": 256,
        "train.tokens_per_pass": 256, "serve.device": "cpu", "serve.context": 256, "ask.prompts": ["What is 7?"],
    }  # fmt: skip
    file = Draft("tiny", "", "test", changes=changes).save("tiny")
    assert file.exists()
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "tiny" in rows(pilot, "#profiles"))
        table = pilot.app.screen.query_one("#profiles")
        table.move_cursor(row=list(rows(pilot, "#profiles")).index("tiny"))
        await pilot.press("r")
        await until(pilot, on(pilot, "ReviewScreen"))
        await pilot.press("h")
        await until(pilot, on(pilot, "TrainingScreen"))
        job = pilot.app.screen.job
        try:
            over = "The rehearsal is over"
            await until(pilot, lambda: over in str(job.events()), "its end", within_s=400)
            assert standing(job).verdict == "done", job.state()
            assert "Killed by the rehearsal" in str(job.events()) and server.read(job) is None
            await pilot.press("escape")
            await until(pilot, on(pilot, "ReviewScreen"))
            await until(pilot, lambda: "a rehearsal's two steps" in " ".join(text(pilot, "#found").split()))
        finally:
            server.stop(job)
    assert set(job.stages()) == set(pipeline.STAGES) and job.stage("train")["steps"] == 2


# -- model -----------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_a_sentence_with_the_nearest_spelling(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        await put(pilot, "#base", "demo:smollm2-315m")
        await until(pilot, lambda: "Did you mean 'demo:smollm2-135m'?" in text(pilot, "#about"))
        await pilot.press("f4")
        await until(pilot, lambda: "No demo model" in said(pilot))
        assert screen_name(pilot) == "ModelScreen"


async def test_models_are_found_described_and_misspelt_ones_named(home, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "my-llama"
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "vocab_size": 512, "max_position_embeddings": 256}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "models" / "broken").mkdir()
    (tmp_path / "models" / "broken" / "config.json").write_text("{")
    (tmp_path / "models" / "broken" / "model.safetensors").write_bytes(b"")
    (tmp_path / "models" / "lora-adapter.gguf").write_bytes(b"GGUF")
    machine = Settings(models=ModelSettings(folders=[str(tmp_path / "models")]))
    async with app(machine=machine).run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        await until(pilot, lambda: str(folder) in rows(pilot, "#known"))
        assert rows(pilot, "#known")[str(folder)][3] == "llama"
        assert "not here" in rows(pilot, "#known")[str(tmp_path / "models" / "broken")][4]
        assert not any("lora-adapter" in key for key in rows(pilot, "#known"))
        await put(pilot, "#base", str(tmp_path / "models" / "my-lama"))
        await until(pilot, lambda: f"Did you mean '{folder}'?" in " ".join(text(pilot, "#about").split()))
        await put(pilot, "#base", str(tmp_path / "models" / "broken"))
        await until(pilot, lambda: "cannot be read" in text(pilot, "#about"))


async def test_a_pasted_hub_address_is_its_id_and_says_how_to_fetch_it(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        await put(pilot, "#base", "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main")
        await until(pilot, lambda: "Qwen/Qwen3-0.6B is not on this machine" in text(pilot, "#about"))


class Hub(http.server.BaseHTTPRequestHandler):
    asked: dict = {}

    def do_GET(self):
        self.asked.update(urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query))
        found = [
            {"id": "Qwen/Qwen3-0.6B", "gated": False, "cardData": {"license": "apache-2.0"}, "downloads": 9_000_000,
             "safetensors": {"total": 751_632_384, "parameters": {"BF16": 751_632_384}}},
            {"id": "meta/gated[bold]\u001b[2J", "gated": "manual"},
            "noise",
        ]  # fmt: skip
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


async def test_the_hub_is_searched_and_a_row_taken(home, monkeypatch):
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    async with app().run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        await put(pilot, "#base", "qwen3")
        await pilot.press("f7")
        await until(pilot, lambda: "Qwen/Qwen3-0.6B" in rows(pilot, "#hub"))
        expected = ("Qwen/Qwen3-0.6B", "752 M", "1.4 GiB", "apache-2.0", "open", "9.0 M")
        assert rows(pilot, "#hub")["Qwen/Qwen3-0.6B"] == expected
        assert rows(pilot, "#hub")["meta/gated[bold]"][4] == "gated" and Hub.asked["search"] == ["qwen3"]
        await until(pilot, lambda: pilot.app.screen.query_one("#hub").has_focus)
        assert "meta/gated[bold]" in page(pilot), "foreign text is no markup"
        await pilot.press("down")
        await until(pilot, lambda: "Gated: accept its terms" in text(pilot, "#about"))
        await pilot.press("up")
        await until(pilot, lambda: pilot.app.screen.query_one("#base", Input).value == "Qwen/Qwen3-0.6B")
        await until(pilot, lambda: "F5 fetches it" in text(pilot, "#about"))
        await pilot.press("f8")
        await until(pilot, lambda: pilot.app.screen.query_one("#known").has_focus)
    hub.shutdown()
    hub.server_close()


async def test_a_hub_that_cannot_be_reached_is_a_sentence(home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    async with app().run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        await pilot.press("f7")
        await until(pilot, lambda: "cannot be searched" in text(pilot, "#about"))
        assert screen_name(pilot) == "ModelScreen"


# -- dataset ---------------------------------------------------------------------------------------------------


def unreadable(folder: Path, monkeypatch) -> Path:
    """A file the system refuses to open; root may open everything, so for root the refusal is played."""
    file = write_rows(folder / "locked.jsonl", ROWS)
    file.chmod(0)
    if os.geteuid() == 0:
        real = Path.open

        def refuse(self, *arguments, **options):
            if self.name == "locked.jsonl":
                raise PermissionError(13, "Permission denied", str(self))
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", refuse)
    return file


async def test_every_wrong_input_is_a_sentence_on_the_page(home, tmp_path, monkeypatch):
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    (tmp_path / "broken.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a", "completion": "b"}\n' * 900)[:40])
    write_rows(tmp_path / "sums.jsonl", ROWS)
    write_rows(tmp_path / "pairs.jsonl", PREFERENCE)
    wrong = {
        "smus.jsonl": "Did you mean 'sums.jsonl'?",
        "empty-folder": "holds no .jsonl",
        "empty.jsonl": "is empty",
        "binary.jsonl": "no row that can be read",
        "weights.bin": "an ending that is not known",
        "broken.jsonl.gz": "no row that can be read",
        "pairs.jsonl": "data.use_chosen",
        unreadable(tmp_path, monkeypatch).name: "Permission denied",
    }
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        for name, sentence in wrong.items():
            await put(pilot, "#path", str(tmp_path / name))
            await until(pilot, lambda s=sentence: s in " ".join(text(pilot, "#about").split()), f"{name}: {sentence}")
            assert "Traceback" not in page(pilot)
            await pilot.press("f4")
            if name == "pairs.jsonl":
                await until(pilot, on(pilot, "Choose"))
                await pilot.press("escape")
            else:
                await until(pilot, lambda s=sentence: s in said(pilot), f"{name} is refused")
            await until(pilot, on(pilot, "DatasetScreen"))
        await put(pilot, "#path", "owner/some-data")
        await until(pilot, lambda: "hub:owner/some-data" in text(pilot, "#about"))


async def test_a_preference_file_can_be_learnt_by_its_good_answers(home, tmp_path):
    file = write_rows(tmp_path / "pairs.jsonl", PREFERENCE)
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        await put(pilot, "#path", str(file))
        await pilot.press("f4")
        await until(pilot, on(pilot, "Choose"))
        await pilot.press("2")
        await until(pilot, on(pilot, "RecipeScreen"))
        assert pilot.app.screen.draft.value("data.use_chosen") is True


async def test_an_ambiguity_is_asked_with_the_default_first(home, tmp_path):
    file = write_rows(tmp_path / "two.jsonl", AMBIGUOUS)
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        await put(pilot, "#path", str(file))
        await until(pilot, lambda: "Several columns could be the answer" in " ".join(text(pilot, "#about").split()))
        await pilot.press("f4")
        await until(pilot, on(pilot, "Choose"))
        assert isinstance(pilot.app.screen, Choose) and "(default)" in pilot.app.screen.answers[0][1]
        assert "That is" in page(pilot), "the choices show what stands in them"
        await pilot.press("escape")
        await until(pilot, on(pilot, "DatasetScreen"))
        await until(pilot, lambda: "choose with" in text(pilot, "#about"), "left open, it stays on the page")
        await pilot.press("f4")
        await until(pilot, on(pilot, "Choose"))
        await pilot.press("enter")
        await until(pilot, on(pilot, "RecipeScreen"))
        assert pilot.app.screen.draft.value("data.columns") == {"answer": "answer"}


async def test_columns_by_hand(home, tmp_path):
    odd = [{"frage": f"Was ist {n}?", "antwort": str(n), "quelle": "buch"} for n in range(30)]
    file = write_rows(tmp_path / "odd.jsonl", odd)
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        await put(pilot, "#path", str(file))
        await until(pilot, lambda: "no known format" in text(pilot, "#about"))
        await pilot.press("f9")
        await until(pilot, on(pilot, "Columns"))
        assert "Was ist 0?" in page(pilot)
        await pilot.press("down", "right", "down", "right", "right", "f9")
        await until(pilot, lambda: "prompt_completion rows" in text(pilot, "#about"))
        assert pilot.app.screen.draft.value("data.columns") == {"prompt": "frage", "completion": "antwort"}
        await until(pilot, lambda: "30  used" in text(pilot, "#said-check"), "the check runs by itself")


async def test_the_check_is_a_table_and_the_preview_shows_the_mask(home, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    values = [*ROWS, ROWS[3], {"prompt": "empty", "completion": ""}]
    file = write_rows(tmp_path / "sums.jsonl", values)
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        await put(pilot, "#path", str(file))
        await pilot.press("f5")
        await until(pilot, lambda: "used" in text(pilot, "#said-check"))
        found = text(pilot, "#said-check")
        assert "dropped" in found and "in all" in found and "42" in found and "are learnt" in found
        await pilot.press("f8")
        await until(pilot, lambda: pilot.app.screen.query_one("#preview", Preview).rows)
        await until(pilot, lambda: "⟦It is 0." in page(pilot), "what is learnt is marked without any colour")
        assert "What is 0 and 0?" in page(pilot) and "row 1 of" in page(pilot)
        await pilot.press("f8")
        await until(pilot, lambda: "⟦It is 2." in page(pilot))
        await pilot.press("left")
        await until(pilot, lambda: "⟦It is 0." in page(pilot))


async def test_the_file_browser_by_keys(home, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write_rows(tmp_path / "deep" / "er" / "sums.jsonl", ROWS)
    (tmp_path / "deep" / "notes.pdf").write_bytes(b"x")
    async with app().run_test(size=(80, 24)) as pilot:
        await to_dataset(pilot)
        await put(pilot, "#path", f"{tmp_path}/deep/")
        await pilot.press("f7")
        tree = pilot.app.screen.query_one("#tree", Files)
        await until(pilot, lambda: tree._rows and tree.has_focus and tree.folder == tmp_path / "deep")
        assert list(tree._rows) == ["..", "er/"] and "1 other files hidden" in text(pilot, "#about")
        await pilot.press("down", "enter")
        await until(pilot, lambda: tree.folder == tmp_path / "deep" / "er")
        await pilot.press("down")
        await until(pilot, lambda: "prompt_completion rows" in text(pilot, "#about"))
        await pilot.press("left")
        await until(pilot, lambda: tree.folder == tmp_path / "deep" and tree.chosen == "er/")
        await pilot.press("enter", "down", "enter")
        await until(pilot, lambda: pilot.app.screen.query_one("#path", Input).has_focus)
        assert pilot.app.screen.query_one("#path", Input).value == str(tmp_path / "deep" / "er" / "sums.jsonl")


# -- drafts ----------------------------------------------------------------------------------------------------


async def test_a_draft_is_saved_as_a_profile(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("m")
        await until(pilot, on(pilot, "RecipeScreen"))
        await pilot.press("f6")
        await until(pilot, on(pilot, "AskText"))
        await pilot.press("end", "-", "2", "enter")
        await until(pilot, lambda: (paths.user_profiles_dir() / "demo-2.toml").exists())
    assert profiles.load("demo-2").profile.train == profiles.load("demo").profile.train


async def test_saved_at_any_point(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await to_model(pilot)
        for name, screen in (("one", "ModelScreen"), ("two", "DatasetScreen"), ("four", "ReviewScreen")):
            if screen != screen_name(pilot):
                await pilot.press("f4")
                if screen == "ReviewScreen":
                    await until(pilot, on(pilot, "RecipeScreen"))
                    await pilot.press("f4")
                await until(pilot, on(pilot, screen))
            await pilot.press("f6")
            await until(pilot, on(pilot, "AskText"))
            pilot.app.screen.query_one(Input).value = name
            await pilot.press("enter")
            await until(pilot, lambda n=name: (paths.user_profiles_dir() / f"{n}.toml").exists())
            await until(pilot, on(pilot, screen))
            assert name in text(pilot, "#way")


async def test_back_never_loses_input_not_even_what_does_not_fit(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("m")
        await until(pilot, on(pilot, "RecipeScreen"))
        await put(pilot, "#field-adapter-rank", "many")
        await put(pilot, "#field-train-epochs", "7")
        await pilot.press("f4")
        await until(pilot, lambda: "adapter.rank" in said(pilot), "it does not fit and says so")
        assert screen_name(pilot) == "RecipeScreen"
        await pilot.press("f3")
        await until(pilot, on(pilot, "DatasetScreen"), "the question before, although the way began at the recipe")
        await pilot.press("f4")
        await until(pilot, on(pilot, "RecipeScreen"))
        assert pilot.app.screen.query_one("#field-adapter-rank", Input).value == "many"
        assert pilot.app.screen.query_one("#field-train-epochs", Input).value == "7"


async def test_an_unfinished_draft_outlives_the_app(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("m")
        await until(pilot, on(pilot, "RecipeScreen"))
        await put(pilot, "#field-train-epochs", "7")
        await pilot.press("f4")
        await until(pilot, on(pilot, "ReviewScreen"))
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("n")
        await until(pilot, on(pilot, "Choose"))
        assert "train.epochs = 7" in page(pilot)
        await pilot.press("enter")
        await until(pilot, on(pilot, "ModelScreen"))
        assert pilot.app.screen.draft.value("train.epochs") == 7 and pilot.app.screen.draft.name == "demo"
        await pilot.press("escape")
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("n")
        await until(pilot, on(pilot, "Choose"))
        await pilot.press("2")
        await until(pilot, on(pilot, "ModelScreen"))
    assert Draft.kept() is None


async def test_expert_fields_are_folded_and_explain_themselves(home):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("m")
        await until(pilot, on(pilot, "RecipeScreen"))
        assert not pilot.app.screen.query("#field-proof-tokens")
        fold = pilot.app.screen.query_one("#fold-proof CollapsibleTitle")
        fold.focus()
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen.query("#field-proof-tokens"))
        await pilot.press("tab")
        await until(pilot, lambda: "proof." in text(pilot, "#said"))
        field = pilot.app.screen.query_one("#field-proof-tokens", Input)
        field.focus()
        field.value = "32"
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen.draft.value("proof.tokens") == 32)
        field.focus()
        await pilot.press("f8")
        await until(pilot, lambda: field.value == "256")


async def test_what_cannot_start_is_a_sentence(home, monkeypatch):
    def launch(*_: object, **__: object) -> JobFolder:
        raise JobFailed("demo ended before it began.")

    monkeypatch.setattr(pipeline, "launch", launch)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("r")
        await until(pilot, on(pilot, "ReviewScreen"))
        await pilot.press("s")
        await until(pilot, lambda: "ended before it began" in said(pilot))
        assert screen_name(pilot) == "ReviewScreen"


async def test_the_review_names_what_is_missing(home, tmp_path):
    Draft("gone", "", "test", changes={"data.path": str(tmp_path / "gone.jsonl")}).save("gone")
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "gone" in rows(pilot, "#profiles"))
        names = list(rows(pilot, "#profiles"))
        pilot.app.screen.query_one("#profiles").move_cursor(row=names.index("gone"))
        await pilot.press("r")
        await until(pilot, on(pilot, "ReviewScreen"))
        await until(pilot, lambda: "✗ No data at" in text(pilot, "#found"))
        await pilot.press("s")
        await until(pilot, lambda: "No data at" in said(pilot))
        assert screen_name(pilot) == "ReviewScreen" and not pilot.app.snapshot.jobs


async def test_queued_from_the_review(home, monkeypatch):
    started = []
    monkeypatch.setattr(queue, "ensure_runner", lambda: started.append(1) or recording.write_run("queue", step=1))
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: rows(pilot, "#profiles"))
        await pilot.press("r")
        await until(pilot, on(pilot, "ReviewScreen"))
        await pilot.press("w")
        await until(pilot, on(pilot, "HomeScreen"))
        await until(pilot, lambda: len(rows(pilot, "#queue")) == 1)
    assert started and [queue.name_of(entry) for entry in queue.waiting()] == ["demo"]
