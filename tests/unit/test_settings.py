"""Settings: strict, comments kept, errors that name file and key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bc250studio import paths, settings
from bc250studio.cli.main import main
from bc250studio.errors import BadInput, clean


def test_defaults_without_a_file():
    assert settings.load().runtime.python is None


def test_put_keeps_comments_and_order():
    file = paths.settings_file()
    paths.private_dir(file.parent)
    file.write_text("# mine\n[serve]\nbinary = '/a' # why\n")
    settings.put("runtime.python", "/usr/bin/python3")
    assert "# mine" in file.read_text()
    assert "# why" in file.read_text()
    assert settings.load().runtime.python == "/usr/bin/python3"
    settings.put("runtime.python", None)
    assert settings.load().runtime.python is None


def test_mistakes_are_sentences():
    with pytest.raises(BadInput):
        settings.put("serve.binry", "/x")
    assert not paths.settings_file().exists()
    paths.private_dir(paths.settings_file().parent)
    paths.settings_file().write_text("[serve]\nbinry='/x'")
    with pytest.raises(BadInput, match=r"Did you mean 'serve\.binary'"):
        settings.load()


def test_the_command_line_sets_and_shows(capsys):
    assert main(["settings", "serve.binary=/opt/llama-server"]) == 0
    assert "serve.binary = /opt/llama-server" in capsys.readouterr().out
    assert main(["settings", "nonsense"]) == 2


def test_clean_strips_what_a_terminal_would_obey():
    assert clean("a\x1b[31mb\x07c\x9b2Jd\u202ee\n") == "abc2Jde\n"
    assert clean("\x1b]0;title\x07x") == "0;titlex"


@pytest.mark.parametrize(("on_path", "in_venv"), [(True, True), (False, True), (False, False)])
def test_hints_name_the_program_as_this_user_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool, in_venv: bool
) -> None:
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ["python3", *(["bc250studio"] if in_venv else [])]:
        (bin_folder / name).write_text("#!/bin/sh\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python3"))
    monkeypatch.setenv("PATH", str(bin_folder) if on_path else str(tmp_path))
    monkeypatch.chdir(tmp_path)
    expected = ".venv/bin/bc250studio" if in_venv and not on_path else "bc250studio"
    assert paths.command() == expected
    monkeypatch.chdir("/")
    if in_venv and not on_path:
        assert paths.command() == str(bin_folder / "bc250studio")
