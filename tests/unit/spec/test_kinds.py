"""Every resource can be found by its kind."""

from headrace.spec.kinds import resource_types
from headrace.spec.resource import Resource


def test_every_kind_of_resource_is_listed_under_its_name() -> None:
    assert set(resource_types.values()) == set(Resource.__subclasses__())
    assert all(kind == resource_type.kind for kind, resource_type in resource_types.items())


def test_id_prefixes_are_unique() -> None:
    prefixes = [resource_type.id_prefix for resource_type in resource_types.values()]
    assert len(prefixes) == len(set(prefixes))
