"""What a wheel of headrace is made of and needs, as a CycloneDX document.

    python tools/bill_of_materials.py dist/headrace-0.1.0-*.whl > dist/bom.json

The packages are those of the lock file, each with the digests of every file that may be installed
for it; what they depend on and their licences are read where they are installed. The document is
the same for the same wheel and lock file: its time is SOURCE_DATE_EPOCH's, its number is made of
what it says.
"""

import argparse
import datetime
import hashlib
import os
import re
import sys
import tomllib
import uuid
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import Parser
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

root = Path(__file__).parents[1]
lock_file = root / "requirements" / "runtime.lock"
locked_line = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?==(?P<version>[^\s;]+)(?: *; *(?P<marker>[^#]+?))?"
    r"(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64})+)"
)
# What compiles the extension. nanobind becomes a part of it; the others leave nothing behind.
build_only = frozenset({"cmake", "ninja", "scikit-build-core"})
serial_space = uuid.UUID("6f0d6f6c-2f0b-5d0e-9c53-64d1d9e2a7f1")


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of the lock file."""

    name: str
    version: str
    marker: str  # where it is installed; empty: everywhere
    digests: tuple[str, ...]


def locked_packages(text: str) -> list[Locked]:
    """The packages of a lock file; ValueError names a line that is not pinned with digests."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        match = locked_line.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"not pinned with digests: {line.strip()[:80]}")
        digests = re.findall(r"[0-9a-f]{64}", match["hashes"])
        name = canonicalize_name(match["name"])
        found.append(Locked(name, match["version"], match["marker"] or "", tuple(digests)))
    return found


def component_of(package: Locked) -> Component:
    """One package; any of its digests is a file of it."""
    purl = PackageURL("pypi", None, package.name, package.version)
    properties = [Property(name="headrace:marker", value=package.marker)] if package.marker else []
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        scope=ComponentScope.EXCLUDED if package.name in build_only else ComponentScope.REQUIRED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in package.digests],
        licenses=licenses_of(package.name),
        properties=properties,
    )


def licenses_of(name: str) -> list[License]:
    """What an installed package says of its licence; nothing where it is not installed."""
    try:
        said = metadata.metadata(name).json
    except metadata.PackageNotFoundError:
        return []
    text = str(said.get("license_expression") or said.get("license") or "")
    is_short = text and "\n" not in text and len(text) <= 100  # some put the whole text there
    return [LicenseFactory().make_from_string(text)] if is_short else []


def dependencies_of(name: str) -> set[str]:
    """The names of what an installed package needs here, without its extras."""
    try:
        wanted = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return set()
    found = map(Requirement, wanted)
    return {
        canonicalize_name(each.name)
        for each in found
        if each.marker is None or each.marker.evaluate({"extra": ""})
    }


def component_of_wheel(wheel: Path) -> Component:
    """The wheel itself, by its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(path).decode())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    purl = PackageURL("pypi", None, said["Name"], said["Version"])
    return Component(
        name=said["Name"],
        version=said["Version"],
        type=ComponentType.APPLICATION,
        bom_ref=purl.to_string(),
        purl=purl,
        description=said["Summary"],
        licenses=[LicenseFactory().make_from_string(said["License-Expression"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        properties=[Property(name="headrace:wheel", value=wheel.name)],
    )


def bill_of(wheel: Path, packages: Iterable[Locked], direct: set[str], time_s: int) -> Bom:
    """The whole document."""
    bom = Bom()
    bom.metadata.component = product = component_of_wheel(wheel)
    components = [component_of(package) for package in packages]
    bom.components.update(components)

    def named(names: set[str]) -> list[Component]:
        return [each for each in components if each.name in names]  # some in several versions

    bom.register_dependency(product, named(direct))
    for component in components:
        bom.register_dependency(component, named(dependencies_of(component.name)))
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    said = "\n".join(
        f"{each.bom_ref} {sorted(digest.content for digest in each.hashes)}"
        for each in (product, *components)
    )
    bom.serial_number = uuid.uuid5(serial_space, said)
    return bom


def direct_dependencies() -> set[str]:
    """What headrace itself asks for, and what its extension is compiled with."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], "nanobind"]
    return {canonicalize_name(Requirement(each).name) for each in wanted}


def main() -> None:
    """Read the arguments and write the document to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    arguments = parser.parse_args()
    packages = locked_packages(lock_file.read_text())
    time_s = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    bom = bill_of(arguments.wheel, packages, direct_dependencies(), time_s)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    sys.stdout.write(outputter.output_as_string(indent=1) + "\n")


if __name__ == "__main__":
    main()
