"""Files from their authors' addresses: whole and checked, or not there at all."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from localsgd.errors import UserError

Progress = Callable[[str, int, int], None]
"""Called with (file name, bytes received, bytes in all) while a file comes in."""

TIMEOUT_SECONDS = 10.0
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file on the web with its SHA-256 and length."""

    url: str
    sha256: str
    bytes: int

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@contextmanager
def downloaded(
    remote: Remote, folder: Path, advice: str, progress: Progress | None = None
) -> Generator[Path]:
    """Lend the file of `remote`, complete and checked, at a temporary place inside `folder`.

    Whoever wants to keep it renames it (same file system); what is left is removed. `folder` is
    made when the server has answered, so nothing is written if there is no network.

    Raises:
        UserError: unreachable, truncated, or not what its checksum says; ends with `advice`.
    """
    with closing(_opened(remote, advice)) as response, _workplace(folder) as workplace:
        path = workplace / remote.file
        try:
            received, digest = _copy(response, path, remote, progress)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"{remote.url}: the download broke off ({error}); {advice}") from None
        if received != remote.bytes:
            raise UserError(
                f"{remote.url}: expected {remote.bytes:,} bytes and received {received:,}, "
                f"nothing kept; try again, or {advice}"
            )
        if digest != remote.sha256:
            raise UserError(
                f"{remote.url}: expected sha256 {remote.sha256} and received {digest}, "
                f"nothing kept; try again, or {advice}"
            )
        yield path


def _opened(remote: Remote, advice: str) -> http.client.HTTPResponse:
    request = Request(remote.url, headers={"User-Agent": "localsgd"})
    try:
        return urlopen(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        reason = f"the server says {error.code} {error.reason}"
    except URLError as error:
        reason = str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
    raise UserError(f"no data here, and {remote.url} cannot be had ({reason}); {advice}")


@contextmanager
def _workplace(folder: Path) -> Generator[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = TemporaryDirectory(prefix=".download-", dir=folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror}); name another") from None
    with temporary as name:
        yield Path(name)


def _copy(
    response: IO[bytes], path: Path, remote: Remote, progress: Progress | None
) -> tuple[int, str]:
    received, digest = 0, hashlib.sha256()
    with path.open("wb") as file:
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            if progress is not None:
                progress(remote.file, received, remote.bytes)
            if received > remote.bytes:
                break
    return received, digest.hexdigest()
