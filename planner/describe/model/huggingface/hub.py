"""Hugging Face hub: models by name, from config.json only, with `huggingface_hub`'s settings."""

import functools
import json
import re
from pathlib import Path
from typing import Any

from planner.describe.files import MAX_FILE_BYTES
from planner.describe.model.huggingface.config import read_config
from planner.describe.model.model import Model
from planner.errors import CatalogueError, shorten

HUB = "Hugging Face hub"
"""Start of the source text of a model read from the hub."""

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-][\w./-]*))?", re.ASCII)
_TIMEOUT_S = 5.0
"""Timeout if HF_HUB_ETAG_TIMEOUT is unset; short, as cluster nodes rarely reach the hub."""
_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_BUSY = (429, 500, 502, 503, 504)
"""Status codes after which the library would retry for too long."""
_REMEDY = "name a model of the catalogue or the path of a config.json"


def parse_hub_name(name: str) -> tuple[str, str | None] | None:
    """Split org/name[@revision] into repository and revision; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None or match[1].endswith((".json", ".toml")):
        return None
    return match[1], match[2]


def is_from_hub(model: Model) -> bool:
    """True if a model can be loaded from the hub again by its name."""
    return model.source.startswith(HUB) and parse_hub_name(model.name) is not None


def load_from_hub(name: str) -> Model:
    """Load a model by its name on the hub; raises CatalogueError."""
    path = fetch_config(name)
    commit = path.parent.name
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CatalogueError(
            f"{_CONFIG} of {name} is not valid JSON ({shorten(str(error))}), on the hub or "
            f"in the cache; delete {path} to fetch it again"
        ) from None
    return read_config(path, name).replaced(source=f"{HUB}: {name}, commit {shorten(commit)}")


@functools.lru_cache(maxsize=64)
def fetch_config(name: str) -> Path:
    """Fetch a model's config.json into the cache, once per process; raises CatalogueError."""
    repository, revision = parse_hub_name(name) or (name, None)
    try:
        from huggingface_hub import constants, errors
    except ImportError:
        raise CatalogueError(
            f"model {shorten(name)!r} is not a local file, and loading it from the {HUB} needs "
            "huggingface_hub, which is not installed",
            f"; run pip install 'parallelism-planner[hub]', or {_REMEDY}",
        ) from None
    try:
        return _fetched(repository, _CONFIG, revision)
    except CatalogueError:
        raise
    except (
        errors.HfHubHTTPError,
        errors.EntryNotFoundError,
        errors.LocalEntryNotFoundError,
        errors.HFValidationError,
    ) as error:
        raise _explain_hub_error(error, name, repository, revision) from None
    except ValueError as error:
        raise CatalogueError(
            f"the cached files of {name} cannot be read ({shorten(str(error))}); delete its "
            f"folder in {constants.HF_HUB_CACHE} to fetch it again"
        ) from None
    except OSError as error:
        raise CatalogueError(
            f"cannot cache {_CONFIG} of {name}: {shorten(str(error))}; set HF_HOME to a folder "
            "that you may write to"
        ) from None


def _explain_hub_error(
    error: Exception, name: str, repository: str, revision: str | None
) -> CatalogueError:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        return _unreachable(name, error.__cause__ or error.__context__)
    if isinstance(error, errors.EntryNotFoundError):
        return _without_config(name, repository, revision)
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{repository}"
        return CatalogueError(
            f"{name} is gated on the {HUB}",
            f"; accept its licence on {page} and set HF_TOKEN to your token",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CatalogueError(
            f"{repository} has no revision {revision or 'main'} on the {HUB}; name a branch, a tag "
            "or a commit of it"
        )
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return CatalogueError(
            f"model {shorten(name)!r} is neither a local file nor a model on the {HUB} that you "
            "may read",
            f"; correct its spelling, set HF_TOKEN if it is private, or {_REMEDY}",
        )
    return _unreachable(name, error)


def _fetched(repository: str, file: str, revision: str | None) -> Path:
    """Fetch a small file of a repository, from the cache if the hub does not answer."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    has_own_timeout = constants.HF_HUB_ETAG_TIMEOUT != constants.DEFAULT_ETAG_TIMEOUT
    patience = float(constants.HF_HUB_ETAG_TIMEOUT) if has_own_timeout else _TIMEOUT_S
    fetched = functools.partial(
        hf_hub_download, repository, file, revision=revision, etag_timeout=patience
    )
    url, size = hf_hub_url(repository, file, revision=revision), 0
    try:
        # a short request first: without an answer the library would retry for minutes
        size = get_hf_file_metadata(url, timeout=patience).size or 0
    except errors.HfHubHTTPError as error:
        # a refused file may be in the cache; if not, the library explains the refusal
        if error.response.status_code in _BUSY:
            return Path(fetched(local_files_only=True))
    except Exception:
        # no network, no answer in time, or offline; the error's class depends on the library's
        # HTTP client, which changes with its version
        return Path(fetched(local_files_only=True))
    if size > MAX_FILE_BYTES:
        raise CatalogueError(
            f"{file} of {repository} has {size / 1e6:.0f} MB, too large for a configuration; "
            f"{_REMEDY}"
        )
    return Path(fetched())


def _without_config(name: str, repository: str, revision: str | None) -> CatalogueError:
    from huggingface_hub import errors

    try:
        fields: Any = json.loads(_fetched(repository, _ADAPTER, revision).read_bytes())
        base, rank = shorten(str(fields["base_model_name_or_path"])), int(fields["r"])
    except (errors.EntryNotFoundError, errors.HfHubHTTPError):
        return CatalogueError(
            f"{name} has no {_CONFIG} on the {HUB} (GGUF-only repositories have none); name its "
            f"base model, or {_REMEDY}"
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return CatalogueError(
            f"{name} is an adapter without a readable {_ADAPTER}, not a model; name its base model"
        )
    return CatalogueError(
        f"{name} is an adapter of rank {rank} for {base}, not a model; name {base} and give the "
        f"LoRA rank {rank}"
    )


def _unreachable(name: str, cause: BaseException | None) -> CatalogueError:
    """Create the error for a name that is not in the cache and could not be looked up."""
    from huggingface_hub import constants

    why, remedy = f"{constants.ENDPOINT} does not answer", "check the network and HF_ENDPOINT"
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if constants.HF_HUB_OFFLINE:
        why, remedy = "the hub is not asked", "HF_HUB_OFFLINE is set: fetch it once elsewhere"
    elif status:
        why, remedy = f"{constants.ENDPOINT} answers {status}", "check HF_TOKEN and HF_ENDPOINT"
    return CatalogueError(
        f"model {shorten(name)!r} is neither a local file nor in the cache of the {HUB}, and {why}",
        f"; {remedy}, or {_REMEDY}",
    )
