"""The examples of README.md, docs, run files and --help: commands that exist, on run files and entities that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml

from flows.cli import app
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.graph.kg import open_graph
from kgqa_core.run.ask import link_asked
from kgqa_core.run.pipeline import Pipeline
from tasks.sweep_points import read_sweep
from tests.conftest import PROJECT, kgqa

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
GROUP = typer.main.get_command(app)
READS = ("ask", "sql", "subgraph", "lint", "status")  # what runs in moments on a built run
MADE_UP = re.compile(r"conf/(a|b|run|mine)\.yaml|\.\.\.|[A-Z]{4}")  # in the place of a run of one's own


def commands_in(text: str) -> Iterator[str]:
    """Yield the ``kgqa`` commands of a page: lines of its blocks of code, and what stands in backticks."""
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(r"(?:^|&& )(kgqa [^&]+)", line)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(kgqa [a-z-]+(?: [^`\n]*)?)`", prose)


def examples() -> Iterator[tuple[str, str]]:
    """Yield every command that we show, and where."""
    for page in PAGES:
        yield from ((command, page.name) for command in commands_in(page.read_text(encoding="utf-8")))
    helps = {"kgqa": app.info.help or "", **{name: one.help or "" for name, one in GROUP.commands.items()}}
    for name, text in helps.items():
        yield from ((line.strip(), f"{name} --help") for line in text.splitlines() if line.strip().startswith("kgqa "))
    for file in sorted((PROJECT / "conf").rglob("*.yaml")):
        header = re.match(r"(#.*\n)*", file.read_text(encoding="utf-8"))
        for command in re.findall(r"# Command +(?:make demo, or: )?(kgqa [^;,\n]+)", header[0] if header else ""):
            yield command, str(file.relative_to(PROJECT))


def words_of(command: str) -> list[str]:
    """Return the words of a command as a shell gives them on, without what comes after the command."""
    words = shlex.split(command, comments=True)
    end = next((place for place, word in enumerate(words) if word in (">", "|", ";")), len(words))
    return words[1:end]


SHOWN = sorted(set(examples()))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run files name data that need not be there to be read."""
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(PROJECT)


@pytest.mark.parametrize("name", GROUP.commands)
def test_help_shows_examples_as_they_are_typed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes ``[oracle]`` for markup and leaves it out."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = kgqa(name, "--help").stdout
    examples = [line.strip() for line in (GROUP.commands[name].help or "").splitlines() if "  kgqa " in line]
    assert [line for line in examples if line.replace("\\[", "[") not in shown] == []


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(("command", "where"), SHOWN)
def test_a_command_that_we_show_is_one_with_a_run_file_and_settings_that_fit(command: str, where: str) -> None:
    name, *words = words_of(command)
    if name.startswith("-"):
        return
    assert name in GROUP.commands, where
    one = GROUP.commands[name]
    try:
        context = one.make_context(name, list(words))
    except Exception as problem:  # of the click that typer carries
        if type(problem).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise
        assert f"`{command}`" in (PROJECT / "docs" / where).read_text(encoding="utf-8")  # only a sentence is so short
        return
    given = context.params
    conf = str(given.get("conf") or "").partition("@")[0]
    if not conf.startswith("conf/") or MADE_UP.search(conf):
        return
    assert (PROJECT / conf).is_file(), where
    (read_sweep if name == "sweep" else read_config)(PROJECT / conf, given.get("settings") or ())


def test_there_are_many_examples_and_most_of_them_name_a_run_file() -> None:
    assert len(SHOWN) > 100
    assert sum("conf/" in command for command, _ in SHOWN) > 60


ON_THE_DEMO = [(command, where) for command, where in SHOWN if re.search(r"conf/demo\.yaml|kgqa-demo@", command)]


@pytest.mark.parametrize(("command", "where"), ON_THE_DEMO)
def test_examples_on_the_demo_find_what_they_ask_for(
    command: str, where: str, tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the built run of all tests, whose graph and questions are the demo's."""
    name, *words = words_of(command)
    given = GROUP.commands[name].make_context(name, list(words)).params
    if name == "ask" and given["question"] not in (None, "QUESTION", "..."):
        graph = open_graph(Pipeline(tiny_config).artifact("graph").folder)
        assert link_asked(given["question"], given["topic"] or (), graph).topics, where
    if name not in READS or {"--system", "--file"} & {*words} or "models:/" in command or "QUESTION" in command:
        return
    monkeypatch.chdir(tmp_path)  # some write a file
    home = tiny_config.runtime.home
    tiny = [str(home.parent / "tiny.yaml") if word == "conf/demo.yaml" else word for word in words]
    done = kgqa(name, *tiny, "--set", f"runtime.home={home}")
    assert done.exit_code == 0, done.stderr
    assert "0 rows" not in re.split(r"\D(?=0 rows)", done.stdout)


def test_questions_and_topics_in_texts_about_the_demo_are_in_its_graph(tiny_config: RunConfig) -> None:
    graph = open_graph(Pipeline(tiny_config).artifact("graph").folder)
    text = (PROJECT / "docs" / "serving.md").read_text(encoding="utf-8").replace("'\"'\"'", "'")
    topics = re.findall(r'"topic": "([^"]+)"', text)
    questions = re.findall(r'"question": "([^"]+)"\}', text)
    assert topics and questions
    assert [topic for topic in topics if not len(graph.ids_of_name(topic))] == []
    for question in questions:
        assert link_asked(question, (), graph).topics


def test_benchmarks_and_targets_that_we_name_exist() -> None:
    from benchmarks.__main__ import BENCHMARKS

    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"python -m benchmarks (\w+)", text)) <= set(BENCHMARKS)
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


def test_containers_run_commands_that_exist_and_publish_no_port_to_others() -> None:
    found = yaml.safe_load((PROJECT / "compose.yaml").read_text(encoding="utf-8"))
    assert found["services"].keys() == {"postgres", "prefect", "mlflow", "worker"}
    name, *words = found["services"]["worker"]["command"]
    assert GROUP.commands[name].make_context(name, list(words)).params["foreground"]
    ports = [port for service in found["services"].values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:4200:4200", "127.0.0.1:5000:5000"]
    values = [str(value) for one in found["services"].values() for value in one["environment"].values()]
    assert [value for value in values if "://kgqa:" in value and "kgqa:${POSTGRES_PASSWORD}@" not in value] == []
    copied = re.findall(r"^COPY (\S+) \./$", (PROJECT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied and all((PROJECT / name).is_file() for name in copied)
