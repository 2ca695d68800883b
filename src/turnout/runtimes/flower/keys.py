"""How a device proves that it is the client it was: it signs what the server asks with its private key.

The keys are those of Flower's node authentication (NIST elliptic curves, in PEM or OpenSSH form). The SuperLink lets
registered keys in; here each client's name is bound to the key it first came with, whatever node it comes as.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.errors import Mistake

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


def signed_text(run: str, challenge: str, name: str) -> bytes:
    return f"turnout {run} {challenge} {name}".encode()


def sign(private_key_file: Path, text: bytes) -> tuple[str, str]:
    """The public key of a private one as text, and the signature of a text."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = private_key(private_key_file)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode(), base64.b64encode(key.sign(text, ec.ECDSA(hashes.SHA256()))).decode()


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key from its file."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        content = path.read_bytes()
    except OSError as error:
        raise Mistake(f"cannot read the device's private key {path}: {error.strerror}") from error
    for load in (serialization.load_ssh_private_key, serialization.load_pem_private_key):
        try:
            key = load(content, None)
        except ValueError:
            continue
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    raise Mistake(f"{path} is no private key of an elliptic curve: ssh-keygen -t ecdsa -b 384 -N '' -f KEY makes one")


def verified(public_key: str, signature: str, text: bytes) -> bool:
    """Whether whoever has the private key of this public one has signed the text."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(public_key.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(base64.b64decode(signature), text, ec.ECDSA(hashes.SHA256()))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
