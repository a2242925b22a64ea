"""Bodies of requests: bounded, and unpacked."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from contrib.common.http_server import RequestRefused, read_body, read_object


def deflated(data: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(wbits=bits)
    return packer.compress(data) + packer.flush()


async def body_of(data: bytes, encoding: str) -> bytes:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data}

    return await read_body({b"content-encoding": encoding.encode()}, receive, 1000)


async def test_packed_bodies_are_unpacked_within_the_bound() -> None:
    text = b'{"model": "m"}'
    packed = {"gzip": gzip.compress(text), "deflate": zlib.compress(text), "identity": text, "": text}
    assert {name: await body_of(data, name) for name, data in packed.items()} == dict.fromkeys(packed, text)
    assert await body_of(deflated(text, -15), "Deflate") == text, "without the frame, as some clients send it"
    assert await body_of(gzip.compress(text[:5]) + gzip.compress(text[5:]), "x-gzip") == text
    assert await body_of(gzip.compress(zlib.compress(text)), "deflate, gzip") == text
    assert len(await body_of(gzip.compress(bytes(1000)), "gzip")) == 1000
    wrong = [(gzip.compress(bytes(1001)), "gzip", 413), (zlib.compress(bytes(10**8)), "deflate", 413)]
    wrong += [(text, "gzip", 400), (gzip.compress(text)[:-9], "gzip", 400), (b"", "gzip", 200), (text, "br", 415)]
    for data, encoding, status in wrong:
        try:
            assert (await body_of(data, encoding), status) == (b"", 200)
        except RequestRefused as refusal:
            assert refusal.status == status


@pytest.mark.parametrize(
    ("body", "read"),
    [(b"", {}), (b'{"a": 1}', {"a": 1}), (b"[1]", "no JSON object"), (b"{", "no JSON, .* type is 'text/x': send one")],
)
async def test_an_object_is_read_whatever_type_it_is_said_to_have(body: bytes, read: Any) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    asked = read_object({b"content-type": b"text/x"}, receive, 1000)
    if isinstance(read, dict):
        assert await asked == read
    else:
        with pytest.raises(RequestRefused, match=read):
            await asked


async def test_half_a_body_is_refused() -> None:
    events = iter([{"type": "http.request", "body": b"{}", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(events)

    with pytest.raises(RequestRefused, match="was closed"):
        await read_object({}, receive, 1000)
