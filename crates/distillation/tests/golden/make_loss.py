"""Makes loss.json: the distillation loss and its gradients, computed by PyTorch's autograd in float64.

    python make_loss.py > loss.json

Written from the definition, not from the Rust: loss = alpha * T^2 * D + (1 - alpha) * cross-entropy, averaged over
the rows that count, with D between softmax(teacher / T) and softmax(student / T).
"""

import json
import torch

torch.set_default_dtype(torch.float64)
ROWS, HIDDEN, VOCABULARY, K, DRAWS = 4, 3, 9, 4, 6
MASKED = 2


def divergence(kind, student, teacher):
    """Of log-probabilities over the same outcomes, row by row."""
    s, t = student.exp(), teacher.exp()
    if kind == "forward":
        return (t * (teacher - student)).sum(-1)
    if kind == "reverse":
        return (s * (student - teacher)).sum(-1)
    middle = ((s + t) / 2).log()
    return (t * (teacher - middle)).sum(-1) / 2 + (s * (student - middle)).sum(-1) / 2


def soft_loss(labels, kind, temperature, logits, teacher, draws):
    student = torch.log_softmax(logits / temperature, -1)
    teacher = torch.log_softmax(teacher / temperature, -1)
    if labels == "sampled":
        return -student.gather(1, draws).mean(-1)
    if labels == "top-k":
        ids = teacher.topk(K).indices
        outside = torch.ones_like(teacher, dtype=torch.bool).scatter(1, ids, False)

        def outcomes(log_probs):
            rest = log_probs.masked_fill(~outside, -torch.inf).logsumexp(-1, keepdim=True)
            return torch.cat([log_probs.gather(1, ids), rest], 1)

        student, teacher = outcomes(student), outcomes(teacher)
    return divergence(kind, student, teacher)


def rounded(tensor):
    return [float(f"{x:.9g}") for x in tensor.flatten().tolist()]


def main():
    torch.manual_seed(5)
    # Labels are f32 in the program: take values that f32 holds exactly.
    teacher = (torch.randn(ROWS, VOCABULARY) * 2).float().double()
    hidden = torch.randn(ROWS, HIDDEN, requires_grad=True)
    head = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    tokens = torch.randint(VOCABULARY, (ROWS,))
    draws = torch.randint(VOCABULARY, (ROWS, DRAWS))
    counts = torch.arange(ROWS) != MASKED
    cases = []
    for labels, kind in [(l, k) for l in ("full", "top-k") for k in ("forward", "reverse", "jensen-shannon")] + [
        ("sampled", "forward")
    ]:
        for temperature in (1, 2, 4):
            for alpha in (0, 0.5, 1):
                logits = hidden @ head.T
                soft = soft_loss(labels, kind, temperature, logits, teacher, draws)
                hard = torch.nn.functional.cross_entropy(logits, tokens, reduction="none")
                loss = (alpha * temperature**2 * soft + (1 - alpha) * hard)[counts].mean()
                d_hidden, d_head = torch.autograd.grad(loss, [hidden, head])
                cases.append(
                    dict(
                        labels=labels,
                        divergence=kind,
                        temperature=temperature,
                        alpha=alpha,
                        loss=loss.item(),
                        hidden=rounded(d_hidden),
                        head=rounded(d_head),
                    )
                )
    print(
        json.dumps(
            dict(
                torch=torch.__version__,
                rows=ROWS,
                width=HIDDEN,
                vocabulary=VOCABULARY,
                k=K,
                masked=MASKED,
                hidden=hidden.flatten().tolist(),
                head=head.flatten().tolist(),
                teacher=teacher.flatten().tolist(),
                tokens=tokens.tolist(),
                draws=draws.tolist(),
            )
        )[:-1]
        + ', "cases": [\n'
        + ",\n".join(json.dumps(case) for case in cases)
        + "\n]}"
    )


main()
