"""How large and how quick a report of 10,000 questions x 10 systems is, made of real answers that are repeated.

``python -m benchmarks.report_size FOLDER PREDICTIONS...``: tables of systems that answered the same questions, with
their calls beside them; they are repeated, under other ids, until there are enough. Prints CPU seconds of the build,
megabytes, and what a reader waits for in a headless chromium: milliseconds until something is drawn, of a filter, of
a question that is opened, medians of five.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.report import Beside, build

QUESTIONS, SYSTEMS, TIMES = 10_000, 10, 5


def repeat(path: Path, folder: Path) -> Path:
    """Write a system's tables, repeated until there are enough questions, into a folder; return the predictions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("predictions.parquet", "calls.parquet"):
        source = path.with_name(name)
        if source.is_file():
            asked = pq.read_table(path, columns=["question_id"])["question_id"]
            table, parts = pq.read_table(source), []
            for turn in range(-(-QUESTIONS // len(asked))):
                ids = asked if (turn + 1) * len(asked) <= QUESTIONS else asked[: QUESTIONS - turn * len(asked)]
                own = table.filter(pc.is_in(table["question_id"], value_set=ids.combine_chunks()))
                others = pc.binary_join_element_wise(f"{turn}#", own["question_id"], "")
                parts.append(own.set_column(own.schema.get_field_index("question_id"), "question_id", others))
            pq.write_table(pa.concat_tables(parts).replace_schema_metadata(table.schema.metadata), folder / name)
    return folder / "predictions.parquet"


def median(once: Callable[[], float]) -> float:
    """Return the median milliseconds of some tries."""
    return round(statistics.median(once() for _ in range(TIMES)))


def look(page_file: Path) -> dict[str, float]:
    """Return what a reader waits for, in milliseconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def paint() -> float:
            page = browser.new_page()
            page.goto(page_file.as_uri())
            page.locator("main table").first.wait_for()
            painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            drawn = "performance.timeOrigin + performance.now()"
            found = max(page.evaluate(painted), page.evaluate(f"{drawn} - performance.timeOrigin"))
            page.close()
            return float(found)

        def until(page: Any, act: str, there: str) -> float:
            """Do something in the page and return the milliseconds until it is drawn."""
            code = f"""() => new Promise(done => {{ const start = performance.now();
                const see = () => {there}
                    ? requestAnimationFrame(() => done(performance.now() - start)) : setTimeout(see, 1);
                {act};
                see();
            }})"""
            return float(page.evaluate(code))

        first = median(paint)
        page = browser.new_page()
        page.goto(f"{page_file.as_uri()}#/questions")
        page.locator("main table").wait_for()
        words = iter("WARWAR")
        status = "document.querySelector('main [role=status]')"

        def choose() -> float:
            act = f"const was = {status}; const pick = document.getElementById('filter-verdict'); pick.value = '%s'; "
            act += "pick.dispatchEvent(new Event('change'))"
            return until(page, act % next(words), f"({status} && {status} !== was)")

        chosen = median(choose)
        ids = iter(
            json.loads(page.evaluate("JSON.stringify([...document.querySelectorAll('main th a')].map(a => a.hash))"))
        )

        def open_one() -> float:
            return until(page, f"location.hash = {json.dumps(next(ids))}", "document.querySelector('section.system')")

        def opened() -> float:
            found = open_one()
            page.goto(f"{page_file.as_uri()}#/questions")
            page.locator("form").wait_for()
            return found

        result = {"first paint": first, "filter": chosen, "open a question": median(opened)}
        browser.close()
    return result


def main() -> None:
    """Repeat, build, look, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_size", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the repeated tables and the report")
    parser.add_argument("predictions", type=Path, nargs="+", help="tables of systems, with their calls beside them")
    options = parser.parse_args()
    folder, paths = options.folder, options.predictions
    runs = [(f"s{n}", repeat(paths[n % len(paths)], folder / f"s{n}")) for n in range(SYSTEMS)]
    shutil.rmtree(folder / "report", ignore_errors=True)
    before = time.process_time()
    nothing: dict[str, Any] = {"tables": [], "sentences": [], "points": []}
    page = build(runs, folder / "report", title="10,000 questions x 10 systems", beside=Beside(nothing))
    built = time.process_time() - before
    size = sum(file.stat().st_size for file in (folder / "report").rglob("*")) / 1e6
    shell = sum(file.stat().st_size for file in (folder / "report").glob("*")) / 1e3
    print(json.dumps({"build, CPU s": round(built, 1), "folder, MB": round(size, 1), "shell, KB": round(shell, 1)}))
    print(json.dumps(look(page)))


if __name__ == "__main__":
    main()
