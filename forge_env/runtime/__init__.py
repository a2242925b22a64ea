"""Processes, actors and the weight store: Monarch and TorchStore live here, and `import forge_env` never loads them.

The settings below must stand before Monarch is imported for the first time, here and in every process it starts.
"""

import os

# Our own log file, so that it can be removed with the run: Monarch always writes one under /tmp/USER.
os.environ.setdefault("MONARCH_LOG_SUFFIX", f"forge_{os.getpid()}")
os.environ.setdefault("HYPERACTOR_MESH_ENABLE_LOG_FORWARDING", "0")
# Weights travel as one message; TorchStore asks for this and warns when it is not set.
os.environ.setdefault("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", str(910 * 2**30))
