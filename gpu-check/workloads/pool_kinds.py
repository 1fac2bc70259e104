"""What a paper on pools of GPUs varies in its models (DxPU, tables 9 to 11). Needs no library."""

from __future__ import annotations

from dataclasses import dataclass

BATCHES = (32, 64, 128)
# Parameters lie on the host at this batch size only.
BATCH_WITH_PARAMETERS = 128
DETECTOR_BATCHES = (8, 16, 32, 64)
RECOMMENDER_BATCHES = (16384, 65536, 262144, 1048576)


@dataclass(frozen=True)
class Kind:
    """One cell of table 9."""

    batch: int
    is_training: bool
    from_host: bool = False
    parameters_on_host: bool = False
    is_compiled: bool = False
    # Products of 32 bits, as on the paper's GPU, and not of 19.
    is_exact: bool = False


def _cells() -> dict[str, Kind]:
    """Returns all of table 9 by name, and training with exact products."""
    cells: dict[str, Kind] = {}
    for is_training in (True, False):
        for batch in BATCHES:
            for from_host in (False, True):
                for parameters_on_host in (False, True) if batch == BATCH_WITH_PARAMETERS else (False,):
                    for is_compiled in (False, True):
                        parts = ["train" if is_training else "infer", "host" if from_host else "synthetic", f"b{batch}"]
                        parts += ["parameters"] if parameters_on_host else []
                        parts += ["compiled"] if is_compiled else []
                        kind = Kind(batch, is_training, from_host, parameters_on_host, is_compiled)
                        cells["resnet50_" + "_".join(parts)] = kind
    return cells | {"resnet50_train_synthetic_b64_exact": Kind(64, True, is_exact=True)}


CELLS = _cells()
