"""Beyond one process: a campaign's queries as tasks for the workers of a Dask cluster."""

from shakeproof.parallel.cluster import Cluster, default_jobs
from shakeproof.parallel.forecast import Forecast, forecast
from shakeproof.parallel.scheduler import Standing, TaskScheduler
from shakeproof.parallel.tasks import TaskRunner

__all__ = ["Cluster", "Forecast", "Standing", "TaskRunner", "TaskScheduler", "default_jobs", "forecast"]
