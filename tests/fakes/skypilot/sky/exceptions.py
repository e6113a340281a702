class ClusterDoesNotExist(ValueError):
    pass


class NoCloudAccessError(Exception):
    pass


class ResourcesUnavailableError(Exception):
    failover_history: tuple[Exception, ...] = ()


class ResourcesTakenError(ResourcesUnavailableError):
    """In the real SDK the same class, with what each region said."""

    failover_history = (Exception("no capacity in this region"),)


ResourcesTakenError.__name__ = "ResourcesUnavailableError"
