"""What a model version leaves open is said by its file, once that is here: pure.

What was declared stays as it is. With the digest the version means these bytes from then on, on
every node and for every later replica; a file that changed at its place is refused.
"""

import msgspec

from headrace.spec.models import ModelVersion
from headrace.weights.file_facts import FileFacts


def described(version: ModelVersion, facts: FileFacts) -> ModelVersion:
    """The version with what it lacks; the same if it lacks nothing."""
    return msgspec.structs.replace(
        version,
        sha256=version.sha256 or facts.sha256,
        format=version.format or facts.format,
        quantization=version.quantization or facts.quantization,
        parameters=version.parameters or facts.parameters,
        licence=version.licence or facts.licence,
        chat_template_sha256=version.chat_template_sha256 or facts.chat_template_sha256,
    )
