"""Byte-level tokens: subwords over the 256 bytes of UTF-8, each written as a printable character.

Radford et al. 2019 (GPT-2), section 2.2.
"""

from __future__ import annotations

from functools import cache


@cache
def byte_characters() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for.

    Printable bytes of Latin-1 stand for themselves. The others, in their order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def token_bytes(token: str) -> bytes | None:
    """Return the bytes of a byte-level token, or None if it is not one.

    >>> token_bytes("Ġlow"), token_bytes("低")
    (b' low', None)
    """
    table = byte_characters()
    return bytes(table[character] for character in token) if all(character in table for character in token) else None


def readable(token: bytes) -> str:
    """Return the text of a token. Parts of a character are shown as bytes.

    >>> readable(b" low"), readable("低".encode()[:2])
    (' low', '<0xE4><0xBD>')
    """
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in token)
