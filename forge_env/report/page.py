"""The report of a training run: one HTML file that needs no network and no script.

Every text of a model, a task, a tool or a setting is escaped when it is inserted. Should that ever fail, the page's
policy still forbids the browser to run or to fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from forge_env.report import tables
from forge_env.report.chart_sections import chart_sections
from forge_env.report.kind_section import kind_charts, kind_table
from forge_env.report.part_section import part_charts, part_tables
from forge_env.report.run_data import RunData, read_run
from forge_env.report.samples import sample_episodes
from forge_env.report.svg_chart import Chart
from forge_env.utils.atomic import replace_file

NAME = "report.html"
MAX_CONSOLE_LINES = 500


def write_page(folder: Path) -> Path:
    """Write the report of a run from its folder, and replace an older one; returns its path."""
    path = folder / NAME
    replace_file(path, render_page(read_run(folder)))
    return path


def render_page(run: RunData) -> str:
    """The report as HTML that UTF-8 can encode."""
    style = resources.files("forge_env.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title_of(run))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"{_header(run)}\n<main>\n{_sections(run)}\n</main>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # a model may write half of a surrogate pair


def title_of(run: RunData) -> str:
    """What was trained, and on what."""
    algorithm, env = (str(run.fact(name) or "") for name in ("algorithm", "env"))
    return f"{algorithm or 'training'} on {env or 'data'}"


def _header(run: RunData) -> str:
    state = "complete" if run.is_complete else "incomplete"
    seed, size = run.fact("seed"), run.fact("model_parameters")
    parts = [
        str(run.fact("model") or ""),
        f"{size:,} parameters" if isinstance(size, int) else "",
        f"seed {seed}" if seed is not None else "",
        str(run.fact("started") or "")[:16].replace("T", " "),
    ]
    why = why_incomplete(run)
    ended = f'<p class="why">This run is not complete: {escape(why)}</p>' if why else ""
    figures = "".join(
        f"<li><span>{escape(label)}</span><b>{escape(figure)}</b><span>{escape(remark)}</span></li>"
        for label, figure, remark in tables.headline(run)
    )
    return (
        f'<header><h1>{escape(title_of(run))}<span class="state {state}">{state}</span></h1>'
        f'<p class="sub">{" · ".join(escape(part) for part in parts if part)}</p>{ended}'
        f'<ul class="figures">{figures}</ul></header>'
    )


def why_incomplete(run: RunData) -> str:
    """What ended a run before its end; "" for a complete one."""
    if run.is_complete:
        return ""
    last = run.console[-1] if run.console else {}
    reason = str(last.get("text")) if last.get("kind") == "error" else "it was killed, or is still running"
    return tables.shorten(reason, 2000)


def _sections(run: RunData) -> str:
    charts = chart_sections(run)  # learning comes first, with its reward curve
    sections = [
        ("What may keep it from learning", tables.findings(run)),
        ("Warnings", tables.warnings(run)),
        ("Evaluation", tables.evaluations(run)),
        *[(section.title, _charts(section.charts)) for section in charts[:1]],
        ("Success by kind of task", kind_table(run) and kind_table(run) + _charts(kind_charts(run))),
        ("Parts of the reward", part_tables(run) + _charts(part_charts(run))),
        *[(section.title, _charts(section.charts)) for section in charts[1:]],
        ("Startup", tables.startup(run)),
        ("Slowest tools", tables.tools(run) and tables.tools(run) + _trained_note(run)),
        ("Outcomes and faults", tables.faults(run) and tables.faults(run) + _trained_note(run)),
        ("Episodes before and after, on the same tasks", sample_episodes(run)),
        ("The run", _details(run)),
    ]
    return "\n".join(f"<section><h2>{escape(title)}</h2>{html}</section>" for title, html in sections if html)


def _trained_note(run: RunData) -> str:
    if run.has_all_trained:
        return ""
    return f"<p class=note>Of the last {len(run.trained):,} episodes of the training.</p>"


def _charts(charts: Sequence[Chart]) -> str:
    return f'<div class="charts">{"".join(chart.html() for chart in charts)}</div>' if charts else ""


def _details(run: RunData) -> str:
    tokens = {name: run.fact(name) for name in ("tokens_generated", "tokens_trained") if run.fact(name)}
    machine, versions = (dict(run.fact(name) or {}) for name in ("machine", "versions"))
    facts = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in [("folder", run.folder), *tokens.items(), *machine.items(), *versions.items()]
    )
    console = "\n".join(
        f"{float(line.get('time') or 0.0):8.1f} s  {tables.shorten(line['text'], 1000)}"
        for line in run.console[-MAX_CONSOLE_LINES:]
    )
    details = [
        ("Facts, machine and versions", f"<dl>{facts}</dl>"),
        ("Config", f"<pre>{escape(run.config)}</pre>" if run.config else ""),
        ("Console", f"<pre>{escape(console)}</pre>" if console else ""),
    ]
    return "".join(f"<details><summary>{title}</summary>{html}</details>" for title, html in details if html)
