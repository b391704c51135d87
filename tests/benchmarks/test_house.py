"""What the benchmark of the house counts."""

import ast

from benchmarks import house

CODE = """
def asks(data: Any, estimator: Any, scale: float) -> "Any | None":
    if isinstance(data, Rows | Panel) or type(data) in KNOWN:
        return data.response.conjugate
    return isinstance(data, str)
"""


def test_places_are_counted(tmp_path):
    (tmp_path / "paper").mkdir()
    for name in ("library.py", "paper/study.py"):
        (tmp_path / name).write_text(CODE)
    found = house.Source(tmp_path)
    assert found.lengths == [CODE.count("\n")]
    assert len(found.all) == 2
    assert found.count(house.asks_class(house.FORMS)) == (2, 1)
    assert found.count(house.asks_class({"Identity"})) == (0, 0)
    assert found.count(house.reads("conjugate")) == (1, 1)
    assert found.count(house.annotated_any) == (2, 1)
    assert found.count(house.takes_estimator) == (1, 1)
    assert house.names_in(ast.parse("a.b | 'C'", mode="eval")) == {"a", "b", "C"}


def test_functions_that_are_entered_are_collected():
    root = house.pathlib.Path(house.__file__).parent
    with house.entered(root) as found:
        house.names_in(None)
        sorted([2, 1], key=lambda x: -x)
    names = {code.co_name for code in found}
    assert "names_in" in names
    assert "<lambda>" not in names
