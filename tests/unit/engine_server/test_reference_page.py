from pathlib import Path

from headrace.engine_server.reference_page import all_routes, columns, page

reference = Path(__file__).parents[3] / "docs/reference/api.md"


def test_the_reference_is_what_the_types_say() -> None:
    assert reference.read_text() == page(), (
        "run: python -m headrace.engine_server.reference_page > docs/reference/api.md"
    )


def test_every_route_and_parameter_stands_there() -> None:
    text = reference.read_text()
    for route in all_routes():
        assert f"| {route.method} | `{route.path.replace('...}', '}')}` |" in text
        assert route.summary
    for _, request, unsupported in columns:
        for name in (*request.__struct_fields__, *unsupported):
            assert f"| `{name}` |" in text
