"""The error tree is what its drawing says, and every error can be answered."""

import re
from collections.abc import Iterator

import headrace.base.errors as errors
from headrace.base.errors import HeadraceError, MethodNotAllowed, PaymentRequired


def tree(root: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def test_the_drawing_in_the_docstring_names_every_error_with_its_status() -> None:
    drawn = dict(re.findall(r"(\w+) +(\d{3}) ", errors.__doc__ or ""))
    for error in tree(HeadraceError):
        assert error.__name__ in (errors.__doc__ or "")
        if error.__name__ in drawn:
            assert error.http_status == int(drawn[error.__name__])


def test_codes_are_unique() -> None:
    codes = [error.code for error in tree(HeadraceError)]
    assert len(codes) == len(set(codes))


def test_every_status_has_a_type_and_numbers_are_fields() -> None:
    made = [
        MethodNotAllowed("PUT", "/v1/models", ["GET"]) if error is MethodNotAllowed else error("x")
        for error in tree(HeadraceError)
    ]
    assert all(error.type for error in made)
    refused = PaymentRequired("no", needed_nanousd=5)
    assert (refused.type, refused.fields) == ("billing_error", {"needed_nanousd": 5})
