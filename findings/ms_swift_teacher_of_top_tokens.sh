#!/bin/sh
# ms-swift's distillation (GKD) with `gkd_logits_topk`, which a teacher behind a server needs, and with two sizes of vocabulary.
# Packages: ms-swift 4.6.0, torch 2.13.0. Guess: a student that never says what its teacher says has a loss, and the loss depends
# on the student's distribution alone.
# Seen: 1. Both models are normalised over the teacher's k tokens, so only their ratios count. A student that gives the three
# tokens of the teacher (95% of its mass) 0.1% in all, in the teacher's ratios, and 99% to another token has loss 0 and no
# gradient, for each beta. Over the whole vocabulary the loss is 6.5. Nothing can bring such a student back. 2. If the student
# lacks tokens that the teacher has, the teacher's logits for them are appended to the student's. So a constant added to all of
# its logits, which changes no probability, changes the loss: 0.8, 1.7 and 6.6 for one and the same student.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 peft==0.21.2 datasets==4.7.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps ms-swift==4.6.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

import torch
from swift.rlhf_trainers.gkd_loss import TeacherOutput, gkd_loss

assert version("ms-swift") == "4.6.0", version("ms-swift")


def loss(student, teacher, beta=0.0, topk=None):
    """The loss of two tokens with the same logits, and the size of its gradient."""
    logits = student.clone().requires_grad_()
    output = TeacherOutput(full_logits=teacher.expand(1, 2, -1))
    total, tokens = gkd_loss(logits.expand(1, 2, -1), output.to_topk(topk) if topk else output, torch.zeros(1, 2), beta, 1.0)
    (gradient,) = torch.autograd.grad(total, logits)
    return round(float(total / tokens), 3), round(float(gradient.abs().max()), 3)


teacher = torch.tensor([0.5, 0.3, 0.15, 0.02, 0.01, 0.01, 0.005, 0.005]).log()
elsewhere = torch.tensor([0.0005, 0.0003, 0.00015, 0.99, 0.002, 0.002, 0.002, 0.002]).log()
for beta in (0.0, 0.5, 1.0):
    whole, top = loss(elsewhere, teacher, beta), loss(elsewhere, teacher, beta, topk=3)
    print(f"1. beta {beta}: loss and gradient {whole} over the vocabulary, {top} over 3 tokens")
    assert whole[0] > 0.5 and max(map(abs, top)) < 1e-3
torch.manual_seed(0)
teacher, student = torch.randn(10), 0.3 * torch.arange(8.0)
losses = [loss(student + constant, teacher)[0] for constant in (0.0, 10.0, -10.0)]
print(f"2. a vocabulary of 8 with a teacher of 10: {losses}, with 0, 10 and -10 added to the student's logits")
assert max(losses) > 2 * min(losses)
EOP
