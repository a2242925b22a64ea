"""The page: one HTML file that needs nothing else, no network and no script.

Whatever a model, a task, a tool or a setting says is escaped where it is put in, and the page's own policy lets a
browser run nothing and fetch nothing, should that ever fail.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from pathlib import Path

from forge_env.report import tables
from forge_env.report.curves import sections
from forge_env.report.record import RunRecord, read_run
from forge_env.report.samples import samples
from forge_env.utils.atomic import replace_file

NAME = "report.html"


def write_page(folder: Path) -> Path:
    """Write the page of a run from its folder, in the place of an older one; returns its path.

    Raises:
        UserError: when the folder is not that of a training run.
    """
    path = folder / NAME
    replace_file(path, make_page(read_run(folder)))
    return path


def make_page(run: RunRecord) -> str:
    """The page of a run, as text that UTF-8 can carry."""
    style = resources.files("forge_env.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(_title(run))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"{_header(run)}\n<main>\n{_body(run)}\n</main>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # a model may write half of a character


def _title(run: RunRecord) -> str:
    algorithm, env = (str(run.known(name) or "") for name in ("algorithm", "env"))
    return f"{algorithm or 'training'} on {env or 'data'}"


def _header(run: RunRecord) -> str:
    state = "complete" if run.is_complete else "incomplete"
    seed, size = run.known("seed"), run.known("model_parameters")
    parts = [
        str(run.known("model") or ""),
        f"{size:,} parameters" if isinstance(size, int) else "",
        f"seed {seed}" if seed is not None else "",
        str(run.known("started") or "")[:16].replace("T", " "),
    ]
    figures = "".join(
        f"<li><span>{escape(label)}</span><b>{escape(figure)}</b><span>{escape(remark)}</span></li>"
        for label, figure, remark in tables.headline(run)
    )
    return (
        f'<header><h1>{escape(_title(run))}<span class="state {state}">{state}</span></h1>'
        f'<p class="sub">{" · ".join(escape(part) for part in parts if part)}</p>{_why(run)}'
        f'<ul class="figures">{figures}</ul></header>'
    )


def _why(run: RunRecord) -> str:
    """Why a run is not complete."""
    if run.is_complete:
        return ""
    last = run.said[-1] if run.said else {}
    why = str(last.get("text")) if last.get("kind") == "error" else "it was killed, or is still running"
    return f'<p class="why">This run is not complete: {escape(tables.cut(why, 2000))}</p>'


def _body(run: RunRecord) -> str:
    part = "" if run.are_all else f"<p class=note>Of the last {len(run.trained):,} episodes of the training.</p>"
    blocks = [
        ("Warnings", tables.warnings(run)),
        ("Evaluation", tables.evaluations(run)),
        *[(section.title, _charts([chart.html() for chart in section.charts])) for section in sections(run)],
        ("Start", tables.startup(run)),
        ("Slowest tools", tables.tools(run) and tables.tools(run) + part),
        ("How episodes ended, and faults", tables.faults(run) and tables.faults(run) + part),
        ("Episodes before and after, on the same tasks", samples(run)),
        ("The run", _details(run)),
    ]
    return "\n".join(f"<section><h2>{escape(title)}</h2>{html}</section>" for title, html in blocks if html)


def _charts(charts: list[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'


def _details(run: RunRecord) -> str:
    machine = run.known("machine") or {}
    versions = run.known("versions") or {}
    tokens = {name: run.known(name) for name in ("tokens_generated", "tokens_trained") if run.known(name)}
    pairs = [("folder", run.folder), *tokens.items(), *dict(machine).items(), *dict(versions).items()]
    facts = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in pairs)
    said = "\n".join(
        f"{float(line.get('time') or 0.0):8.1f} s  {tables.cut(line['text'], 1000)}" for line in run.said[-500:]
    )
    found = [("Facts, machine and versions", f"<dl>{facts}</dl>" if facts else "")]
    found += [("Config", f"<pre>{escape(run.config)}</pre>" if run.config else "")]
    found += [("What the run said", f"<pre>{escape(said)}</pre>" if said else "")]
    return "".join(f"<details><summary>{title}</summary>{html}</details>" for title, html in found if html)
