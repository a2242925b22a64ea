"""Versions of the weights: publishing, pulling, and what a store gives."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

SHARED = ("test_weights_shared.py",)
NCCL = ("test_weights_nccl.py",)
STREAMS = ("test_hf_weights.py",)
REGISTRY = ("test_registry.py",)

MUTANTS = (
    Mutant(
        name="a version may be published twice",
        function="Publisher._check_new",
        old="if version in self._versions",
        new="if False",
        tests=NCCL,
    ),
    Mutant(
        name="another version is sent in the place of one that is not there",
        function="Publisher._send",
        old="self._versions.get(version)",
        new="self._versions.get(version, next(iter(self._versions.values()), None))",
        tests=NCCL,
    ),
    Mutant(
        name="the newest version is forgotten first",
        function="Publisher._forget",
        old="list(self._versions)[: max(0, len(self._versions) - keep)]",
        new="list(self._versions)[keep:]",
        tests=NCCL,
    ),
    Mutant(
        name="memory that a slow puller reads is written over",
        function="Publisher._free",
        old="if id(flat) not in taken",
        new="",
        tests=NCCL,
    ),
    Mutant(
        name="a link that is given back is lost",
        function="Puller.release",
        old="self._idle.append(link)",
        new="pass",
        tests=NCCL,
    ),
    Mutant(
        name="a version may be replaced",
        function="SegmentStore.commit",
        old="os.link(unfinished, self._manifest(taken.version))",
        new="os.replace(unfinished, self._manifest(taken.version))",
        tests=SHARED,
    ),
    Mutant(
        name="one version too many is forgotten before the copy",
        function="SegmentStore.take",
        old="self._forget(keep=self.keep - 1)",
        new="self._forget(keep=0)",
        tests=SHARED,
    ),
    Mutant(
        name="memory that is read is written over",
        function="SegmentStore._free_segment",
        old="if not _try_lock(lock, fcntl.LOCK_EX)",
        new="if False",
        tests=SHARED,
    ),
    Mutant(
        name="the memory of a version that can be fetched is written over",
        function="SegmentStore._free_segment",
        old="if segment.name in named",
        new="if False",
        tests=SHARED,
    ),
    Mutant(
        name="the memory of a copy that failed is not free again",
        function="SegmentStore.take",
        old="lock.close()",
        new="pass",
        tests=SHARED,
    ),
    Mutant(
        name="the memory of a copy that failed counts as in use",
        function="Publisher.take",
        old="self._alive.discard(snapshot)",
        new="pass",
        tests=NCCL,
    ),
    Mutant(
        name="a tensor of another shape is spread over its place",
        function="WeightStream.copy_to",
        old="view is None or view.shape != tensor.shape",
        new="view is None",
        tests=SHARED,
    ),
    Mutant(
        name="a weight that never came leaves what was there before",
        function="WeightStream.copy_to",
        old="if missing:",
        new="if False:",
        tests=SHARED,
    ),
    Mutant(
        name="ranks wait for one that has failed",
        function="HFWeights.stream",
        old="for _ in tensors:",
        new="for _ in ():",
        tests=STREAMS,
    ),
    Mutant(
        name="weights of another shape are read before they are refused",
        function="HFWeights.load",
        old="self._check(files)",
        new="pass",
        tests=STREAMS,
    ),
    Mutant(
        name="every rank reads the first rows",
        function="shard_of",
        old="slice(first, first + size)",
        new="slice(0, size)",
        tests=STREAMS,
    ),
    Mutant(
        name="files grow beyond what they may have",
        function="_parts",
        old="> max_bytes",
        new="> 10**9",
        tests=STREAMS,
    ),
    Mutant(
        name="a new engine does not wait for the version that is taken",
        function="WeightSync.catch_up",
        old="and self._committed.is_set()",
        new="",
        tests=("test_weight_sync.py",),
    ),
    Mutant(
        name="tensors are not aligned",
        function="TensorLayout.of",
        old="-(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT",
        new="tensor.numel() * tensor.element_size()",
        tests=SHARED,
    ),
    Mutant(
        name="a name of two packages is the first one's",
        function="find",
        old="if len(rivals) > 1",
        new="if len(rivals) > 2",
        tests=REGISTRY,
    ),
    Mutant(
        name="a name of a later source hides an earlier one's",
        function="entries",
        old="visible.setdefault((entry.name, entry.kind), entry)",
        new="visible[(entry.name, entry.kind)] = entry",
        tests=REGISTRY,
    ),
)
