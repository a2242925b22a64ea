"""Images in registries, by the client library python-dxf: over HTTPS, or plain HTTP for a registry on this machine.

User names and passwords come from `docker login`, in config.json. A broken connection is resumed at its last byte.
Every part is checked by digest, and unpacked while it comes.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contrib.common.http_clients import Retries, retry_after
from contrib.workspaces.images.manifest import MAX_DOCUMENT, Descriptor, check_digest, find_manifest, verify
from contrib.workspaces.images.reference import Reference
from contrib.workspaces.images.unpack import EXTRA
from forge_env.core.errors import UserError

try:
    import requests
    import www_authenticate
    from dxf import DXF
    from dxf.exceptions import DXFUnauthorizedError
except ImportError as error:
    raise UserError(
        f"images of registries need {EXTRA}, which is not installed ({error}): pip install {EXTRA}"
    ) from None

_ACCEPTED = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_BLOCK = 2**18
_SILENCE_S = 30.0
"""Time for a connection, and for the next bytes of an answer."""
_TRIES, _PROGRESS = 6, 2**20
"""Failures in a row, with less than that many bytes between them, until it is given up."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_LATER = (408, 425, 429, 500, 502, 503, 504)


class _Client(DXF):
    """The library's client, with parts of blobs, and with passwords over the loopback, too."""

    def open(self, path: str, **headers: str) -> requests.Response:
        headers = {"Accept-Encoding": "identity", **headers}
        response: requests.Response = self._request("get", path, headers=headers, stream=True)
        return response

    def log_in(self, basic: str) -> None:
        self._headers = {"Authorization": f"Basic {basic}"}

    @property
    def session(self) -> requests.Session:
        session: requests.Session = self._sessions[0]
        return session


class RegistryImage:
    def __init__(self, client: _Client, reference: Reference) -> None:
        self.what = f"the image {reference}"
        self.names: Sequence[str] = (str(reference),)
        self._client, self._reference = client, reference

        def fetch(descriptor: Descriptor) -> bytes:
            return self._document(f"manifests/{descriptor.digest}", descriptor.digest)

        first = self._document(f"manifests/{reference.digest or reference.tag}", reference.digest)
        manifest = find_manifest(first, fetch, self.what)
        self.config = self._document(f"blobs/{manifest.config.digest}", manifest.config.digest)
        self.layers: Sequence[Descriptor] = manifest.layers

    def blob(self, layer: Descriptor) -> Iterator[bytes]:
        what = f"the layer {layer.digest[:19]} of {self.what}"
        return verify(self._blocks(layer, what), layer.digest, what)

    def _blocks(self, layer: Descriptor, what: str) -> Iterator[bytes]:
        patience, done, last_failure = _Patience(self._reference), 0, 0
        while done < layer.size:
            try:
                for block in self._part(layer, done):
                    done += len(block)
                    if done > layer.size:
                        raise UserError(f"{what} is broken: it has more than the {layer.size} bytes of its manifest")
                    yield block
                if done < layer.size:
                    raise requests.ConnectionError("the connection ended early")
            except requests.RequestException as error:
                if done - last_failure >= _PROGRESS:
                    patience.begin_anew()
                last_failure = done
                patience.wait(error, what)

    def _part(self, layer: Descriptor, start: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        with _errors(self._reference, self.what), self._client.open(f"blobs/{layer.digest}", **headers) as response:
            skip = start if response.status_code != requests.codes.partial_content else 0
            for block in response.iter_content(_BLOCK):
                yield from (block[skip:],) if skip < len(block) else ()
                skip = max(0, skip - len(block))

    def _document(self, path: str, digest: str) -> bytes:
        patience = _Patience(self._reference)
        while True:
            try:
                with _errors(self._reference, self.what), self._client.open(path, Accept=_ACCEPTED) as response:
                    data = _read_at_most(response, self.what)
                    name = digest or response.headers.get("Docker-Content-Digest", "")
                return check_digest(data, name, self.what) if name.startswith("sha256:") else data
            except requests.RequestException as error:
                patience.wait(error, self.what)


@contextmanager
def registry_image(reference: Reference) -> Iterator[RegistryImage]:
    """Find an image in its registry, and keep the connections to it for the block."""

    def authenticate(client: Any, response: requests.Response) -> None:
        _authenticate(client, response, reference)

    client = _Client(
        reference.host,
        reference.repository,
        auth=authenticate,
        insecure=reference.is_loopback,
        timeout=_SILENCE_S,
    )
    with client:
        if reference.is_loopback:
            client.session.trust_env = False  # no proxy leads to this machine itself
        yield RegistryImage(client, reference)


def _authenticate(client: _Client, response: requests.Response, reference: Reference) -> None:
    """Answer a registry that asks who it is: with the password itself, or with a token that it buys."""
    challenge = www_authenticate.parse(response.headers.get("WWW-Authenticate", ""))
    credentials = _credentials(reference)
    if "bearer" in challenge:
        realm = challenge["bearer"].get("realm", "")
        place = urlsplit(realm)
        is_here = reference.is_loopback and place.hostname in ("127.0.0.1", "localhost", "::1")
        if place.scheme != "https" and not (place.scheme == "http" and is_here):
            raise UserError(
                f"the registry {reference.registry} sends for a token to {realm[:100]!r}, which is not HTTPS"
            )
        scope = {name: challenge["bearer"][name] for name in ("service", "scope") if name in challenge["bearer"]}
        scope.setdefault("scope", f"repository:{reference.repository}:pull")
        headers = {"Authorization": f"Basic {credentials}"} if credentials else {}
        with client.session.get(realm, params=scope, headers=headers, timeout=_SILENCE_S, stream=True) as answer:
            if answer.status_code in (401, 403):
                raise DXFUnauthorizedError
            answer.raise_for_status()
            data = _read_at_most(answer, f"the token of {reference.registry}")
        try:
            content = json.loads(data)
            client.token = str(content.get("access_token") or content["token"])
        except (ValueError, KeyError, AttributeError, RecursionError):
            raise UserError(f"the registry {reference.registry} sent no token") from None
    elif "basic" in challenge and credentials:
        client.log_in(credentials)


def _credentials(reference: Reference) -> str:
    """Return "USER:PASSWORD" in base64, as `docker login` has left it; "" for none."""
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker").expanduser() / "config.json"
    names = {reference.registry, f"https://{reference.registry}"}
    if reference.host != reference.registry:
        names |= {"https://index.docker.io/v1/", "index.docker.io"}
    try:
        auths = json.loads(path.read_text()).get("auths", {})
        entries = [str(auths[name].get("auth", "")) for name in sorted(names & auths.keys())]
        if entries and entries[0] and b":" not in base64.b64decode(entries[0], validate=True):
            raise ValueError("an entry is no USER:PASSWORD")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError, AttributeError, binascii.Error) as error:
        raise UserError(f"the passwords of {path} cannot be read: {error}") from None
    return entries[0] if entries else ""


class _Patience:
    """Waits before another try, and gives up after too many."""

    def __init__(self, reference: Reference) -> None:
        self._registry = reference.registry
        self.begin_anew()

    def begin_anew(self) -> None:
        self._retries = Retries(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _TRIES - 1)

    def wait(self, error: requests.RequestException, what: str) -> None:
        """Raises UserError after too many failures, and at once if the registry has refused."""
        response = error.response
        if response is not None and response.status_code not in _LATER:
            raise UserError(f"{what}: the registry {self._registry} answers {_status(response)}") from None
        pause = self._retries.pause(retry_after(response.headers) if response is not None else 0.0)
        if pause is None:
            reason = _status(response) if response is not None else _reason(error)
            raise UserError(
                f"{what} cannot be had from the registry {self._registry} ({reason}, {_TRIES} tries): check its name, "
                "the network and HTTPS_PROXY, and pull again; whole layers are kept"
            ) from None
        time.sleep(min(pause, _LONGEST_PAUSE_S))


@contextmanager
def _errors(reference: Reference, what: str) -> Iterator[None]:
    """Raises UserError for an error that another try does not mend."""
    try:
        yield
    except DXFUnauthorizedError:
        raise UserError(
            f"the registry {reference.registry} does not give {what} to this user: it is not there, or it needs "
            f"`docker login {reference.registry}`"
        ) from None
    except requests.HTTPError as error:
        if error.response is not None and error.response.status_code == requests.codes.not_found:
            raise UserError(f"{what} is not in the registry {reference.registry}") from None
        raise


def _status(response: requests.Response) -> str:
    return f"{response.status_code} {response.reason}"[:100]


def _reason(error: BaseException) -> str:
    """Return the innermost reason of a failure of the network: the outer ones have pages of addresses."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), BaseException):
        error = inner
    text = " ".join(str(error).split())
    return text.rpartition(": ")[2][:200] or type(error).__name__


def _read_at_most(response: requests.Response, what: str) -> bytes:
    data = b""
    for block in response.iter_content(_BLOCK):
        data += block
        if len(data) > MAX_DOCUMENT:
            raise UserError(f"{what} is broken: a document of it has more than {MAX_DOCUMENT} bytes")
    return data
