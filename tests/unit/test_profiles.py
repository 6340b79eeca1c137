"""Profiles: strict, explained, and never silently different from what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bc250studio import paths, profiles
from bc250studio.cli.main import main
from bc250studio.errors import BadInput
from bc250studio.profiles.profile import describe, sections

SHIPPED = sorted(path.stem for path in paths.shipped("profiles").glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_load_and_have_a_title(name: str):
    resolved = profiles.load(name)
    assert resolved.profile.title
    assert profiles.from_text(profiles.dump(resolved), "copy").profile == resolved.profile


def test_the_five_profiles_ship():
    assert set(SHIPPED) >= {"demo", "minicpm5-2b-lora", "minicpm5-2b-lora-bf16", "smollm2-135m-full", "qwen3-0.6b-lora"}


def test_every_key_is_documented():
    for section, kind in sections().items():
        for key in kind.model_fields:
            assert len(describe(f"{section}.{key}")) > 10, f"{section}.{key}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[train]\nlearning_rat = 1", "Did you mean 'learning_rate'"),
        ("[trian]\nsteps = 1", "Did you mean 'train'"),
        ("[train]\nrank = 4", "Did you mean 'adapter.rank'"),
        ("[train]\nsteps = 'ten'", "train.steps"),
        ("[train]\nsteps = 0", "greater than or equal to 1"),
        ("[adapter]\nkind = 'qlora'", "adapter.kind"),
        ("train = 3", "must be a table"),
        ("[train", "not valid TOML"),
        ("[train]\npacking = 1", "train.packing"),
    ],
)
def test_mistakes_are_sentences(text: str, said: str):
    with pytest.raises(BadInput, match=r".") as caught:
        profiles.from_text(text, "my.toml")
    assert said in str(caught.value)
    assert "my.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_profile_command_line_in_that_order():
    resolved = profiles.from_text("[train]\nsteps = 5\nseed = 1", "my.toml", overrides=["train.seed=9"])
    assert (resolved.profile.train.steps, resolved.profile.train.seed) == (5, 9)
    assert resolved.origins["train.steps"] == "my.toml"
    assert resolved.origins["train.seed"] == "command line"
    assert resolved.origins["train.clip"] == "default"


def test_whole_numbers_are_fine_where_a_float_is_meant():
    assert profiles.from_text("[train]\nepochs = 3\n[thermal]\npause_at_c = 86", "x").profile.train.epochs == 3.0


def test_paths_beside_the_profile_are_found(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "p.toml").write_text('[data]\npath = "rows.jsonl"')
    assert profiles.load(str(tmp_path / "p.toml")).profile.data.path == str(tmp_path / "rows.jsonl")


def test_an_unknown_profile_names_the_nearest(capsys):
    assert main(["run", "dmeo"]) == 2
    assert "Did you mean 'demo'" in capsys.readouterr().err


def test_show_explains_each_value(capsys):
    assert main(["profiles", "show", "demo", "--set", "train.seed=3"]) == 0
    out = capsys.readouterr().out
    assert "train.seed = 3  (command line)" in out
    assert "model.base = demo:smollm2-135m  (demo.toml)" in out
    assert "train.clip = 1.0  (default)" in out


def test_new_and_list(capsys):
    assert main(["profiles", "new", "mine", "--set", "train.steps=3"]) == 0
    assert profiles.load("mine").profile.train.steps == 3
    assert main(["profiles", "new", "mine"]) == 2
    assert main(["profiles", "new", "../evil"]) == 2
    capsys.readouterr()
    assert main(["profiles", "list"]) == 0
    assert "mine" in capsys.readouterr().out


@given(st.text(max_size=200))
def test_no_text_crashes_the_reader(text: str):
    try:
        profiles.from_text(text, "any.toml")
    except BadInput as error:
        assert "\x1b" not in str(error)


@given(st.dictionaries(st.sampled_from(["train", "data", "model", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["steps", "seed", "path", "y"]), inner, max_size=2),
    max_leaves=4), max_size=3))  # fmt: skip
def test_no_overrides_crash_the_reader(table):
    flat = {f"{s}.{k}": v for s, t in table.items() if isinstance(t, dict) for k, v in t.items()}
    try:
        profiles.from_text("", "any.toml", overrides=flat)
    except BadInput:
        pass
