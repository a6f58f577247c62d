"""How a release was made, as a statement that can be signed and checked.

    python tools/provenance.py make FILE... --key release.pem > dist/provenance.json
    python tools/provenance.py check dist/provenance.json FILE... --public-key release.pub

The statement is in-toto's, with SLSA's predicate of provenance: the digests of what was made, the
commit and the lock file that it was made from, and by which commands. Signed with an Ed25519 key
it stands in a DSSE envelope; without a key nobody vouches for it, and `check` says so.
"""

import argparse
import base64
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

root = Path(__file__).parents[1]
payload_type = "application/vnd.in-toto+json"
statement_type = "https://in-toto.io/Statement/v1"
predicate_type = "https://slsa.dev/provenance/v1"
build_type = "urn:headrace:release:v1"  # `make release` of this repository
inputs = ("requirements/runtime.lock", "requirements/dev.lock", "pyproject.toml", "Makefile")

Json = dict[str, Any]


class NotVouchedFor(Exception):
    """The statement does not hold, or nobody signed it."""


def sha256_of(path: Path) -> str:
    """A file's digest."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(*words: str) -> str:
    """What git says of this repository."""
    done = subprocess.run(  # noqa: S603 -- our own words
        ["git", *words],  # noqa: S607 -- the one on the path is the builder's
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def statement_of(files: list[Path]) -> Json:
    """What was made, and from what; NotVouchedFor where the sources are no commit's."""
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise NotVouchedFor(f"the sources differ from the commit:\n{changed}")
    commit = git("rev-parse", "HEAD")
    source = {"uri": "git+local:headrace", "digest": {"gitCommit": commit}}
    used = [{"name": name, "digest": {"sha256": sha256_of(root / name)}} for name in inputs]
    return {
        "_type": statement_type,
        "subject": [
            {"name": path.name, "digest": {"sha256": sha256_of(path)}} for path in sorted(files)
        ],
        "predicateType": predicate_type,
        "predicate": {
            "buildDefinition": {
                "buildType": build_type,
                "externalParameters": {"target": "release", "commit": commit},
                "internalParameters": {
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "sourceDateEpoch": os.environ.get("SOURCE_DATE_EPOCH", ""),
                },
                "resolvedDependencies": [source, *used],
            },
            "runDetails": {"builder": {"id": "urn:headrace:make"}},
        },
    }


def signed_bytes(payload: bytes) -> bytes:
    """What a signature is over: DSSE's encoding of the type and the payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id(public: Ed25519PublicKey) -> str:
    """A public key's digest."""
    return hashlib.sha256(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def envelope_of(statement: Json, key: Ed25519PrivateKey) -> Json:
    """The statement in an envelope with its signature."""
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    signature = key.sign(signed_bytes(payload))
    return {
        "payloadType": payload_type,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {"keyid": key_id(key.public_key()), "sig": base64.b64encode(signature).decode()}
        ],
    }


def checked(document: Json, public: Ed25519PublicKey, files: list[Path]) -> Json:
    """The statement, if this key signed it and it names each of these files as it is."""
    if "payload" not in document:
        raise NotVouchedFor("the statement is not signed")
    payload = base64.b64decode(document["payload"])
    if document["payloadType"] != payload_type or not any(
        _is_good(public, each["sig"], payload) for each in document["signatures"]
    ):
        raise NotVouchedFor("no signature is of this key")
    statement: Json = json.loads(payload)
    known = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    for path in files:
        if known.get(path.name) != sha256_of(path):
            raise NotVouchedFor(f"{path.name} is not the file that the statement names")
    return statement


def _is_good(public: Ed25519PublicKey, signature: str, payload: bytes) -> bool:
    try:
        public.verify(base64.b64decode(signature), signed_bytes(payload))
    except InvalidSignature:
        return False
    return True


def main() -> None:
    """Make a statement, or check one."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    make.add_argument("files", type=Path, nargs="+")
    make.add_argument("--key", type=Path, help="an Ed25519 key in PEM; nobody vouches without one")
    check = commands.add_parser("check")
    check.add_argument("statement", type=Path)
    check.add_argument("files", type=Path, nargs="+")
    check.add_argument("--public-key", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        if arguments.command == "make":
            _make(arguments.files, arguments.key)
        else:
            _check(arguments.statement, arguments.public_key, arguments.files)
    except NotVouchedFor as error:
        sys.exit(str(error))


def _make(files: list[Path], key_file: Path | None) -> None:
    document = statement_of(files)
    if key_file is not None:
        key = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise NotVouchedFor(f"{key_file} holds no Ed25519 key")
        document = envelope_of(document, key)
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _check(statement_file: Path, key_file: Path, files: list[Path]) -> None:
    public = load_pem_public_key(key_file.read_bytes())
    if not isinstance(public, Ed25519PublicKey):
        raise NotVouchedFor(f"{key_file} holds no Ed25519 key")
    statement = checked(json.loads(statement_file.read_bytes()), public, files)
    commit = statement["predicate"]["buildDefinition"]["externalParameters"]["commit"]
    sys.stdout.write(f"made from commit {commit}, and signed by {key_id(public)}\n")


if __name__ == "__main__":
    main()
