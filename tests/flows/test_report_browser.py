"""The pages of a report in a browser: from disk, by keyboard, and served while a run goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from socket import create_connection
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.live import LiveHandler, LivePages
from flows.report import Beside, build
from kgqa_core.errors import InputError
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.systems import COMPARISON
from kgqa_core.types import Step
from tests.conftest import kgqa
from tests.flows.test_report import HOSTILE, NAMES, NOTHING, apart, data, report_of, runs, write_run
from tests.processes import answering

__all__ = ["apart", "runs"]


def find_chromium() -> str:
    """Return where chromium is; a machine without it leaves these tests out, but no CI does."""
    if found := shutil.which("chromium"):
        return found
    refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    refuse("the tests in a browser need chromium")


@pytest.fixture
def browser() -> Iterator[Any]:
    chromium = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which nothing goes wrong."""
    opened, problems = browser.new_page(), list[str]()
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    assert problems == []


@pytest.mark.parametrize(("ci", "expected"), [("true", "Failed"), ("", "Skipped")])
def test_without_chromium_the_tests_in_a_browser_are_left_out_but_fail_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, expected: str
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(BaseException, match="need chromium") as raised:
        find_chromium()
    assert type(raised.value).__name__ == expected


@pytest.mark.slow
@pytest.mark.parametrize("single", [False, True])
def test_the_pages_open_from_disk_and_nothing_that_a_graph_says_runs(
    runs: list[tuple[str, Path]], tmp_path: Path, browser: Any, page: Any, single: bool
) -> None:
    out = tmp_path / ("seen.html" if single else "seen")
    file = build(runs, out, title="two systems", beside=Beside(NOTHING), single=single)
    page.goto(file.as_uri())
    page.get_by_text("Where answers were lost", exact=True).wait_for()
    assert page.locator("h2").all_inner_texts() == ["Systems side by side", "Where answers were lost"]  # no empty one
    page.get_by_role("link", name="Questions").click()
    page.get_by_role("status").get_by_text("25 of 25").wait_for()
    page.get_by_label("answered").select_option("A")
    page.get_by_text("1 of 25").wait_for()
    page.get_by_label("answered").select_option("R")
    page.get_by_label("lost").select_option(label="not chosen")  # what one system has right, and the other lost
    page.get_by_text("0 of 25").wait_for()
    right = build(runs[:1], out.with_name(f"right-{out.name}"), title="one", beside=Beside(NOTHING), single=single)
    other = browser.new_page()
    other.goto(right.as_uri())
    other.get_by_text("None: the first answer to every question is right.").wait_for()
    assert other.locator("table").count() == 0
    page.goto(f"{file.as_uri()}#/data")  # files say nothing of their data
    page.get_by_text("when its run has ended").wait_for()
    page.goto(f"{file.as_uri()}#/q/q00?system=1")  # an address of its own for question and system
    page.get_by_text("Lost: not chosen").wait_for()
    page.get_by_text("1. reason").click()
    assert HOSTILE in page.locator("main").inner_text()
    assert page.title().endswith("two systems") and page.locator("main img").count() == 0


def test_a_report_replaces_what_a_link_leads_to_or_the_folder_one_stands_in(
    runs: list[tuple[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, how = tmp_path / "new" / "report", {"title": "", "beside": Beside(NOTHING)}
    assert build(runs[:1], tmp_path / "new" / "one.html", single=True, **how).is_file()
    build(runs, folder, **how)
    (tmp_path / "link").symlink_to(folder)
    build(runs[:1], tmp_path / "link", **how)
    assert (tmp_path / "link").is_symlink() and len(data(folder, "overview")["runs"]) == 1
    monkeypatch.chdir(folder)
    build(runs, Path(), **how)
    assert len(data(folder, "overview")["runs"]) == 2
    with pytest.raises(InputError, match="is no report"):
        build(runs, folder, single=True, **how)


def test_pages_that_follow_a_run_never_lie_where_a_report_is_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[bool]()
    monkeypatch.setenv("KGQA_HOME", str(tmp_path))
    monkeypatch.setattr("flows.live.LivePages", Mock())
    monkeypatch.setattr("flows.cli_report.build_report", lambda runs, out, **_: seen.append(out.exists()))
    monkeypatch.setattr("http.server.ThreadingHTTPServer", Mock(side_effect=OSError(98, "Address already in use")))
    for specs in ({COMPARISON: None}, {}):  # before and after somebody takes the systems out of the run file
        monkeypatch.setattr("flows.cli_report.opened", Mock(return_value=Mock(specs=specs)))
        done = kgqa("view", "run.yaml")
        assert done.exit_code == 2 and "port 8700 cannot be had" in done.stderr, done.stderr
    assert seen == [False]


def test_a_run_that_is_gone_is_told_in_any_script(tmp_path: Path) -> None:
    pages = Mock(versions=[], state=Mock(side_effect=InputError("the triples of 東京 are gone")))
    with answering(partial(LiveHandler, folder=tmp_path, pages=pages)) as address:
        with pytest.raises(HTTPError, match="500") as told:
            urlopen(address)
        assert "東京" in told.value.read().decode()


def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveHandler, "timeout", LiveHandler.timeout / 300)
    with answering(partial(LiveHandler, folder=tmp_path, pages=None)) as address:
        port = int(address.rpartition(":")[2])
        with create_connection(("127.0.0.1", port), timeout=20) as silent:
            assert silent.recv(1) == b""


@pytest.mark.slow
def test_a_column_of_words_that_are_numbers_is_sorted_as_such(
    runs: list[tuple[str, Path]], tmp_path: Path, page: Any
) -> None:
    cells = [(">=10", "2026-11-03 10:00", "< 0.001"), ("5-9", "2026-11-28 09:00", "-")]
    cells += [("2-4", "2026-02-01 12:00", "0.04"), ("1", "2025-12-01 12:00", "1,000")]
    shown = {"title": "by answers", "header": ["answers", "when", "p"], "rows": cells, "figures_from": 2}
    page.goto(build(runs, tmp_path / "seen", title="", beside=Beside({**NOTHING, "tables": [shown]})).as_uri())
    orders = {
        "answers": ["1", "2-4", "5-9", ">=10"],
        "when": ["1", "2-4", ">=10", "5-9"],  # of one year, too
        "p": ["1", "2-4", ">=10", "5-9"],
    }
    for column, expected in orders.items():
        page.get_by_role("button", name=column, exact=True).click()
        assert page.locator("table").first.locator("tbody th").all_inner_texts() == expected


@pytest.mark.slow
def test_what_is_read_late_does_not_take_the_place_of_where_one_went_on(
    runs: list[tuple[str, Path]], tmp_path: Path, page: Any
) -> None:
    build(runs, tmp_path / "seen", title="two systems", beside=Beside(NOTHING))
    with answering(partial(LiveHandler, folder=tmp_path / "seen", pages=None)) as address:
        held = list[Any]()
        page.route("**/data/q0000.js", lambda route: held.append(route))
        page.goto(f"{address}/#/")
        page.get_by_role("heading", name="Systems side by side").wait_for()
        with page.expect_request("**/data/q0000.js"):
            page.evaluate("location.hash = '#/q/q00'")
        page.get_by_role("link", name="Questions").click()
        page.get_by_text("25 of 25").wait_for()
        with page.expect_response("**/data/q0000.js"):
            held[0].continue_()
        page.wait_for_timeout(300)
        assert page.get_by_text("25 of 25").is_visible()


@pytest.mark.slow
def test_one_file_works_in_the_frame_in_which_mlflow_shows_it(
    runs: list[tuple[str, Path]], tmp_path: Path, page: Any
) -> None:
    file = build(runs, tmp_path / "seen.html", title="two systems", beside=Beside(NOTHING), single=True)
    page.route("http://mlflow.test/", lambda route: route.fulfill(body="<body></body>", content_type="text/html"))
    page.goto("http://mlflow.test/")
    page.evaluate(
        """page => { const frame = document.createElement("iframe"); frame.sandbox = "allow-scripts";
        frame.src = URL.createObjectURL(new Blob([page], { type: "text/html" })); document.body.append(frame); }""",
        file.read_text(encoding="utf-8"),
    )
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="Questions").click()
    frame.get_by_label("answered").select_option("A")
    frame.get_by_text("1 of 25").wait_for()
    frame.get_by_role("row").nth(1).get_by_role("link").click()
    frame.get_by_text("Lost: pruned").wait_for()


@pytest.mark.slow
def test_a_question_shows_what_the_chosen_system_did_also_on_a_narrow_screen(tmp_path: Path, page: Any) -> None:
    answers = {"right": (1,), "wrong": (3,), "silent": ()}
    systems = [(name, write_run(tmp_path, name, own, path=(Step(1, 0, 0),))) for name, own in answers.items()]
    file = build(systems, tmp_path / "seen", title="three systems", beside=Beside(NOTHING))
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(file.as_uri())
    page.get_by_role("row", name="wrong").get_by_role("link", name="1").click()  # two clicks lead to the reason
    page.get_by_text("1 of 1").wait_for()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    chosen = page.locator("section.chosen")
    chosen.wait_for()
    said = page.locator("main").inner_text()
    assert "null" not in said  # in the place of what the explorer did not walk
    assert "No gold among 1 candidate." in said and "among 0 candidates" not in said  # silence has ranked nothing
    assert "Lost: pruned" in chosen.inner_text() and chosen.get_attribute("aria-label") == "wrong"
    drawn = page.get_by_role("img", name="those of wrong stand out")
    assert drawn.locator(".topic").count() == 1  # Italy alone, though Rome is the head
    assert drawn.bounding_box()["width"] >= 760  # to be read; it scrolls in its box, and the page does not
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_name_without_a_space_is_broken_and_does_not_widen_the_page(tmp_path: Path, page: Any) -> None:
    address = f"http://example.org/{'a' * 300}"
    names = SimpleNamespace(**vars(NAMES) | {"entity_names": [address] * 4})
    run = (f"{'a long folder/' * 6}run.yaml@iris", write_run(tmp_path, "iris", (1,), names=names, what=address))
    file = build([run], tmp_path / "seen", title=address, beside=Beside(NOTHING))
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{file.as_uri()}#/q/q00")
    page.get_by_text("Gold:").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="Questions").click()
    page.get_by_text("1 of 1").wait_for()
    assert page.get_by_role("columnheader", name="hops").bounding_box()["x"] < 390  # beside the question
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # its filters name the system


@pytest.mark.slow
def test_no_dot_stands_alone_where_a_drawing_has_no_room_for_a_triple(tmp_path: Path, page: Any) -> None:
    """The last path begins with a triple that is left out, and ends with one that is drawn."""
    names = SimpleNamespace(entity_names=[f"e{n}" for n in range(300)], relation_names=["r"])
    paths = [(Step(0, 0, n), Step(n, 0, n + 1)) for n in range(1, 201, 2)]  # 200 triples
    paths.append((Step(299, 0, 1), Step(1, 0, 2)))
    systems = [
        (f"s{number}", write_run(tmp_path, f"s{number}", (2,), path=path, names=names))
        for number, path in enumerate(paths)
    ]
    page.goto(f"{build(systems, tmp_path / 'seen', title='', beside=Beside(NOTHING)).as_uri()}#/q/q00")
    drawing = page.get_by_role("img", name="200 triples of the paths")
    drawing.wait_for()
    assert drawing.locator("path").count() == 200 and drawing.locator("circle").count() == 201


@pytest.mark.slow
def test_a_name_in_the_drawing_of_costs_stands_beside_its_dot_or_nowhere(tmp_path: Path, page: Any) -> None:
    points = [{"system": f"alike {number:02}", "hits1": 100 - number, "calls": 0} for number in range(20)]
    points.append({"system": "far", "hits1": 50, "calls": 9})
    runs = [(f"rog-seed{seed}", write_run(tmp_path, f"rog {seed}", (1,))) for seed in (0, 1)]
    file = build(runs, tmp_path / "seen", title="many", beside=Beside({**NOTHING, "points": points}))
    page.goto(file.as_uri())
    drawing = page.get_by_role("img", name="Hits@1 against calls")
    page.get_by_text("1 question, 2 runs.").wait_for()  # seeds of a row are no systems of their own
    assert drawing.locator("circle").count() == 21
    shown = {}
    for group in drawing.locator("g").all():
        if (name := group.locator("text")).count():
            dot, text = group.locator("circle").bounding_box(), name.bounding_box()
            shown[name.text_content()] = abs(dot["y"] + dot["height"] / 2 - text["y"] - text["height"] / 2)
    assert {"alike 00", "far"} <= shown.keys() and max(shown.values()) < 40, shown
    page.get_by_text(f"No room for {21 - len(shown)} names").wait_for()


@pytest.mark.slow
def test_every_page_can_be_read_aloud_and_walked_by_keyboard(
    compared: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    monkeypatch.setattr("flows.report_about.MOST_EDGES", 6)
    file = report_of(compared, tmp_path / "report") / "index.html"
    page, problems = browser.new_context(bypass_csp=True).new_page(), list[str]()  # axe puts itself into the page
    page.on("pageerror", lambda error: problems.append(str(error)))
    id = next(one["id"] for one in data(file.parent, "q0000")["questions"] if "more" in one["explored"])
    for address in ("/", "/questions", "/data", "/curves", f"/q/{id}?system=1"):
        page.goto("about:blank")  # else the page before is there until this one is drawn
        page.goto(f"{file.as_uri()}#{address}")
        page.locator("main h2").first.wait_for()
        for part in page.locator("details summary").all():
            part.focus()
            page.keyboard.press("Enter")
        if "/q/" in address:  # what is left out at first is drawn for who asks
            drawn = page.get_by_role("img", name="edges that the explorer walked")
            few = drawn.locator("path").count()
            page.get_by_role("button", name="Draw more of them").press("Enter")
            page.get_by_role("button", name="Draw more of them").wait_for(state="detached")
            assert drawn.locator("path").count() > few
        assert page.evaluate("[...document.querySelectorAll('svg text')].every(text => text.getBBox().x >= 0)")
        found = axe.run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    page.goto("about:blank")  # another address of one page would leave the focus where it is
    page.goto(f"{file.as_uri()}#/")
    page.get_by_role("heading", name="Systems side by side").wait_for()
    page.evaluate("scrollTo(0, 300)")
    page.locator("#cost").select_option("tokens")  # what is drawn anew stays where it is
    page.locator("#cost:focus option:checked", has_text="tokens").wait_for(state="attached")
    assert page.evaluate("scrollY") > 0
    page.goto("about:blank")
    page.goto(f"{file.as_uri()}#/")
    page.get_by_role("heading", name="Systems side by side").wait_for()
    for _ in ("the link to the content", "Overview", "Questions"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Questions").wait_for()
    page.locator("a.skip").press("Enter")  # to the content of this page
    page.wait_for_timeout(100)
    assert page.get_by_role("heading", name="Questions").is_visible()
    assert page.evaluate("document.activeElement.id") == "main"
    assert problems == []


@pytest.mark.slow
def test_pages_that_are_served_follow_the_run(
    apart: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Any
) -> None:
    find, keys = apart.find, [key for key in apart.specs if key.startswith("system-")]
    missing = {*keys, COMPARISON}
    monkeypatch.setattr(apart, "find", lambda key, *known: None if key in missing else find(key, *known))
    (tmp_path / "seen").mkdir()
    pages = LivePages(apart, tmp_path / "seen")
    with answering(partial(LiveHandler, folder=pages.folder, pages=pages)) as address:
        page.goto(f"{address}/#/questions")
        page.get_by_text(f"Still to be made: {keys[0]}").wait_for()
        missing -= {keys[1]}
        page.get_by_text("23 of 23").wait_for()  # one system has answered
        for name, shown in (("Data", "when its run"), ("Curves", "explorer-seed0"), ("Questions", "23 of 23")):
            page.get_by_role("link", name=name, exact=True).click()
            page.get_by_text(shown).first.wait_for()
        assert keys[1] not in page.locator("#live").inner_text()
        name = page.get_by_role("columnheader").last.inner_text()
        page.set_viewport_size({"width": 400, "height": 300})
        page.evaluate("name => { location.hash = `#/questions?system=${encodeURIComponent(name)}` }", name)
        page.locator("#filter-system option:checked", has_text=name).wait_for(state="attached")
        page.evaluate("scrollTo(0, 300)")
        at = page.locator("main").bounding_box()["y"]
        missing -= {keys[0]}  # it stands before the other one, and moves nothing under who looks on
        page.get_by_role("columnheader").nth(4).wait_for()
        assert (
            page.locator("main").bounding_box()["y"] == at < 0 and page.locator("#filter-system").input_value() == name
        )
        page.get_by_role("row").nth(1).get_by_role("link").click()
        missing.clear()
        page.get_by_role("button", name="Show what is new").click()  # a question that is read is not taken away
        page.get_by_role("heading", name="Systems").wait_for()
        assert page.locator("section.system").count() == len(keys) and "#/q/" in page.url
        assert page.locator("section.chosen").get_attribute("aria-label") == name
        assert page.locator("#live").is_hidden()
        asked = Request(page.url.partition("#")[0], headers={"Host": "elsewhere.example"})  # as by DNS rebinding
        with pytest.raises(HTTPError, match="403"):
            urlopen(asked)
    assert len(list(pages.folder.iterdir())) == 2
