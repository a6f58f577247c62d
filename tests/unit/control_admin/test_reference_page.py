"""The reference page of the admin API is what the routes are."""

from pathlib import Path

from headrace.control.admin import reference_page

path = Path(__file__).parents[3] / "docs" / "reference" / "admin-api.md"


def test_the_page_is_current() -> None:
    assert path.read_text() == reference_page.page(), (
        "run: python -m headrace.control.admin.reference_page > docs/reference/admin-api.md"
    )


def test_it_says_who_may() -> None:
    page = reference_page.page()
    assert "| POST | `/tenants` | Create a tenant | operators |" in page
    assert "| `key.write`: owner, admin, developer |" in page
    assert (
        "| POST | `/auth/login` | Sign in with a password: set the session's cookie | nobody"
        in (page)
    )
