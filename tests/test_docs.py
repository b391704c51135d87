"""The code on the site and in the README runs: ``python`` and ``shell`` fences, page by page.

A fence that is not to be run has another name: ``text``, ``py`` or the directive ``{code-block}``.
"""

import contextlib
import pathlib
import re
import shlex
from typing import NamedTuple

import pytest

from nghvi import cli

ROOT = pathlib.Path(__file__).parent.parent
FENCE = re.compile(r"^```(python|shell)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fence and the number of the line above its code."""

    language: str
    code: str
    line: int


def blocks(path):
    text = path.read_text()
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(2)))
        for found in FENCE.finditer(text)
    ]


def run(path):
    """One namespace per page; tracebacks show the page and its line."""
    names = {"__name__": "page"}
    for language, code, line in blocks(path):
        if language == "python":
            exec(compile("\n" * line + code, str(path), "exec"), names)
        else:
            for command in code.splitlines():
                program, *arguments = shlex.split(command)
                assert program == "nghvi", f"{path.name}, line {line}: {command}"
                assert cli.main(arguments) == 0, f"{path.name}, line {line}: {command}"


PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(p)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page, tmp_path):
    with contextlib.chdir(tmp_path):
        run(page)


def test_pages_with_code_are_found():
    named = {page.stem for page in PAGES}
    assert {"README", "index", "start", "lme4", "deep", "compare"} <= named


def test_an_error_names_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(page)
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(page), 6)


def test_a_command_that_fails_fails_the_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```shell\nnghvi summary nothing\n```\n")
    with pytest.raises(AssertionError, match="line 1: nghvi summary nothing"):
        run(page)
    assert "nothing" in capsys.readouterr().err


def test_fences_of_other_names_are_not_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```text\nx\n```\n\n```{code-block} python\n1 / 0\n```\n")
    assert blocks(page) == []
