"""Cryptographic primitives of ``cryptography`` and pycryptodome: keys, seals, shares, streams."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.errors import MissingExtraError
from fedcraft.registry import optional

try:
    from cryptography.exceptions import InvalidTag as InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise MissingExtraError("cryptography", "privacy") from error

Bytes = NDArray[np.uint8]
KEY = 32  # bytes of a derived key
SECRET = 16  # bytes of a secret that is shared: 128 bits, as strong as X25519
_INDEX = 4  # bytes of a share's number
SHARE = _INDEX + SECRET
_CHUNK = 1 << 22  # zeros to encrypt at a time


def derive(secret: bytes, purpose: str, context: bytes = b"") -> bytes:
    """Return a key for one purpose (HKDF with SHA-256)."""
    info = purpose.encode() + b"\0" + context
    return HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=info).derive(secret)


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts, each with its length, so that no two lists of parts agree."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def private_key(seed: bytes) -> X25519PrivateKey:
    """Return the X25519 key that a seed of 16 bytes or more determines."""
    return X25519PrivateKey.from_private_bytes(derive(seed, "x25519"))


def public_key(seed: bytes) -> bytes:
    """Return the public half of a key."""
    return private_key(seed).public_key().public_bytes_raw()


def agree(seed: bytes, other: bytes, psk: bytes = b"") -> bytes:
    """Return the secret of two keys, bound to a pre-shared key if there is one."""
    shared = private_key(seed).exchange(X25519PublicKey.from_public_bytes(other))
    return derive(shared + psk, "agreement")


def is_usable(public: bytes) -> bool:
    """Tell whether a public key gives a secret: keys of low order do not, whoever agrees with them.

    A single such key would stop every client of the round.
    """
    try:
        agree(bytes(SECRET), public)
    except ValueError:
        return False
    return True


def seal(key: bytes, content: bytes) -> bytes:
    """Encrypt and authenticate; a key may be used once."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, None)


def unseal(key: bytes, content: bytes) -> bytes:
    """Undo :func:`seal`; raises ``InvalidTag`` if the content was changed."""
    return ChaCha20Poly1305(key).decrypt(bytes(12), content, None)


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return Shamir shares of 16 bytes: ``threshold`` recover them and fewer reveal nothing.

    flwr's wrapper around the same scheme pads a secret to two blocks and starts a thread for each,
    which more than doubles the time.
    """
    shares = _shamir().split(threshold, count, secret)
    return [index.to_bytes(_INDEX, "little") + content for index, content in shares]


def recover(shares: Sequence[bytes]) -> bytes:
    """Return the secret of enough shares."""
    pairs = [(int.from_bytes(share[:_INDEX], "little"), share[_INDEX:]) for share in shares]
    return bytes(_shamir().combine(pairs))


def _shamir() -> Any:
    return optional("Crypto.Protocol.SecretSharing", "privacy", "pycryptodome").Shamir


class Keystream:
    """AES-256 in counter mode as a stream of uniform bytes.

    flwr's generator of masks is not used: it reduces every seed to 32 bits.
    """

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def read(self, size: int) -> Bytes:
        """Return the next bytes."""
        found = bytearray(size + 15)  # the cipher asks for a block's room
        zeros = bytes(min(size, _CHUNK))
        for start in range(0, size, _CHUNK):
            part = zeros[: size - start]
            self._stream.update_into(part, memoryview(found)[start : start + len(part) + 15])
        return np.frombuffer(found, np.uint8, count=size)


def as_array(content: bytes) -> Bytes:
    """Return bytes as an array, the form of every field of a message."""
    return np.frombuffer(content, dtype=np.uint8)
