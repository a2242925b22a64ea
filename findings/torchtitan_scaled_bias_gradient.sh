#!/bin/sh
# The gradient of the bias in TorchTitan's row-parallel layer with a bias: gpt-oss has it after attention.
# Packages: torchtitan 0.3.0, torch 2.13.0; spmd_backend "partial_dtensor". Guess: layers over two tensor-parallel ranks have the
# gradients that they have on one.
# Seen: ScaledBiasRowwiseLinear divides the bias by the degree before the sum over ranks, so the outputs agree. Its gradient
# stays divided: each rank keeps 1/2 of it (1/degree), and nothing sums them, with the sharding of TorchTitan's own gpt_oss.
# The layer's weight and the layer before it agree, and so does the plain row-parallel Linear, bias and all.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q torchtitan==0.3.0 torch==2.13.0 triton==3.9.0
    PYTHON="$folder/venv/bin/python"
fi
cat >"$folder/layers.py" <<'EOP'
import sys
from datetime import timedelta
from importlib.metadata import version

import spmd_types as spmd
import torch
import torch.distributed as dist
import torchtitan.tools.utils as utils

utils.device_type = "cpu"
import torchtitan.distributed.parallel_dims as dims  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torchtitan.models.common.decoder_sharding import colwise_config, dense_activation_placement, rowwise_config  # noqa: E402
from torchtitan.models.common.linear import Linear, ScaledBiasRowwiseLinear  # noqa: E402
from torchtitan.models.gpt_oss.sharding import scaled_bias_rowwise_config  # noqa: E402
from torchtitan.protocols.sharding import ShardingConfig  # noqa: E402

dims.device_type = "cpu"


def gradients(row, sharding, ranks):
    """The output and the gradients, all whole, of a column-parallel layer and a row-parallel one behind it."""
    torch.manual_seed(0)
    column, rows = colwise_config(), sharding(output_sp=False)
    column.in_src_shardings = {"input": dense_activation_placement(tp=spmd.I)}
    column.in_dst_shardings = {"input": dense_activation_placement(tp=spmd.R)}
    first = Linear.Config(in_features=6, out_features=8, bias=True, sharding_config=column).build()
    second = row.Config(in_features=8, out_features=4, bias=True, sharding_config=rows).build()
    x = torch.randn(1, 5, 6)
    if ranks > 1:
        sizes = dims.ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=ranks, pp=1, ep=1, world_size=ranks, spmd_backend="partial_dtensor")
        sizes.build_mesh()
        first.parallelize(sizes)
        second.parallelize(sizes)
    out = second(first(x))
    whole = out.full_tensor() if isinstance(out, DTensor) else out
    (whole**2).sum().backward()
    weights = {f"{name}.{key}": w for name, layer in (("first", first), ("row", second)) for key, w in layer.named_parameters()}
    found = {name: w.grad.full_tensor() if isinstance(w.grad, DTensor) else w.grad for name, w in weights.items()}
    return found | {"output": whole.detach()}


if __name__ == "__main__":
    assert version("torchtitan") == "0.3.0", version("torchtitan")
    group = {"rank": int(sys.argv[1]), "world_size": 2, "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", **group)
    for row, sharding in ((Linear, rowwise_config), (ScaledBiasRowwiseLinear, scaled_bias_rowwise_config)):
        alone, two = gradients(row, sharding, 1), gradients(row, sharding, 2)
        print(f"{row.__name__}, two ranks to one:", {name: round(float((two[name] / alone[name]).mean()), 4) for name in alone})
        for name in alone:
            part = 0.5 if (row, name) == (ScaledBiasRowwiseLinear, "row.bias") else 1.0
            torch.testing.assert_close(two[name], part * alone[name])
    dist.destroy_process_group()
EOP
"$PYTHON" "$folder/layers.py" 1 "$folder/meeting" >"$folder/other" 2>&1 &
other=$!
"$PYTHON" "$folder/layers.py" 0 "$folder/meeting" || { cat "$folder/other"; wait "$other" || true; exit 1; }
wait "$other"
