"""The UVU and BDQNP steps of uvax in PyTorch: as one would write them first, and with the same savings, compiled.

    python benchmarks/torch_peer.py --check FILE                            # the losses of all are those of uvax
    python benchmarks/torch_peer.py --serve uvu outputs compiled --steps 50 # then a line of input for each turn

`training.py` calls it with a Python that has PyTorch. `plain` computes the heads of all actions, every frozen network
in every step and runs eagerly. `outputs` is given the outputs of g (of the priors) at (s, a) and s', `features` g at
(s, a) and its features at s', as ours are; both compute the heads of the taken action by rows in order of their
actions, and count with the fastest of eager, `torch.compile`, and for `features` g's heads eagerly before what is
compiled. Every answer is one line of JSON.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # PyTorch's own name for it

D, Z, A = 35, 6, 4
KEPT = {"uvu": ("plain", "outputs", "features"), "bdqnp3": ("plain", "outputs")}  # of the frozen networks
Params = dict[str, torch.Tensor]


def network(width: int, heads: int, depth: int, generator: torch.Generator) -> Params:
    """He-uniform weights [in, out] and zero biases, named as uvax names them."""
    sizes = {"encode_obs": (D, width), "encode_task": (Z, width), "head": (width, A * heads)}
    sizes |= {f"hidden{i}": (width, width) for i in range(depth)}
    params = {}
    for name, (n, m) in sizes.items():
        limit = (6.0 / n) ** 0.5
        params[name + ".weight"] = (torch.rand(n, m, generator=generator) * 2 - 1) * limit
        params[name + ".bias"] = torch.zeros(m)
    return params


def features(p: Params, obs: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
    x = torch.addmm(p["encode_obs.bias"], obs, p["encode_obs.weight"])
    x = x * torch.addmm(p["encode_task.bias"], task, p["encode_task.weight"])
    x = x * x.square().sum(-1, keepdim=True).rsqrt()
    depth = sum(name.startswith("hidden") for name in p) // 2
    for i in range(depth):
        x = F.relu(torch.addmm(p[f"hidden{i}.bias"], x, p[f"hidden{i}.weight"]))
    return x * x.square().sum(-1, keepdim=True).rsqrt()


def heads(p: Params, x: torch.Tensor) -> torch.Tensor:
    return torch.addmm(p["head.bias"], x, p["head.weight"]).unflatten(-1, (A, -1))


def pick(values: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """[B, A, M] at the actions [B]."""
    return values.gather(1, action[:, None, None].expand(-1, 1, values.shape[-1]))[:, 0]


def heads_at(p: Params, x: torch.Tensor, order: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """The heads of the action taken, rows in order of their actions."""
    weights, biases = p["head.weight"].chunk(A, 1), p["head.bias"].chunk(A)
    groups = x[order].split(counts)
    out = torch.cat([torch.addmm(b, rows, w) for rows, w, b in zip(groups, weights, biases, strict=True)])
    return torch.empty_like(out).index_copy(0, order, out)


def half_square(error: torch.Tensor) -> torch.Tensor:
    return 0.5 * error.square().sum() / error.shape[0]


def next_q_and_score(
    p: dict[str, Params], target: dict[str, Params], batch: Params
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        value = heads(target["q"], features(target["q"], batch["next_obs"], batch["task"]))
        return value, heads(p["q"], features(p["q"], batch["next_obs"], batch["task"]))


def uvu_loss(p: dict[str, Params], target: dict[str, Params], g: Params, batch: Params, *, kept: str) -> torch.Tensor:
    best = kept != "plain"
    obs, task, action, next_obs = (batch[name] for name in ("obs", "task", "action", "next_obs"))
    discount = batch["discount"][:, None]
    next_q, scores = next_q_and_score(p, target, batch)
    counts = torch.bincount(action, minlength=A).tolist() if best else []
    order = torch.argsort(action) if best else action
    with torch.no_grad():
        if best:
            g_sa = batch["g_sa"]
            next_g = batch["next_g"] if kept == "outputs" else heads(g, batch["next_g_features"])
        else:
            g_sa = pick(heads(g, features(g, obs, task)), action)
            next_g = heads(g, features(g, next_obs, task))
        next_u = heads(target["u"], features(target["u"], next_obs, task))
        error = heads(p["u"], features(p["u"], next_obs, task)) - next_g
        best_q = scores.argmax(1, keepdim=True)
        best_u = (scores + error).argmax(1, keepdim=True)
        y_q = batch["reward"][:, None] + discount * next_q.gather(1, best_q)[:, 0]
        y_u = g_sa + discount * (next_u - next_g).gather(1, best_u)[:, 0]
    q_sa = pick(heads(p["q"], features(p["q"], obs, task)), action)
    u_features = features(p["u"], obs, task)
    u_sa = heads_at(p["u"], u_features, order, counts) if best else pick(heads(p["u"], u_features), action)
    return half_square(q_sa - y_q) + half_square(u_sa - y_u)


def bdqnp_loss(
    p: dict[str, Params], target: dict[str, Params], priors: dict[str, Params], batch: Params, *, kept: str
) -> torch.Tensor:
    obs, task, action, next_obs = (batch[name] for name in ("obs", "task", "action", "next_obs"))
    loss = torch.zeros(())
    for k, name in enumerate(p):
        with torch.no_grad():
            if kept != "plain":
                prior_sa, next_prior = batch["prior_sa"][:, k : k + 1], batch["next_prior"][:, :, k : k + 1]
            else:
                prior_sa = pick(heads(priors[name], features(priors[name], obs, task)), action)
                next_prior = heads(priors[name], features(priors[name], next_obs, task))
            value = heads(target[name], features(target[name], next_obs, task)) + next_prior
            score = heads(p[name], features(p[name], next_obs, task)) + next_prior
            next_value = value.gather(1, score.argmax(1, keepdim=True))[:, 0]
            y = batch["reward"][:, None] + batch["discount"][:, None] * next_value
        q_sa = pick(heads(p[name], features(p[name], obs, task)), action) + prior_sa
        loss = loss + half_square(q_sa - y)
    return loss


class Trainer:
    """A step of one of the losses with Adam, on random batches of a dataset."""

    def __init__(self, method: str, *, kept: str, way: str, width: int, heads_: int, batch: int, rows: int):
        g = torch.Generator().manual_seed(0)
        names = {"q": 1, "u": heads_} if method == "uvu" else {f"q{k}": 1 for k in range(int(method[5:]))}
        self.params = {n: network(width, m, 3, g) for n, m in names.items()}
        self.target = {n: {k: v.clone() for k, v in p.items()} for n, p in self.params.items()}
        if method == "uvu":
            self.frozen: Any = network(width, heads_, 3, g)
        else:
            self.frozen = {n: network(width, 1, 3, g) for n in names}
        leaves = [leaf.requires_grad_() for p in self.params.values() for leaf in p.values()]
        self.optimiser = torch.optim.Adam(leaves, lr=3e-4, eps=0.005 / batch, fused=True)
        self.data = dataset(rows, g)
        self.data |= cache(method, self.frozen, self.data, kept)
        self.rows, self.batch = rows, batch
        self.kept, self.apart = ("outputs", True) if way == "heads of g apart" else (kept, False)
        loss = uvu_loss if method == "uvu" else bdqnp_loss
        self.loss = loss if way == "eager" else torch.compile(loss)

    def step(self) -> torch.Tensor:
        chosen = torch.randint(self.rows, (self.batch,))
        batch = {name: column[chosen] for name, column in self.data.items()}
        if self.apart:
            with torch.no_grad():
                batch["next_g"] = heads(self.frozen, batch.pop("next_g_features"))
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss(self.params, self.target, self.frozen, batch, kept=self.kept)
        loss.backward()
        self.optimiser.step()
        return loss.detach()


def dataset(rows: int, g: torch.Generator) -> Params:
    probabilities = torch.tensor([0.25, 0.2, 0.35, 0.2])
    return {
        "obs": torch.randint(0, 5, (rows, D), generator=g).float(),
        "next_obs": torch.randint(0, 5, (rows, D), generator=g).float(),
        "task": F.one_hot(torch.randint(0, Z, (rows,), generator=g), Z).float(),
        "action": torch.multinomial(probabilities, rows, replacement=True, generator=g),
        "reward": (torch.rand(rows, generator=g) < 0.1).float(),
        "discount": torch.full((rows,), 0.9),
    }


@torch.no_grad()
def cache(method: str, frozen: Any, data: Params, kept: str) -> Params:
    """What training never changes, for all rows: all outputs, for UVU also features of g at s' instead, or nothing."""
    if kept == "plain":
        return {}
    obs, task, action, next_obs = (data[name] for name in ("obs", "task", "action", "next_obs"))
    if method == "uvu":
        g_sa, following = pick(heads(frozen, features(frozen, obs, task)), action), features(frozen, next_obs, task)
        there = {"next_g": heads(frozen, following)} if kept == "outputs" else {"next_g_features": following}
        return {"g_sa": g_sa, **there}
    at = [pick(heads(p, features(p, obs, task)), action) for p in frozen.values()]
    every = [heads(p, features(p, next_obs, task)) for p in frozen.values()]
    return {"prior_sa": torch.cat(at, -1), "next_prior": torch.cat(every, -1)}


def check(path: str) -> dict[str, float]:
    """Relative difference of the losses from those that uvax found, for each method and version."""
    stored = dict(np.load(path))
    found = {}
    for method in ("uvu", "bdqnp3"):
        tree: dict[str, Any] = {}
        for key, array in stored.items():
            part, *names = key.split("/")
            if part == method:
                node = tree
                for name in names[:-1]:
                    node = node.setdefault(name, {})
                node[names[-1]] = torch.from_numpy(array)
        data, frozen = tree["batch"], tree["frozen"]
        data["action"] = data["action"].long()
        frozen = frozen["g"] if method == "uvu" else frozen
        loss = uvu_loss if method == "uvu" else bdqnp_loss
        for kept in KEPT[method]:
            batch = data | cache(method, frozen, data, kept)
            got = float(loss(tree["params"], tree["target"], frozen, batch, kept=kept))
            found[f"{method} {kept}"] = abs(got / float(tree["loss"]) - 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", default=None, help="a file of `steps.py` with parameters, a batch and losses")
    parser.add_argument("--serve", nargs=3, metavar=("METHOD", "KEPT", "WAY"), default=None)
    parser.add_argument("--steps", type=int, default=25, help="in a turn")
    args = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if args.check:
        result["check"] = check(args.check)
        wrong = {name: error for name, error in result["check"].items() if not error < 1e-4}
        if wrong:
            raise SystemExit(f"PyTorch and uvax differ: {wrong}")
        print(json.dumps(result), flush=True)
    if args.serve:
        method, kept, way = args.serve
        trainer = Trainer(method, kept=kept, way=way, width=512, heads_=512, batch=512, rows=20_000)
        for _ in range(3):
            trainer.step()
        print(json.dumps({**result, "steps": args.steps}), flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            for _ in range(args.steps):
                trainer.step()
            print(json.dumps({"seconds": (time.perf_counter() - start) / args.steps}), flush=True)


if __name__ == "__main__":
    main()
