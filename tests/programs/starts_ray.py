"""Starts a Ray, as a command does, and waits for the end of standard input; its argument says what is tested.

`silent`: tells what Ray is like. `joins ADDRESS`: joins a cluster. `shows`: asks for a dashboard that is not installed.
"""

import os
import sys

from keras_transformer.errors import exit_status
from own_ray import start_ray


def silent() -> None:
    with start_ray(num_cpus=1):
        import ray
        from ray._private.worker import get_dashboard_url

        @ray.remote
        def number():
            print("a worker's line")
            return os.getpid()

        reports, pages = os.environ["RAY_USAGE_STATS_ENABLED"], get_dashboard_url() or "none"
        print(reports, pages, ray.cluster_resources()["CPU"], ray.get(number.remote()), flush=True)
        sys.stdin.read()
    print(ray.is_initialized())


def joins() -> None:
    with start_ray(sys.argv[2]):
        pass


def shows() -> None:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    with start_ray(dashboard=True):
        pass


if __name__ == "__main__":
    sys.exit(exit_status({"silent": silent, "joins": joins, "shows": shows}[sys.argv[1]]))
