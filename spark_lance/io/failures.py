"""Errors of store drivers: which ones are transient, and the messages for the others.

The drivers (s3fs, gcsfs, adlfs, ...) raise errors of their own, of botocore, of aiohttp and of the cloud
vendors' packages. These packages are optional, so this module cannot import them. It recognises an error by
the service's error code, by its HTTP status, or by the name of its class, with one literal table for each.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from spark_lance.errors import LanceError, StoreAccessError, StoreError
from spark_lance.redaction import redacted


class Kind(enum.Enum):
    """The meaning of a failure."""

    THROTTLED = "the store is overloaded or limits the rate of requests: try again later or with fewer tasks"
    SERVER = "the store failed: try again later"
    CONNECTION = "the connection failed: check the network and the endpoint, then try again"
    CERTIFICATE = (
        "the store's certificate is not trusted: set AWS_CA_BUNDLE (S3) or SSL_CERT_FILE to a file with the "
        "certificates of its authority"
    )
    ACCESS = "the store does not accept the credentials, or they do not allow this"
    EXPIRED = "the credentials have expired: get new ones and try again"
    NO_CREDENTIALS = "no usable credentials were found: give them as storage options or in the environment"
    NO_BUCKET = "there is no such bucket or container"
    CLOCK = "the store does not accept the time of this machine: set its clock"
    REGION = "the bucket is in another region: give the storage option region"
    TAKEN = "the object exists already"
    BUSY = "another request to the same object is under way"
    REJECTED = "the store rejects the request, as it does for expired credentials or a wrong region"
    RANGE = "the object ends before the requested bytes: it is damaged, or was replaced"
    UNSUPPORTED = "the store does not know this request"


TRANSIENT = frozenset({Kind.THROTTLED, Kind.SERVER, Kind.CONNECTION, Kind.BUSY})
_ACCESS = frozenset({Kind.ACCESS, Kind.EXPIRED, Kind.NO_CREDENTIALS, Kind.CLOCK})

# Error codes of S3, DynamoDB, GCS and Azure. Numbers are HTTP statuses.
CODES: Mapping[str | int, Kind] = MappingProxyType(
    {
        "SlowDown": Kind.THROTTLED,
        "ServiceUnavailable": Kind.THROTTLED,
        "Throttling": Kind.THROTTLED,
        "ThrottlingException": Kind.THROTTLED,
        "RequestLimitExceeded": Kind.THROTTLED,
        "TooManyRequests": Kind.THROTTLED,
        "TooManyRequestsException": Kind.THROTTLED,
        "ProvisionedThroughputExceededException": Kind.THROTTLED,
        "ServerBusy": Kind.THROTTLED,
        "InternalError": Kind.SERVER,
        "InternalServerError": Kind.SERVER,
        "OperationTimedOut": Kind.SERVER,
        "RequestTimeout": Kind.CONNECTION,
        "AccessDenied": Kind.ACCESS,
        "AccessDeniedException": Kind.ACCESS,
        "InvalidAccessKeyId": Kind.ACCESS,
        "InvalidToken": Kind.ACCESS,
        "SignatureDoesNotMatch": Kind.ACCESS,
        "RequestTimeTooSkewed": Kind.CLOCK,
        "UnrecognizedClientException": Kind.ACCESS,
        "InvalidClientTokenId": Kind.ACCESS,
        "AuthenticationFailed": Kind.ACCESS,
        "AuthorizationFailure": Kind.ACCESS,
        "AuthorizationPermissionMismatch": Kind.ACCESS,
        "NoAuthenticationInformation": Kind.NO_CREDENTIALS,
        "ExpiredToken": Kind.EXPIRED,
        "ExpiredTokenException": Kind.EXPIRED,
        "TokenRefreshRequired": Kind.EXPIRED,
        "NoSuchBucket": Kind.NO_BUCKET,
        "ContainerNotFound": Kind.NO_BUCKET,
        "PermanentRedirect": Kind.REGION,
        "AuthorizationHeaderMalformed": Kind.REGION,
        "IllegalLocationConstraintException": Kind.REGION,
        "PreconditionFailed": Kind.TAKEN,
        "ConditionNotMet": Kind.TAKEN,
        "BlobAlreadyExists": Kind.TAKEN,
        "ConditionalRequestConflict": Kind.BUSY,
        "OperationAborted": Kind.BUSY,
        "InvalidRange": Kind.RANGE,
        "NotImplemented": Kind.UNSUPPORTED,
        "BadRequest": Kind.REJECTED,
        301: Kind.REGION,
        400: Kind.REJECTED,
        401: Kind.ACCESS,
        403: Kind.ACCESS,
        408: Kind.CONNECTION,
        412: Kind.TAKEN,
        416: Kind.RANGE,
        429: Kind.THROTTLED,
        500: Kind.SERVER,
        501: Kind.UNSUPPORTED,
        502: Kind.SERVER,
        503: Kind.THROTTLED,
        504: Kind.SERVER,
    }
)

# Names of classes, or of their bases: botocore, aiohttp, requests, google-auth, azure-core, asyncio, Python.
CLASSES: Mapping[str, Kind] = MappingProxyType(
    {
        "NoCredentialsError": Kind.NO_CREDENTIALS,
        "PartialCredentialsError": Kind.NO_CREDENTIALS,
        "CredentialRetrievalError": Kind.NO_CREDENTIALS,
        "ProfileNotFound": Kind.NO_CREDENTIALS,
        "DefaultCredentialsError": Kind.NO_CREDENTIALS,
        "ClientAuthenticationError": Kind.ACCESS,
        "TokenRetrievalError": Kind.EXPIRED,
        "UnauthorizedSSOTokenError": Kind.EXPIRED,
        "SSOTokenLoadError": Kind.EXPIRED,
        "RefreshError": Kind.EXPIRED,
        "NoRegionError": Kind.REGION,
        "ResourceExistsError": Kind.TAKEN,
        "CertificateError": Kind.CERTIFICATE,
        "SSLCertVerificationError": Kind.CERTIFICATE,
        "ClientConnectorCertificateError": Kind.CERTIFICATE,
        "SSLError": Kind.CONNECTION,
        "HTTPClientError": Kind.CONNECTION,
        "ResponseStreamingError": Kind.CONNECTION,
        "IncompleteReadError": Kind.CONNECTION,
        "IncompleteRead": Kind.CONNECTION,
        "ResponseParserError": Kind.CONNECTION,
        "ClientConnectionError": Kind.CONNECTION,
        "ClientPayloadError": Kind.CONNECTION,
        "ServiceRequestError": Kind.CONNECTION,
        "ServiceResponseError": Kind.CONNECTION,
        "RequestException": Kind.CONNECTION,
        "ChecksumError": Kind.CONNECTION,
        "ConnectionError": Kind.CONNECTION,
        "TimeoutError": Kind.CONNECTION,
        "gaierror": Kind.CONNECTION,
    }
)

_ERRNOS: Mapping[int, Kind] = MappingProxyType(
    {
        errno.EBUSY: Kind.THROTTLED,
        errno.ECONNRESET: Kind.CONNECTION,
        errno.EPIPE: Kind.CONNECTION,
        errno.ETIMEDOUT: Kind.CONNECTION,
    }
)
# Errors of local file systems, and the remedy for each. The system's own text follows in brackets.
LOCAL: Mapping[int, str] = MappingProxyType(
    {
        errno.ENOSPC: "the disk is full: free some space, then run it again",
        errno.EFBIG: "the file is larger than a limit of this process or file system allows",
        errno.EDQUOT: "the quota of this user is used up: free some space, then run it again",
        errno.EROFS: "the file system can only be read: mount it for writing, or choose another place",
        errno.EACCES: "this user may not do that: change the owner or the permissions of the path",
        errno.EPERM: "this user may not do that: change the owner or the permissions of the path",
        errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
        errno.EISDIR: "it is a folder, not a file",
        errno.ENAMETOOLONG: "the path is too long for this file system",
        errno.EMFILE: "this process has too many open files: raise its limit (ulimit -n)",
        errno.ENFILE: "this machine has too many open files",
        errno.EIO: "the disk failed to read or write: look at the system's log",
        errno.ESTALE: "the connection to the network file system is lost: mount it again",
        errno.ENOTCONN: "the connection to the network file system is lost: mount it again",
        errno.EHOSTDOWN: "the connection to the network file system is lost: mount it again",
        errno.ETIMEDOUT: "the connection to the network file system is lost: mount it again",
    }
)
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_MAX_CAUSES = 8


def classify_failure(error: BaseException) -> Kind | None:
    """Return the meaning of a driver's failure; None if this module does not recognise it."""
    if isinstance(error, StoreError):
        return None
    for cause in _causes(error):
        for code in _codes(cause):
            if (kind := CODES.get(code)) is not None:
                return kind
        # botocore quotes the SSLError in its message.
        if _UNTRUSTED in str(cause):
            return Kind.CERTIFICATE
        for name in (base.__name__ for base in type(cause).__mro__):
            if (kind := CLASSES.get(name)) is not None:
                return kind
    # gcsfs reports this only in its message.
    if isinstance(error, PermissionError) or str(error).startswith("Forbidden:"):
        return Kind.ACCESS
    number = error.errno if isinstance(error, OSError) else None
    return _ERRNOS.get(number) if number is not None else None


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed if it is sent again."""
    return classify_failure(error) in TRANSIENT


def translated(error: Exception, doing: str, options: Mapping[str, Any]) -> Exception:
    """Return the error to raise in place of a driver's error, with secrets removed from its message.

    A missing object remains a `FileNotFoundError`. An existing object becomes a `FileExistsError`.

    Args:
        error: the driver's error.
        doing: the action that failed, with the path.
        options: the driver's options; some are secret.
    """
    kind = classify_failure(error)
    if isinstance(error, LanceError):
        return error
    if kind is Kind.TAKEN or isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, f"{doing}: it exists already")
    if isinstance(error, FileNotFoundError) and kind is not Kind.NO_BUCKET:
        return FileNotFoundError(errno.ENOENT, f"{doing}: it does not exist")
    message = " ".join(redacted(str(error), options).split())
    if not isinstance(error, OSError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = f"{doing}: {kind.value} ({message})" if kind else f"{doing}: {message}"
    return StoreAccessError(text) if kind in _ACCESS else StoreError(text)


def local_failure(error: OSError, doing: str) -> OSError:
    """Return the error to raise in place of a local file system's error. It keeps the `errno`.

    Errors that callers handle are returned unchanged: a missing file, or one that exists already.

    Args:
        error: Python's error.
        doing: the action that failed, with the path.
    """
    advice = LOCAL.get(error.errno or 0)
    if advice is None or isinstance(error, (LanceError, FileNotFoundError, FileExistsError)):
        return error
    text = f"{doing}: {advice} ({error.strerror})"
    failure = StoreAccessError(text) if error.errno in _FORBIDDEN else StoreError(text)
    failure.errno = error.errno
    return failure


def safe_cause(error: Exception, options: Mapping[str, Any]) -> Exception | None:
    """Return the error if it can be shown as a cause; None if it or one of its causes quotes a secret."""
    texts = [str(cause) for cause in _causes(error)]
    return error if all(redacted(text, options) == text for text in texts) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _codes(error: BaseException) -> Iterator[str | int]:
    """Yield the service's error code and the HTTP status of an error, the more specific one first."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        yield from _normalize_code(response.get("Error", {}).get("Code"))
        yield from _normalize_code(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    for attribute in ("error_code", "code", "status_code", "status"):
        yield from _normalize_code(getattr(error, attribute, None))


def _normalize_code(code: Any) -> Iterator[str | int]:
    value = getattr(code, "value", code)
    if isinstance(value, int):
        yield value
    elif isinstance(value, str):
        yield int(value) if value.isascii() and value.isdigit() else value
