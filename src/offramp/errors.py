"""Every error that a user can cause, under one parent."""


class OfframpError(Exception):
    """Parent of all errors that a user of `offramp` can cause."""


class LedgerError(OfframpError, ValueError):
    """Logits, labels or costs that are impossible, or do not fit together."""


class ConfigError(OfframpError, ValueError):
    """A setting with an impossible value, or an unknown name."""


class BudgetError(OfframpError, ValueError):
    """A budget or an accuracy that no operating point of the policy reaches."""


class GuaranteeError(OfframpError, ValueError):
    """A guarantee that no operating point can be given; the message says what could be."""


class SplitError(OfframpError, ValueError):
    """A split used for what it is not meant for, or two splits that share samples."""


class OriginError(OfframpError, ValueError):
    """A ledger of one network used with a policy that was fitted on another one."""


class NotFittedError(OfframpError, RuntimeError):
    """Something was asked of a part that has to be fitted, tuned or pointed first."""


class NetworkError(OfframpError, ValueError):
    """Stages, heads, exits or inputs that do not fit together."""


class DataError(OfframpError, ValueError):
    """A data set that is not in its place, or not in the shape it should have."""


class CorruptImageError(DataError):
    """An image that cannot be decoded; the message names it."""


class FileFormatError(OfframpError, ValueError):
    """A file that is truncated, foreign, of an unknown version, or names unknown code."""


class MemoryLimitError(OfframpError, MemoryError):
    """A batch that does not fit into memory; the message suggests a size."""


class MissingExtraError(OfframpError, ImportError):
    """An optional dependency is not installed; the message names the pip command."""


class PluginError(OfframpError, ImportError):
    """A method of an installed package that cannot be loaded; the message names the package."""


class ProcessError(OfframpError, RuntimeError):
    """Another one of the processes that share a task has failed or died."""


class PromiseError(OfframpError, AssertionError):
    """An answer, a scorer or a threshold method that breaks promises of the library.

    Attributes:
        promises: The broken ones.
    """

    def __init__(self, message: str, promises: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.promises = promises


class LedgerWarning(UserWarning):
    """Logits or labels that are possible, and look like a mistake."""


class OriginWarning(UserWarning):
    """A ledger does not say which network made it, so mixing cannot be noticed."""


class CostWarning(UserWarning):
    """Deciding when to stop takes longer than what stopping can save."""


class FewSamplesWarning(UserWarning):
    """A scorer is fitted to fewer samples than it needs, and is likely to overfit."""


class GuaranteeWarning(UserWarning):
    """A certified operating point was left for one without a guarantee."""


class WeakExitWarning(UserWarning):
    """An exit is far below what a simple model makes of the same features."""
