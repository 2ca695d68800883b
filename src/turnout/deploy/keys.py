"""How a device proves that it is the client it was: it signs the server's challenge with its private key.

The keys are those of Flower's node authentication (NIST elliptic curves, in OpenSSH form). The SuperLink admits
registered keys. Here each client's name is bound to the key that is registered for it (NAME.pub), or if no keys are
registered to the key it first used, whichever node it connects as; and one key has one name.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from turnout.data.federation import digest
from turnout.errors import UserError


def signed_text(run: str, challenge: str, name: str, data: str) -> bytes:
    """What a device signs: the server's challenge, its client's name, and the description of its data."""
    return f"turnout {run} {challenge} {digest(data)} {name}".encode()


def sign(private_key_file: Path, text: bytes) -> tuple[str, str]:
    """The public key of a private one as text, and the signature of a text."""
    key = private_key(private_key_file)
    return key_text(key.public_key()), base64.b64encode(key.sign(text, ec.ECDSA(hashes.SHA256()))).decode()


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key from its file."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except ValueError:
        key = None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key
    raise UserError(
        f"{path} is not a private key of an elliptic curve: ssh-keygen -t ecdsa -b 384 -N '' -f KEY makes one"
    )


def public_key(text: bytes) -> ec.EllipticCurvePublicKey | None:
    """A public key from its text; None if it is not a key of an elliptic curve."""
    try:
        key = serialization.load_ssh_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePublicKey) else None


def key_text(key: ec.EllipticCurvePublicKey | None) -> str:
    """The canonical text of a key: in OpenSSH form without a comment; empty without a key."""
    if key is None:
        return ""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def verified(public: str, signature: str, text: bytes) -> bool:
    """Whether the private key of this public one has signed the text."""
    key = public_key(public.encode())
    if key is None or key_text(key) != public:  # another spelling of a key would count as another key
        return False
    try:
        key.verify(base64.b64decode(signature), text, ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature):
        return False
    return True


@dataclass(frozen=True)
class RegisteredKeys:
    """Public keys by client name: the files NAME.pub of a `folder`. If there are none, devices need no key."""

    folder: Path | None = None

    def by_name(self) -> dict[str, str]:
        paths = sorted(self.folder.glob("*.pub")) if self.folder is not None else []
        return {path.stem.removesuffix(".key"): key_text(public_key(path.read_bytes())) for path in paths}

    def wrong(self, name: str, key: str, signature: str, text: bytes) -> str | None:
        """Why a device is not the client that it claims to be; None if it is, or if nothing is registered."""
        registered = self.by_name()
        fix = f"put its public key into the server's folder {self.folder and self.folder.name} as {name}.pub"
        if not key:
            return (
                f"it has no key, and keys are registered here: give its file a key, and {fix}" if registered else None
            )
        if not verified(key, signature, text):
            return "its signature is not that of its key"
        names = [n for n, known in registered.items() if known == key]
        if not registered or names == [name]:
            return None
        if not names:
            return f"its key is not registered: {fix}"
        if len(names) > 1:
            return f"its key is registered for {', '.join(map(repr, names))}: make a key for each client"
        return f"its key is registered for {names[0]!r}, and it calls itself {name!r}"
