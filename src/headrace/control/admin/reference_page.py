"""The reference page of the admin API: every route, who may call it, what it takes.

python -m headrace.control.admin.reference_page > docs/reference/admin-api.md
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute

from headrace.control.admin.access import everyone_attribute, permission_attribute
from headrace.control.admin.app import build_api, prefix, public_modules
from headrace.spec.roles import Permission, Role, role_permissions

introduction = f"""# The admin API

Made by `python -m headrace.control.admin.reference_page` from the routes; a test fails when this
page is not what that command prints. The same as an OpenAPI document, with every answer's fields:
`GET {prefix}/openapi.json`.

Paths are below `{prefix}` of the control plane's own listener. A caller presents
`Authorization: Bearer` with the admin token or a service account's token, or a console session's
cookie together with the header `x-headrace-console`. Operators may call everything. A tenant's
members may call what the table says, for their own tenant; what belongs to others is not there for
them. Errors have OpenAI's shape, `{{"error": {{"message", "type", "param", "code"}}}}`. An unknown
field is refused by name. Every change is in the audit log.

Things are named by id, by name, or by `parent/name`. Lists come in pages: `limit`, and `after` with
the answer's `next`.
"""
public_paths = frozenset(
    route.path
    for module in public_modules
    for route in module.router.routes
    if isinstance(route, APIRoute)
)


def page() -> str:
    """The whole page, in Markdown."""
    app = build_api()
    return "\n".join([introduction, *_sections(app, app.openapi())])


def _sections(app: FastAPI, document: Mapping[str, Any]) -> Iterator[str]:
    groups: dict[str, list[APIRoute]] = {}
    for route in app.routes:
        if isinstance(route, APIRoute):
            groups.setdefault(route.path.removeprefix(prefix).split("/")[1], []).append(route)
    for group in sorted(groups):
        yield f"## {group}\n"
        yield "| method | path | what it does | who may |\n|---|---|---|---|"
        for route in groups[group]:
            method = min(route.methods or {"GET"})
            path = route.path.removeprefix(prefix).replace(":path}", "}")
            yield f"| {method} | `{path}` | {_summary(route)} | {who_may(route)} |"
        yield ""
        for route in groups[group]:
            yield from _fields(route, document)


def who_may(route: APIRoute) -> str:
    """Who may call a route, in words."""
    if route.path.removeprefix(prefix) in public_paths:
        return "nobody asks"
    if getattr(route.endpoint, everyone_attribute, False):
        return "whoever signed in"
    permission: Permission | None = getattr(route.endpoint, permission_attribute, None)
    if permission is None:
        return "operators"
    roles = [role.value for role in Role if permission in role_permissions[role]]
    return f"`{permission.value}`: {', '.join(roles)}"


def _summary(route: APIRoute) -> str:
    return (route.endpoint.__doc__ or "").strip().split("\n")[0].rstrip(".").replace("|", "\\|")


def _fields(route: APIRoute, document: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a route's body, if it takes one."""
    method = min(route.methods or {"GET"}).lower()
    operation = document["paths"][route.path.replace(":path}", "}")][method]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    schema = {} if content is None else _resolved(content["schema"], document)
    if not schema.get("properties"):
        return
    path = route.path.removeprefix(prefix).replace(":path}", "}")
    yield f"`{method.upper()} {path}` takes\n"
    yield "| field | type | default |\n|---|---|---|"
    for name, field in schema["properties"].items():
        needed = name in schema.get("required", ())
        default = "required" if needed else f"`{default_text(field)}`"
        yield f"| `{name}` | {_type(field)} | {default} |"
    yield ""


def default_text(field: Mapping[str, Any]) -> str:
    """A field's default as JSON writes it."""
    return msgspec.json.encode(field.get("default")).decode()


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _type(field: Mapping[str, Any]) -> str:
    """A field's type in a few words."""
    if "$ref" in field:
        return f"{field['$ref'].rpartition('/')[2]}"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(option) for option in field["anyOf"]))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if isinstance(field.get("additionalProperties"), Mapping):
        return f"map to {_type(field['additionalProperties'])}"
    return str(field.get("type", field.get("const", "any")))


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write(page())


if __name__ == "__main__":
    main()
