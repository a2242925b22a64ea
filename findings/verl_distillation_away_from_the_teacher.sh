#!/bin/sh
# verl's on-policy distillation, its own losses on a student of one softmax, as a user of its configuration class has them.
# Packages: verl 0.9.1, tensordict 0.15.3, torch 2.13.0. Guess: with the defaults the student comes to its teacher; a student that
# is far from it has a gradient, and one that is equal has none.
# Seen: 1. DistillationLossConfig's defaults are loss_mode "k3" as a reward (its YAML file has other ones: k3, and no reward). k3
# of a sampled token is never negative, so each sample is punished, also where the student is below the teacher: the gradients of
# the two KL divergences cancel. The forward KL grows, and the reverse one stops at 0.77; with "k1", and with k3 as a loss, both
# go to 0. The docstring recommends k1 for a reward; nothing warns. 2. "forward_kl_topk" is over k tokens that are not normalised,
# and cut at 0. Where they hold 70% of the teacher, a student that gives them all its mass, one of them three times too much, has
# loss 0 and no gradient; a student that is equal to the teacher has one, which takes mass from all other tokens.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 ray==2.55.1 transformers==5.19.0 \
        peft==0.21.2 datasets==4.7.0 hydra-core==1.3.8 codetiming==1.4.0 torchdata==0.11.0 cloudpickle==3.1.2 orjson==3.13.0 \
        pillow==12.0.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps verl==0.9.1
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version
from types import SimpleNamespace

import torch
from verl.trainer.distillation.fsdp.losses import compute_forward_kl_topk
from verl.trainer.distillation.losses import distillation_loss
from verl.workers.config import DistillationLossConfig

assert version("verl") == "0.9.1", version("verl")


def loss_of(settings, ids, output, **data):
    """verl's loss of one episode: a prompt of one token, and the answer `ids`."""
    length = len(ids)
    data |= {"prompts": torch.zeros(1, 1), "responses": ids[None], "attention_mask": torch.ones(1, length + 1, dtype=torch.long)}
    data |= {"response_mask": torch.ones(1, length), "dp_size": 1, "batch_num_tokens": length, "global_batch_size": 1}
    actor = SimpleNamespace(loss_agg_mode="token-mean", global_batch_info={}, loss_scale_factor=None)
    return distillation_loss(actor, SimpleNamespace(distillation_loss=settings), output, data)[0]


def divergences(student, teacher):
    return [round(float((a.exp() * (a - b)).sum()), 2) for a, b in ((student, teacher), (teacher, student))]


torch.manual_seed(0)
teacher, start = (torch.randn(8) * 1.5).log_softmax(-1), torch.randn(8) * 1.5
last = torch.zeros(1)  # the model's output after the last token, which is not read
for options, learns in (({}, False), ({"loss_mode": "k1"}, True), ({"loss_mode": "k3", "use_policy_gradient": False}, True)):
    logits = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.02)
    for _ in range(300):
        student = logits.log_softmax(-1)
        ids = torch.multinomial(student.detach().exp(), 4096, replacement=True)
        data = {"old_log_probs": student.detach()[ids][None], "teacher_logprobs": torch.cat([teacher[ids], last])[:, None]}
        settings = DistillationLossConfig(use_task_rewards=False, **options)
        optimizer.zero_grad()
        loss_of(settings, ids, {"log_probs": torch.cat([student[ids], last])}, **data).backward()
        optimizer.step()
    before, after = divergences(start.log_softmax(-1), teacher), divergences(logits.detach().log_softmax(-1), teacher)
    print(f"1. {options or 'defaults'}: reverse and forward KL {before}, after 300 steps {after}")
    assert max(after) < 0.1 if learns else after[1] > before[1] and after[0] > 0.5

settings = DistillationLossConfig(loss_mode="forward_kl_topk", topk=4, use_policy_gradient=False, use_task_rewards=False)
teacher = torch.tensor([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]).log()
for name, student in (("far", torch.tensor([0.5, 0.3, 0.15, 0.05, 1e-6, 1e-6, 1e-6, 1e-6]).log()), ("equal", teacher.clone())):
    logits = student.clone().requires_grad_()
    nested = [torch.nested.nested_tensor([t.expand(2, 4)], layout=torch.jagged) for t in (teacher[:4], torch.arange(4))]
    config = SimpleNamespace(distillation_loss=settings)
    output = compute_forward_kl_topk(logits.expand(1, 2, 8), *nested, config, "thd")
    loss = loss_of(settings, torch.zeros(1, dtype=torch.long), {key: value[0] for key, value in output.items()})
    (gradient,) = torch.autograd.grad(loss, logits)
    sizes = [round(value, 3) for value in gradient.tolist()]
    print(f"2. {name}: KL {divergences(student.log_softmax(-1), teacher)}, loss {loss.item():.3f}, gradient {sizes}")
    assert abs(loss) < 1e-6 and (gradient.abs().max() == 0) == (name == "far")
EOP
