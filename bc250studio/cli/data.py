"""bc250studio data check|preview FILE: what is in a file, what of it is learnt, and what is not, with the reason."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from bc250studio.cli.common import Bar, duration, emit, narrate, table
from bc250studio.errors import BadInput, clean
from bc250studio.profiles.data import Format


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of both actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|preview")
    check = actions.add_parser("check", help="every row's verdict, lengths, packing", allow_abbrev=False)
    _common(check)
    check.add_argument("--rows", type=int, default=10, metavar="N", help="dropped rows shown (default 10)")
    check.add_argument("--preview", type=int, default=1, metavar="N", help="rendered rows shown (default 1)")
    check.set_defaults(act=_check)
    preview = actions.add_parser("preview", help="rendered rows with the mask shown", allow_abbrev=False)
    _common(preview)
    where = preview.add_mutually_exclusive_group()
    where.add_argument("--row", type=int, metavar="N", help="the N-th learnt row of the file")
    where.add_argument("--longest", action="store_true", help="the longest rows")
    where.add_argument("--shortest", action="store_true", help="the shortest rows")
    where.add_argument("--dropped", action="store_true", help="rows that are left out, as they stand in the file")
    preview.add_argument("--count", type=int, default=1, metavar="N", help="how many rows (default 1)")
    preview.set_defaults(act=_preview)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="file, folder, hub:owner/name or assets:NAME; or from --profile")
    parser.add_argument("--model", metavar="M", help="whose template and tokenizer; without it only shapes are checked")
    parser.add_argument("--profile", metavar="P", help="take file, model and settings from a profile")
    parser.add_argument("--format", choices=get_args(Format), help="what the rows are, instead of looking")
    parser.add_argument(
        "--columns", metavar="OURS=THEIRS,...", help="which column is which, such as prompt=Q,completion=A"
    )
    parser.add_argument("--fill", action="append", metavar="NAME=TEXT", help="text for a {{NAME}} placeholder")
    parser.add_argument("--eval", metavar="FILE", help="a separate evaluation file: warns of prompts in both")
    parser.add_argument("--use-chosen", action="store_true", help="learn the chosen answers of preference rows")
    parser.add_argument("--train-on", choices=("assistant", "last", "all"), help="what is learnt of a row")
    parser.add_argument("--max-length", type=int, metavar="N", help="longest row in tokens")
    parser.add_argument("--overlong", choices=("cut", "drop"), help="what happens to longer rows")
    parser.add_argument("--system", metavar="TEXT", help="system message for rows without one")
    parser.add_argument("--thinking", choices=("on", "off"), help="enable_thinking of the template")
    parser.add_argument("--json", action="store_true", help="data instead of a table")


def run(args: argparse.Namespace) -> int:
    """0 when something is left to learn, else 2."""
    return int(args.act(args))


def _settings(args: argparse.Namespace) -> tuple[Any, Any]:
    """(profile, model source or None) from the options.

    Raises:
        BadInput: no file, or an unknown model.
    """
    from bc250studio import profiles
    from bc250studio.models.find import find

    given: dict[str, Any] = {}
    if args.file:
        given["data.path"] = args.file
    elif not args.profile:
        raise BadInput("Which file? Give its path, hub:owner/name, or --profile NAME.")
    for key in ("format", "train_on", "max_length", "overlong", "system"):
        if getattr(args, key) is not None:
            given[f"data.{key}"] = getattr(args, key)
    if args.eval:
        given["data.eval_path"] = args.eval
    if args.fill:
        given["data.fill"] = dict(_pair(text, "--fill", "name=Bo") for text in args.fill)
    if args.use_chosen:
        given["data.use_chosen"] = True
    if args.thinking:
        given["data.thinking"] = args.thinking == "on"
    if args.columns:
        given["data.columns"] = _columns(args.columns)
    if args.model:
        given["model.base"] = args.model
    resolved = (
        profiles.load(args.profile, given) if args.profile else profiles.from_text("", "command line", overrides=given)
    )
    wanted = args.model or (resolved.profile.model.base if args.profile else None)
    return resolved.profile, find(wanted, resolved.profile.model.revision) if wanted else None


def _columns(text: str) -> dict[str, str]:
    return dict(_pair(part, "--columns", "prompt=Q,completion=A") for part in text.split(",") if part.strip())


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise BadInput(f"{option} {clean(text, 80)} needs the form NAME=VALUE, such as {example}.")
    return name.strip(), value.strip()


def _checked(args: argparse.Namespace) -> Any:
    from bc250studio.data.check import check

    profile, source = _settings(args)
    bar = Bar()
    try:
        return check(profile, source, bar)
    finally:
        bar.close()


def _check(args: argparse.Namespace) -> int:
    checked = _checked(args)
    report = checked.report
    shown = {**report, "dropped_rows": report["dropped_rows"][: args.rows] if not args.json else report["dropped_rows"]}
    rows = checked.preview.first[: max(args.preview, 0)]
    text = "\n\n".join([_text(checked.recognition, shown), *map(show, rows)])
    emit({**shown, "preview": [row.as_dict() for row in rows]}, args.json, text)
    if not checked.learnable:
        narrate(f"bc250studio: {_nothing(report)}")
        return 2
    return 0


def _nothing(report: dict[str, Any]) -> str:
    if report["format"] == "preference" and report["notes"]:
        return report["notes"][0]
    rows = report["rows"]
    if rows["total"] == 0:
        return f"{clean(report['path'], 120)} has no rows."
    why = ", ".join(f"{reason} {count:,}" for reason, count in list(report["reasons"].items())[:3])
    return (
        f"Nothing is left to learn in {clean(report['path'], 120)}:"
        f" {rows['dropped']:,} of {rows['total']:,} rows dropped ({why})."
    )


def _text(recognition: Any, report: dict[str, Any]) -> str:
    rows = report["rows"]
    parts = [f"{clean(report['path'], 200)}: {recognition.words()}", ""]
    counts = [["used", f"{rows['used']:,}", ""], ["cut", f"{rows['cut']:,}", _cut_words(report)]]
    counts += [["dropped", f"{rows['dropped']:,}", ""]]
    counts += [["", f"{count:,}", reason] for reason, count in report["reasons"].items()]
    counts += [["total", f"{rows['total']:,}", ""]]
    parts.append(table(["rows", "", ""], counts))
    if report["dropped_rows"]:
        parts += ["", f"First dropped rows ({len(report['dropped_rows'])} of {rows['dropped']:,}):"]
        for row in report["dropped_rows"]:
            line = f"  {row['where']}: {row['reason']}" + (f" ({row['detail']})" if row["detail"] else "")
            parts.append(_wrapped(line))
    if "tokens" in report:
        parts += ["", *_token_lines(report)]
    else:
        parts += ["", "No model given (--model M): tokens, lengths and mask were not looked at."]
    if report["notes"]:
        parts += ["", *(_wrapped(f"note: {clean(note)}") for note in report["notes"])]
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    """Folded to the terminal's width, at words."""
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size().columns - 1)
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _cut_words(report: dict[str, Any]) -> str:
    return f"at {report['max_length']:,} tokens" if report["rows"]["cut"] and "max_length" in report else ""


def _token_lines(report: dict[str, Any]) -> list[str]:
    tokens, packing = report["tokens"], report["packing"]
    if not tokens["all"]:
        return ["0 tokens."]
    shares = ", ".join(f"{share} % up to {tokens[key]:,}" for share, key in ((50, "p50"), (90, "p90"), (99, "p99")))
    full = f"{packing['fill_percent']} % full packed ({packing['padded_fill_percent']} % when padded)"
    lines = [
        f"tokens: {tokens['all']:,}, learnt {tokens['labelled']:,} ({tokens['labelled_percent']} %)",
        f"row length: {tokens['shortest']:,} to {tokens['longest']:,}, mean {tokens['mean']:,.0f}; {shares}",
        f"passes of {packing['tokens_per_pass']:,}: {packing['passes']:,} an epoch, {full}",
    ]
    split = report.get("split")
    if split:
        lines.append(f"split: {split['train']:,} rows to learn from, {split['evaluation']:,} kept for evaluation")
    time = report.get("time") or {}
    if time.get("seconds_per_epoch"):
        lines.append(
            f"time: about {duration(time['seconds_per_epoch'])} an epoch at {time['real_tokens_per_s']:,.0f}"
            f" real tokens/s ({clean(time['from_run'], 60)})"
        )
    elif time:
        lines.append(f"time: unknown, {time['why']}")
    most = max(bucket["count"] for bucket in report["histogram"])
    lines += ["", "tokens in a row, before cutting:"]
    for bucket in report["histogram"]:
        bar = "#" * -(-40 * bucket["count"] // most) if bucket["count"] else ""
        lines.append(f"  {bucket['from']:>7,} - {bucket['to']:<7,} {bucket['count']:>7,} {bar}".rstrip())
    return lines


def _preview(args: argparse.Namespace) -> int:
    if not args.model and not args.profile:
        raise BadInput("A preview shows rows as the model sees them: give --model M or --profile P.")
    checked = _checked(args)
    preview = checked.preview
    rows = preview.longest if args.longest else preview.shortest if args.shortest else preview.first
    if args.dropped:
        rows = preview.dropped
    begin = (args.row - 1) if args.row else 0
    if args.row is not None and not 1 <= args.row <= max(len(preview.first), 1):
        raise BadInput(f"--row {args.row}: the preview keeps the first {len(preview.first):,} learnt rows.")
    chosen = rows[begin : begin + args.count]
    if args.json:
        emit([row.as_dict() for row in chosen], True)
    elif _interactive(args):
        _page(preview)
    else:
        print("\n\n".join(show(row) for row in chosen) if chosen else "No such row.")
    return 0 if checked.learnable else 2


def _interactive(args: argparse.Namespace) -> bool:
    import sys

    chosen = args.row or args.longest or args.shortest or args.dropped or args.count != 1
    return not chosen and sys.stdin.isatty() and sys.stdout.isatty()


def show(row: Any) -> str:
    """Title and text of a preview row: learnt text stands between ⟦ and ⟧, and in colour on a terminal."""
    import os
    import sys

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    begin, end = ("[[", "]]") if plain else ("⟦", "⟧")
    if colour:
        text = "".join(
            f"\x1b[1;32m{begin}{s.text}{end}\x1b[0m" if s.learnt else f"\x1b[2m{s.text}\x1b[0m" for s in row.segments
        )
    else:
        text = row.marked(begin, end)
    return f"{row.title()}\n{text}"


def _page(preview: Any) -> None:
    """Rows one at a time, by letters."""
    lists = {"f": preview.first, "l": preview.longest, "s": preview.shortest, "d": preview.dropped}
    names = {"f": "first rows", "l": "longest", "s": "shortest", "d": "dropped"}
    which, index = "f", 0
    while True:
        rows = lists[which]
        if rows:
            print(f"\n{names[which]} {index + 1}/{len(rows)}  {show(rows[index])}")
        else:
            print(f"\n{names[which]}: none")
        try:
            key = input("n next, p previous, f first, l longest, s shortest, d dropped, q quit > ").strip().lower()[:1]
        except EOFError:
            return
        if key == "q":
            return
        if key in lists:
            which, index = key, 0
        elif rows:
            index = (index + (-1 if key == "p" else 1)) % len(rows)
