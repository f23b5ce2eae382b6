"""Kubernetes: the API server's pod list and watch as a feed of engines. `core.pods` and `core.watch` decide."""

from __future__ import annotations

import os

from enginehouse.adapters.kube.access import Access, KubeConfigError
from enginehouse.adapters.kube.api import KubeApi
from enginehouse.adapters.kube.feed import PodFeed
from enginehouse.adapters.kube.locate import find_access
from enginehouse.adapters.kube.settings import KubeSettings

__all__ = ["KubeApi", "KubeConfigError", "KubeSettings", "PodFeed", "open_api"]


def open_api(settings: KubeSettings) -> KubeApi:
    """Find the API server and our credentials; connects nowhere. Raises KubeConfigError with a text for people."""

    def find() -> Access:
        return find_access(settings, os.environ)

    return KubeApi(find(), settings, find)
