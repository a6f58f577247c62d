"""What a model version leaves open is said by its file, once that is here.

What was declared stays as it is. With the digest the version means these bytes from then on, on
every node and for every later replica; a file that changed at its place is refused. Where what was
declared contradicts the file, it is refused if the file lies here already, and told from then on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from headrace.base.errors import InvalidRequest, ModelFileError
from headrace.spec.models import FileHeader, ModelVersion, wordless
from headrace.tokenizer.chat_template import ChatTemplate, probe_messages
from headrace.weights.file_facts import FileFacts, template_digest
from headrace.weights.file_header import local_header, template_key

parameters_tolerance = 0.05  # people round them
of_template = frozenset({"chat", "tools", "reasoning"})  # that a chat template has or has not


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Something declared that the file says otherwise."""

    field: str
    words: str
    is_certain: bool = True  # no engine can make it true


def described(version: ModelVersion, facts: FileFacts) -> ModelVersion:
    """The version with what it lacks; the same if it lacks nothing."""
    is_first = version.sha256 is None or version.header is None
    header = facts.header if is_first else version.header
    are_its_bytes = version.sha256 in (None, facts.sha256)
    return msgspec.structs.replace(
        version,
        sha256=version.sha256 or facts.sha256,
        format=version.format or facts.header.format,
        quantization=version.quantization or facts.header.quantization,
        parameters=version.parameters or facts.header.parameters,
        licence=version.licence or facts.licence,
        chat_template_sha256=version.chat_template_sha256 or facts.chat_template_sha256,
        header=header,
        files=version.files or (facts.files if are_its_bytes else ()),
    )


def with_local_header(version: ModelVersion) -> ModelVersion:
    """A version that is to be, with what its file says if that lies on this machine.

    InvalidRequest if something declared cannot be true of it."""
    version = msgspec.structs.replace(version, header=local_header(version.source))
    for found in contradictions(version):
        if found.is_certain:
            raise InvalidRequest(found.words, param=found.field)
    return version


def with_declared_template(version: ModelVersion) -> ModelVersion:
    """A version that is to be, with the digest of its declared chat template, if it has one.

    InvalidRequest if that cannot write the simplest conversation."""
    declared = version.chat_format
    if declared is None:
        return version
    try:
        ChatTemplate(declared.template, {"bos_token": "", "eos_token": ""}).render(probe_messages)
    except ModelFileError as error:
        raise InvalidRequest(error.message, param="chat_format") from error
    digest = template_digest({template_key: declared.template})
    return msgspec.structs.replace(version, chat_template_sha256=digest)


def contradictions(version: ModelVersion) -> list[Contradiction]:
    """What was declared and its file says otherwise; empty where no file was read."""
    return [] if version.header is None else [*_contradictions(version, version.header)]


def _contradictions(version: ModelVersion, header: FileHeader) -> Iterator[Contradiction]:
    declared, own = version.context_length, header.context_length
    if declared is not None and own is not None and declared > own:
        words = f"a context of {declared} tokens is declared; the file's model has {own}"
        yield Contradiction("context_length", words)
    if version.format and header.format and version.format.casefold() != header.format:
        yield Contradiction(
            "format", f"the format {version.format} is declared; the file is {header.format}"
        )
    declared, own = version.parameters, header.parameters
    if declared and own and abs(declared - own) > parameters_tolerance * own:
        words = f"{declared} parameters are declared; the file has {own}"
        yield Contradiction("parameters", words, is_certain=False)
    yield from _wrong_capabilities(frozenset(version.capabilities), header)


def _wrong_capabilities(declared: frozenset[str], header: FileHeader) -> Iterator[Contradiction]:
    """An encoder writes nothing; the rest an engine's arguments may add: a template, a tower."""
    own = frozenset(header.capabilities)
    if not own:
        return
    if own <= wordless:
        if declared and not declared <= wordless:
            what = ", ".join(sorted(declared - wordless))
            words = f"{what} declared; the file's model is for {', '.join(sorted(own))} alone"
            yield Contradiction("capabilities", words)
        return
    if declared and declared <= wordless:
        what = ", ".join(sorted(declared))
        words = f"{what} alone declared; the file's model generates text"
        yield Contradiction("capabilities", words, is_certain=False)
    missing = (declared & of_template) - own
    if missing:
        words = f"{', '.join(sorted(missing))} declared; the file's chat template has no such thing"
        yield Contradiction("capabilities", words, is_certain=False)
