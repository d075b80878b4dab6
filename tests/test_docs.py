# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The documentation keeps its promises: links lead somewhere, lists are complete, generated pages are fresh."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from pyruntime.runtime.cli.options import OPTIONS, Status
from pyruntime.runtime.config.schema import CONFIG_DESCRIPTOR

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FOLDERS = ("docs", "model_repository", "benchmarks", "runtime")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
COMPATIBILITY = ROOT / "docs" / "reference" / "compatibility.md"
LIMITS = ROOT / "docs" / "reference" / "limits.md"
DECISIONS = ROOT / "docs" / "explanation" / "decisions"
OPTIONS_PAGE = ROOT / "docs" / "reference" / "options.md"
# Pages that are made of data of the code are written by this program.
GENERATOR = ROOT / "scripts" / "generate_reference"

# How many items each list of the reference has, by the letter that numbers them.
LISTS = {"A": 99, "H": 27, "R": 21, "C": 91, "P": 34}

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
NAMED_TEST = re.compile(r"`(?:tests/)?(?P<file>[\w/]*\btest_\w+\.py)(?P<names>(?:::\w+)*)(?:\[[^`]*\])?`")
ROW = re.compile(r"^\| (?P<number>[AHRCP]\d+) \|.*", re.MULTILINE)
# Constants are called LIKE_THIS, and those in C++ kLikeThis.
CONSTANT = r"`(?:[A-Z0-9_]+|k[A-Z]\w+)`"
LIMIT = re.compile(rf"^\| (?P<names>{CONSTANT}(?:, {CONSTANT})*) \|(?P<value>[^|]*)\|(?P<files>[^|]*)\|", re.MULTILINE)


def name_of(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """A document without its blocks of code."""
    return FENCE.sub("", path.read_text())


@cache
def anchors(path):
    """Those of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def names_in(path):
    """Every function and class of a file, those of a class as (class, function)."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add((node.name,))
        if isinstance(node, ast.ClassDef):
            members = (member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update((node.name, member.name) for member in members)
    return names


def is_there(file, names):
    return (TESTS / file).is_file() and (not names or names in names_in(TESTS / file))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links(path):
    """A link leads to a file that is there, and to a heading that it has."""
    broken = []
    for link in LINK.finditer(prose(path)):
        target = (path.parent / link["path"]).resolve() if link["path"] else path
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors(target)):
            broken.append(link[0])
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_named_tests(path):
    """A test that a document names can be run, or is a file that the document, a tutorial, has its reader write."""
    text = path.read_text()
    named = ((match["file"], tuple(match["names"].split("::")[1:])) for match in NAMED_TEST.finditer(text))
    assert [each for each in named if not is_there(*each) and f'title="{each[0]}"' not in text] == []


def test_every_item_has_its_row():
    """Everything of the reference is in the list of compatibility once, in order, and each row names a test."""
    rows = list(ROW.finditer(COMPATIBILITY.read_text()))
    assert [row["number"] for row in rows] == [f"{each}{n + 1}" for each, count in LISTS.items() for n in range(count)]
    assert [row["number"] for row in rows if not NAMED_TEST.search(row[0])] == []


def definition_of(name, text):
    """The value of the constant in the text of a file, of Python, C, C++ or JavaScript; None if it is not there."""
    start = rf"^(?:.*\bconst |#define |.*\bconstexpr \w+ )?{name}\b"
    found = re.search(rf"{start}(?:: [\w\[\], ]+)? *(?:=|:=| ) *(.*)$", text, re.MULTILINE)
    return found and found[1]


def number_of(definition):
    """The number that a definition stands for; None for a text, a tuple and what refers to other constants."""
    # Without comments, casts, separators and suffixes.
    plain = re.sub(r"\s*(//|#).*|\(size_t\)|'|;$", "", definition)
    plain = re.sub(r"\bsize_t\{(\d+)\}", r"\1", plain)
    plain = re.sub(r"(?<=\d)(ULL|LL|UL|L|u|U|n)\b", "", plain)
    try:
        value = eval(plain, {"__builtins__": {}})
    except (NameError, SyntaxError):
        return None
    return value if isinstance(value, int | float) else None


def written_forms(number):
    """How the list of limits may write a number."""
    yield from (f"{number:g}", str(number), f"{number:,}".replace(",", " "))
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "Mi": 1 << 20, "ms": 1e-3, "min": 60, "h": 3600}
    for unit, size in units.items():
        if (number / size).is_integer():
            yield f"{number / size:g} {unit}"
    for bits in (31, 63, 64):
        yield from {2**bits - 1: [f"2^{bits} - 1"], -(2**bits): [f"-2^{bits}"]}.get(number, [])
    if number == 0.5:
        yield "half"


def says(text, name, number):
    """Whether a row says the value of a constant."""
    numbers = [number, number / 1e9] if "_NS_" in name else [number]
    forms = {form for each in numbers for form in written_forms(each)}
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?!\d)", text) for form in forms)


def test_limits_are_in_the_code():
    """Each name in the list of limits is a constant of the file that the row names, and has the value that it gives."""
    wrong = []
    for row in LIMIT.finditer(LIMITS.read_text()):
        for file in re.findall(r"`([^`]+)`", row["files"]):
            text = (ROOT / file).read_text()
            for name in re.findall(r"\w+", row["names"]):
                definition = definition_of(name, text)
                number = None if definition is None else number_of(definition)
                if definition is None or (number is not None and not says(row["value"], name, number)):
                    wrong.append((name, file, definition, row["value"]))
    assert wrong == []


def test_decisions_are_numbered():
    """The pages have consecutive numbers, and each begins with its own."""
    pages = sorted(page for page in DECISIONS.iterdir() if page.name != "index.md")
    assert [page.name[:5] for page in pages] == [f"{number:04}-" for number in range(1, len(pages) + 1)]
    assert [page.name for page in pages if not page.read_text().startswith(f"# {page.name[:4]} ")] == []


def test_options_are_in_the_reference():
    """The tables of options have each option once, and say of those without an effect that they have none."""
    rows = re.findall(r"^\| `--([a-z0-9-]+)` \|(.*)", OPTIONS_PAGE.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == list(OPTIONS)
    without_effect = [name for name, row in rows if "*No effect" in row]
    assert without_effect == [name for name, option in OPTIONS.items() if option.status is not Status.WORKS]


@pytest.fixture(scope="module")
def generator():
    """scripts/generate_reference, as a module."""
    module = ModuleType(GENERATOR.name)
    module.__file__ = str(GENERATOR)
    exec(compile(GENERATOR.read_text(), GENERATOR, "exec"), vars(module))
    return module


def test_generated_pages_are_fresh(generator):
    """After a change of options, endpoints, metrics, the schema or decisions: run scripts/generate_reference."""
    pages = generator.pages()
    assert [name for name, text in pages.items() if (ROOT / "docs" / name).read_text() != text] == []


def test_every_field_of_a_configuration_is_in_the_reference(generator):
    """The page is read from the text of the schema; the server reads the compiled schema. They have the same fields."""
    listed = {
        name: sorted(field.name for field in message.fields) for name, message in generator.schema_messages().items()
    }
    compiled = {}
    waiting = [CONFIG_DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        waiting += [field.message_type for field in message.fields if field.message_type]
        if not message.GetOptions().map_entry:
            compiled[message.name] = sorted(field.name for field in message.fields)
    assert listed == compiled


@pytest.mark.processes
def test_the_site_builds(tmp_path):
    """Without a warning: no dead link or anchor, and no page that is missing in the navigation."""
    if find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: it is in the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--config-file={ROOT / 'mkdocs.yml'}"]
    done = subprocess.run([*command, f"--site-dir={tmp_path / 'site'}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "site" / "index.html").read_text()
    # Links to other sites are for readers to follow; nothing is loaded from there.
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=.?https?://[^>]*>", html) == []


def test_the_first_model_of_the_readme_is_the_tutorials():
    """What a reader copies from README.md is what the test of the tutorial runs."""
    tutorial = (ROOT / "docs/tutorials/first-model.md").read_text()
    readme = (ROOT / "README.md").read_text()
    (model,) = re.findall(r'^```python title="hello.py"\n(.*?)^```$', tutorial, re.MULTILINE | re.DOTALL)
    assert f"```python\n{model}```" in readme
    (session,) = re.findall(r"^\$ (curl [^\n]*/hello/infer .*?)^```$", tutorial, re.MULTILINE | re.DOTALL)
    command, answer = session.strip().rsplit("\n", 1)
    assert f"```\n{command}\n```\n\n```\n{answer}\n```" in readme
