"""``profiles list|show|new|save``: what is there, and where each value comes from."""

from __future__ import annotations

import argparse
from pathlib import Path

from bc250studio import jobs, paths, profiles
from bc250studio.cli.common import emit, table
from bc250studio.errors import BadInput
from bc250studio.profiles.profile import describe, sections


def add(parser: argparse.ArgumentParser) -> None:
    """Sub-commands."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="names and titles").add_argument("--json", action="store_true")
    show = verbs.add_parser("show", help="every value, where it came from, what it means")
    show.add_argument("profile")
    show.add_argument("--set", action="append", default=[], metavar="A.B=C")
    show.add_argument("--json", action="store_true")
    for verb, text in (("new", "copy a profile under a new name"), ("save", "keep a run's profile under a name")):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("name")
        one.add_argument("--from", dest="source", default="demo" if verb == "new" else "last")
        one.add_argument("--set", action="append", default=[], metavar="A.B=C")


def run(options: argparse.Namespace) -> int:
    """Dispatch."""
    return {"list": _list, "show": _show, "new": _keep, "save": _keep}[options.verb](options)


def _list(options: argparse.Namespace) -> int:
    data = []
    for name, file in profiles.available().items():
        try:
            title = profiles.load(str(file)).profile.title
        except BadInput as error:
            title = f"(broken: {error})"
        data.append({"name": name, "title": title, "file": str(file)})
    emit(data, options.json, table(("profile", "title"), [(d["name"], d["title"]) for d in data]))
    return 0


def _show(options: argparse.Namespace) -> int:
    resolved = profiles.load(options.profile, options.set)
    rows, data = [], {}
    for section in sections():
        values = getattr(resolved.profile, section)
        for key in type(values).model_fields:
            dotted, value = f"{section}.{key}", getattr(values, key)
            origin = resolved.origins.get(dotted, "default")
            data[dotted] = {"value": value, "from": origin, "help": describe(dotted)}
            rows.append((dotted, "-" if value is None else value, origin))
    text = "\n".join(f"{dotted} = {value}  ({origin})\n    {data[dotted]['help']}" for dotted, value, origin in rows)
    emit(data, options.json, f"{resolved.name}: {resolved.profile.title}\n{text}")
    return 0


def _keep(options: argparse.Namespace) -> int:
    if not options.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise BadInput(f"{options.name!r} cannot name a profile; use letters, digits, '-', '_' and '.'.")
    target = paths.private_dir(paths.user_profiles_dir()) / f"{options.name}.toml"
    if target.exists():
        raise BadInput(f"The profile {options.name} exists already: {target}")
    if options.verb == "save":
        source = jobs.find(options.source).path / "profile.toml"
        resolved = profiles.from_text(source.read_text("utf-8"), str(source), options.name, options.set)
    else:
        found = profiles.load(options.source, options.set)
        resolved = profiles.Resolved(options.name, found.profile, found.origins)
    paths.write_atomic(Path(target), profiles.dump(resolved))
    print(target)
    return 0
