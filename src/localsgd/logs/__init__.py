"""Loggers: a run's numbers for TensorBoard, Weights & Biases, MLflow, or as JSON lines.

`Observer` is the seam: whoever watches a run is one. A `Logger` is one that gets flat numbers. The
package of a service is imported when its logger begins.
"""

from localsgd.logs.json_lines import JsonLines
from localsgd.logs.logger import Logger
from localsgd.logs.ml_flow import MLflow
from localsgd.logs.tensor_board import TensorBoard
from localsgd.logs.weights_and_biases import WeightsAndBiases
from localsgd.train.engine.observer import Observer

__all__ = ["JsonLines", "Logger", "MLflow", "Observer", "TensorBoard", "WeightsAndBiases"]
