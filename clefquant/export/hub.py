"""The Hub calls that publishing needs, with failures said in one sentence and the token kept out of them."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.errors import ClefquantError, InputError, PrerequisiteError
from clefquant.progress import Task
from clefquant.release.artefact import sha256_file


class Remote(NamedTuple):
    """A file on the Hub. ``sha256``: of a large file; ``blob``: git's sha1 of a small one."""

    size: int
    sha256: str | None
    blob: str


class Hub:
    """One repository on the Hub at ``HF_ENDPOINT`` with the token of the usual places.

    ``writes``: InputError when there is no token. Reading alone goes on without one, and sees what everybody sees.
    """

    def __init__(self, repo: str, *, writes: bool) -> None:
        from huggingface_hub import HfApi, constants, get_token

        self.repo, self._token = repo, get_token()
        self.endpoint = str(constants.ENDPOINT)
        self._api: Any = HfApi(endpoint=self.endpoint, token=self._token or False)
        if writes and self._token is None:
            raise InputError(
                "there is no Hub token: log in with `hf auth login` or set HF_TOKEN (write access is needed)."
            )

    @property
    def url(self) -> str:
        """The repository's page."""
        return f"{self.endpoint}/{self.repo}"

    def files(self) -> dict[str, Remote] | None:
        """Files of the main branch; None when the repository does not exist (or is not for us to see)."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._said("reading the repository"):
            try:
                tree = list(self._api.list_repo_tree(self.repo, recursive=True))
            except RepositoryNotFoundError as error:
                # without a token the Hub answers 401 for what does not exist, too
                if error.response.status_code == 401 and self._token is not None:
                    raise
                return None
        return {
            item.path: Remote(item.size, item.lfs.sha256 if item.lfs else None, item.blob_id)
            for item in tree
            if hasattr(item, "blob_id")
        }

    def create(self, private: bool) -> None:
        """Make the repository unless it exists."""
        with self._said("creating the repository"):
            self._api.create_repo(self.repo, private=private, exist_ok=True)

    def tags(self) -> dict[str, str]:
        """Tag to commit."""
        with self._said("reading the tags"):
            return {tag.name: tag.target_commit for tag in self._api.list_repo_refs(self.repo).tags}

    def head(self) -> str:
        """The last commit of the main branch."""
        with self._said("reading the repository"):
            return str(self._api.model_info(self.repo).sha)

    def read(self, name: str) -> bytes:
        """Contents of one small file."""
        with self._said(f"reading {name}"), tempfile.TemporaryDirectory() as folder:
            return Path(self._api.hf_hub_download(self.repo, name, local_dir=folder)).read_bytes()

    def upload(self, files: Sequence[tuple[str, Path]], delete: Sequence[str], message: str, task: Task) -> str:
        """Send files in their order, then commit them together; returns the commit.

        Large files go one by one before the commit. What the Hub already holds is recognized by its hash and not sent
        again, so an upload that was cut continues with the first file that had not arrived.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = []
        with self._said("uploading"):
            for name, path in files:
                task.note(name)
                addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path))
                self._api.preupload_lfs_files(self.repo, additions=[addition], num_threads=1)
                operations.append(addition)
                task.advance(path.stat().st_size)
            operations += [CommitOperationDelete(path_in_repo=name) for name in delete]
            return str(self._api.create_commit(self.repo, operations, commit_message=message).oid)

    def tag(self, name: str, commit: str) -> None:
        """Tag a commit."""
        with self._said("tagging"):
            self._api.create_tag(self.repo, tag=name, revision=commit)

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        import httpx
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            yield
        except (HfHubHTTPError, httpx.HTTPError, ConnectionError, LocalEntryNotFoundError, RuntimeError) as error:
            # the library wraps what stopped a large file in a RuntimeError
            cause = error.__cause__ if type(error) is RuntimeError else error
            if isinstance(cause, HfHubHTTPError):
                text = str(cause.server_message or cause)
                raise self._failure(doing, cause.response.status_code, text) from None
            if not isinstance(cause, httpx.HTTPError | ConnectionError | LocalEntryNotFoundError):
                raise
            message = f"{doing}: {self.endpoint} did not answer ({type(cause).__name__}). "
            raise PrerequisiteError(message + "Run the same command again to continue.") from None

    def _failure(self, doing: str, status: int, text: str) -> ClefquantError:
        text = text.replace(self._token or "\0", "…").strip().splitlines()[0] if text.strip() else ""
        reasons = {
            401: "the token is not valid; log in again with `hf auth login`",
            403: f"the token may not write to {self.repo}; use one with write access to that organization",
            404: f"there is no {self.repo}, or this token may not see it",
            409: "somebody else changed the repository at the same time; look at it, then run the same command again",
            429: "too many requests; wait, then run the same command again to continue",
        }
        again = "the Hub failed; run the same command again to continue"
        reason = reasons.get(status, again if status >= 500 else "the Hub refused")
        make = PrerequisiteError if status in (409, 429) or status >= 500 else InputError
        return make(f"{doing}: {reason} (HTTP {status}{f', {text}' if text else ''}).")


def same(path: Path, remote: Remote | None, sha256: str | None) -> bool:
    """Whether the Hub holds these bytes. ``sha256``: of the file, where it is known."""
    if remote is None or path.stat().st_size != remote.size:
        return False
    if remote.sha256 is not None:
        return (sha256 or sha256_file(path)) == remote.sha256
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == remote.blob
