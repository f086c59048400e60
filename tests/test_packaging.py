"""The lock, the package list, the dependencies and the scripts around make: what breaks on other people's machines."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOTS = ("flows", "tasks", "kgqa_core")
SUPPORTED = ("3.11", "3.12", "3.13")


def git_files(*folders: str) -> list[str]:
    command = ["git", "ls-files", *folders]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def locked() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def declared() -> list[Requirement]:
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    return [Requirement(line) for lines in (PYPROJECT["project"]["dependencies"], *extras) for line in lines]


def names_of(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def test_every_package_of_the_tree_is_listed():
    folders = {init.parent.relative_to(ROOT) for root in ROOTS for init in (ROOT / root).rglob("__init__.py")}
    modules = {module.parent.relative_to(ROOT) for root in ROOTS for module in (ROOT / root).rglob("*.py")}
    assert modules == folders
    data = {Path(name).parent for name in (*git_files(*ROOTS), *(f"kgqa_core/{name}" for name in git_files("conf")))}
    # What could be imported setuptools takes for a package, also where it holds data alone.
    listed = [".".join(one.parts) for one in folders | data if all(part.isidentifier() for part in one.parts)]
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(listed)


def test_every_file_beside_the_modules_goes_into_the_wheel():
    data = {name for name in git_files(*ROOTS) if not name.endswith(".py")}
    data |= set(git_files("conf"))
    globs, at = PYPROJECT["tool"]["setuptools"]["package-data"].items(), PYPROJECT["tool"]["setuptools"]["package-dir"]
    folders = {package: at.get(package, package.replace(".", "/")) for package, _ in globs}
    listed = {path for package, names in globs for name in names for path in ROOT.glob(f"{folders[package]}/{name}")}
    listed.discard(ROOT / "conf" / "local.yaml")
    assert data == {path.relative_to(ROOT).as_posix() for path in listed}


def call(*command: str | Path, folder: Path, **environment: str) -> str:
    words, variables = list(map(str, command)), {**os.environ, **environment}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the built wheel is installed, without what it needs: that is here."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in git_files():
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "clone" / name)
    (folder / "clone" / "conf" / "local.yaml").write_text("data: /mine\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder / "dist")
    call(*pip, *build, folder / "clone", folder=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    call(*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel, folder=folder)
    shutil.rmtree(folder / "clone")
    return folder / "site"


@pytest.mark.slow
def test_the_wheel_works_outside_the_clone(installed, tmp_path):
    shipped = {path.relative_to(installed / "kgqa_core").as_posix() for path in (installed / "kgqa_core").rglob("*.*")}
    assert {*git_files("conf")} <= shipped
    assert "conf/local.yaml" not in shipped

    def kgqa(*arguments: str) -> str:
        environment = {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1", "KGQA_HOME": str(tmp_path / "home")}
        return call(sys.executable, installed / "bin" / "kgqa", *arguments, folder=tmp_path, **environment)

    assert "train-explorer" in kgqa("--help")
    assert "graph" in kgqa("build", "conf/demo.yaml")
    answered = ("--answered-by", "oracle", "--set", "encoder.kind=hash")
    compared = kgqa("evaluate", "conf/own-graph-example.yaml", "--systems", "direct", *answered)
    assert "direct (oracle)" in compared
    question = "Where was Charles Babbage born?"
    asked = json.loads(kgqa("ask", "conf/own-graph-example.yaml", question, "--system", "direct", "--json", *answered))
    assert question in json.dumps(asked)


@pytest.mark.parametrize("python", SUPPORTED)
def test_the_lock_pins_one_published_version_of_each_package_that_is_allowed(python):
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            # No local suffix (2.13.0+cpu), no address, no option such as --index-url.
            assert re.fullmatch(r'[A-Za-z0-9._-]+==[0-9][0-9a-z.]*(; python_version [<>]=? "3\.\d+")?', line), line
    assert len(names_of(locked())) == len(locked())
    valid = [pin for pin in locked() if pin.marker is None or pin.marker.evaluate({"python_version": python})]
    pins = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in valid}
    for wanted in declared():
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), wanted


def test_the_lock_has_what_the_installed_packages_need(installed=frozenset({"torch-scatter"})):
    """Follow the dependencies of what is installed here: none may be left for the resolver to choose."""
    from importlib.metadata import PackageNotFoundError, requires

    pins, seen = names_of(locked()), set()
    waiting = [name for name in names_of(declared()) if name not in installed]
    while waiting:
        name = waiting.pop()
        assert name in pins, f"{name} is not in constraints.txt"
        seen.add(name)
        try:
            needs = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue
        wanted = names_of([need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})])
        waiting += wanted - seen - set(waiting)


def imported_modules() -> Iterator[tuple[Path, str]]:
    for root in ROOTS:
        for path in (ROOT / root).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    yield from ((path, alias.name.partition(".")[0]) for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield path, node.module.partition(".")[0]


def test_whatever_is_imported_is_declared():
    """A package that comes with another by accident may leave with it."""
    distributions = packages_distributions() | {"torch_scatter": ["torch-scatter"]}
    known = names_of(declared())
    for path, module in imported_modules():
        if module not in sys.stdlib_module_names and module not in ROOTS:
            providers = {canonicalize_name(name) for name in distributions[module]}
            assert providers & known, f"{path}: {module} comes from {providers}"


def test_make_test_ends_with_one_pytest_run():
    """Whoever reads the end of the log finds pytest's summary there."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    # Not as a part of the make that may have started these tests: that one would announce the folder.
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    make = ["make", "-n", "test"]
    planned = subprocess.run(make, cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [command for command in planned if "-m pytest" in command] == planned[-1:]


def run_script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("CI", "CXX")}
    command = [str(ROOT / ".ci" / name), *arguments]
    return subprocess.run(command, cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, check=False)


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def pretend(path: Path, line: str) -> Path:
    """Write a Python that runs ``line`` before what it is asked to run with -c."""
    return write_program(path, f"""exec '{sys.executable}' -c "import sys; {line}; exec(sys.argv[1])" "$2" """)


def test_the_first_python_that_fits_is_found_and_what_each_lacks_is_named(tmp_path):
    old = pretend(tmp_path / "old", "sys.version_info = (3, 10, 2)")
    bare = pretend(tmp_path / "bare", "sys.modules['ensurepip'] = None")
    unusable = (str(tmp_path / "nothing"), str(old), str(bare))
    assert run_script("find-python", *unusable, sys.executable).stdout.strip() == sys.executable
    refused = run_script("find-python", *unusable)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{tmp_path / 'nothing'} does not run" in refused.stderr
    assert f"{old} is Python 3.10; 3.11, 3.12 or 3.13 is needed" in refused.stderr
    assert f"{bare} lacks the module ensurepip (on Debian and Ubuntu: apt install python3" in refused.stderr


@pytest.mark.parametrize(("ci", "expected"), [("", 0), ("true", 1)])
def test_a_failed_build_of_torch_scatter_fails_in_ci_only_and_a_missing_compiler_nowhere(tmp_path, ci, expected):
    done = run_script("install-scatter", str(tmp_path), CXX="no-such-compiler", CI=ci)
    assert done.returncode == 0
    assert "there is no C++ compiler 'no-such-compiler'" in done.stderr
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "Python.h").touch()
    program = f'case "$1" in -c) echo {headers} ;; *) echo "the compiler gave up"; exit 3 ;; esac'
    write_program(tmp_path / "bin" / "python", program)
    done = run_script("install-scatter", str(tmp_path), CXX="sh", CI=ci)
    assert done.returncode == expected
    assert "the compiler gave up" in done.stderr
    assert ("Going on without it" in done.stderr) == (not ci)


@pytest.mark.parametrize(("attempts", "expected"), [(1, 0), (2, 0), (3, 1)])
def test_ci_installs_chromium_in_one_of_two_attempts_and_ends_without_it(tmp_path, attempts, expected):
    programs, log = tmp_path / "bin", tmp_path / "log"
    made = write_program(programs / "make", f'echo "make $* CI=$CI" >> {log}').with_name("chromium")
    install = (
        f"echo install >> {log}; [ $(grep -c install {log}) = {attempts} ] || exit 100; : > {made}; chmod +x {made}"
    )
    write_program(programs / "apt-get", f"PATH={os.defpath}; case $1 in install) {install} ;; esac")
    for name in ("bash", "dirname", "timeout"):
        (programs / name).symlink_to(shutil.which(name))
    done = run_script("run", PATH=str(programs))
    assert (done.returncode, "without it the tests in a browser cannot run" in done.stderr) == (expected, expected == 1)
    lines = log.read_text().splitlines()
    assert lines == ["install"] * min(attempts, 2) + ["make test CI=true"] * (not expected)
